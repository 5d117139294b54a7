//! Quantities as Kubernetes writes them: `8`, `1500m`, `2Gi`, `1e3`.

use crate::refusal::quoted;

/// Decimal digits of a quantity's fraction: quantities are counted in billionths.
const NANO_DIGITS: i32 = 9;

/// An amount in billionths. Finer fractions are rounded up, as in Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(i128);

/// Why a text is not a usable amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidQuantity {
    /// Kubernetes refuses it, too.
    Malformed,
    /// A negative amount.
    Negative,
    /// An amount that is not whole.
    Fraction,
    /// More than 2^63 - 1, the limit of Kubernetes.
    Huge,
}

impl InvalidQuantity {
    /// Returns the defect as it follows "is `...`" in a message.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::Malformed => "which is not a quantity",
            Self::Negative => "which is negative",
            Self::Fraction => "which is not a whole number",
            Self::Huge => "which is too large",
        }
    }

    /// Returns the beginning of a message: `WHAT is VALUE, which is ...`.
    #[must_use]
    pub fn of(self, what: &str, value: &str) -> String {
        format!("{what} is {}, {}", quoted(value), self.description())
    }
}

/// The factor that a suffix stands for.
enum Scale {
    /// A power of ten.
    Ten(i32),
    /// A power of two.
    Two(u32),
}

impl Quantity {
    /// Parses a quantity.
    ///
    /// # Errors
    /// [`InvalidQuantity::Malformed`], or [`InvalidQuantity::Huge`] beyond 2^63 - 1.
    pub fn parse(text: &str) -> Result<Self, InvalidQuantity> {
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let end =
            unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + fraction.len() == 0 || fraction.contains('.') {
            return Err(InvalidQuantity::Malformed);
        }
        let scale = scale(suffix).ok_or(InvalidQuantity::Malformed)?;
        let fraction = fraction.trim_end_matches('0');
        let whole = whole.trim_start_matches('0');
        if whole.is_empty() && fraction.is_empty() {
            return Ok(Self(0));
        }
        let digits: i128 =
            format!("{whole}{fraction}").parse().map_err(|_| InvalidQuantity::Huge)?;
        let decimals = i32::try_from(fraction.len()).map_err(|_| InvalidQuantity::Huge)?;
        let (digits, tens) = match scale {
            Scale::Ten(tens) => (digits, tens.saturating_sub(decimals)),
            Scale::Two(twos) => {
                (digits.checked_mul(1 << twos).ok_or(InvalidQuantity::Huge)?, -decimals)
            }
        };
        let nanos =
            shifted(digits, tens.saturating_add(NANO_DIGITS)).ok_or(InvalidQuantity::Huge)?;
        if nanos > i128::from(i64::MAX) * 10_i128.pow(NANO_DIGITS.unsigned_abs()) {
            return Err(InvalidQuantity::Huge);
        }
        Ok(Self(if negative { -nanos } else { nanos }))
    }

    /// Returns the amount in thousandths, rounded up; 0 if it is negative. Saturates.
    #[must_use]
    pub fn millis(self) -> u64 {
        let milli = 10_i128.pow(NANO_DIGITS.unsigned_abs() - 3);
        let rounded = self.0.max(0) / milli + i128::from(self.0.max(0) % milli != 0);
        u64::try_from(rounded).unwrap_or(u64::MAX)
    }

    /// Returns the amount as a whole number.
    ///
    /// # Errors
    /// [`InvalidQuantity::Negative`] or [`InvalidQuantity::Fraction`].
    pub fn whole(self) -> Result<u64, InvalidQuantity> {
        let one = 10_i128.pow(NANO_DIGITS.unsigned_abs());
        if self.0 < 0 {
            return Err(InvalidQuantity::Negative);
        }
        if self.0 % one != 0 {
            return Err(InvalidQuantity::Fraction);
        }
        u64::try_from(self.0 / one).map_err(|_| InvalidQuantity::Huge)
    }
}

/// Parses a quantity that must be a whole number and not negative.
///
/// # Errors
/// The defect of the text.
pub fn whole(text: &str) -> Result<u64, InvalidQuantity> {
    Quantity::parse(text)?.whole()
}

/// Returns `digits` x 10^`tens`, rounded away from zero, or `None` if it overflows.
fn shifted(digits: i128, tens: i32) -> Option<i128> {
    let power = 10_i128.checked_pow(tens.unsigned_abs());
    if tens >= 0 {
        return digits.checked_mul(power?);
    }
    // The divisor overflows, so the quotient is below 1 and is rounded up to 1.
    Some(power.map_or(1, |power| digits / power + i128::from(digits % power != 0)))
}

fn scale(suffix: &str) -> Option<Scale> {
    Some(match suffix {
        "n" => Scale::Ten(-9),
        "u" => Scale::Ten(-6),
        "m" => Scale::Ten(-3),
        "" => Scale::Ten(0),
        "k" => Scale::Ten(3),
        "M" => Scale::Ten(6),
        "G" => Scale::Ten(9),
        "T" => Scale::Ten(12),
        "P" => Scale::Ten(15),
        "E" => Scale::Ten(18),
        "Ki" => Scale::Two(10),
        "Mi" => Scale::Two(20),
        "Gi" => Scale::Two(30),
        "Ti" => Scale::Two(40),
        "Pi" => Scale::Two(50),
        "Ei" => Scale::Two(60),
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E'])?;
            let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
            if unsigned.is_empty() || !unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            // Kubernetes has exponents of 32 bits. Any larger one is out of range.
            Scale::Ten(digits.parse::<i32>().unwrap_or(if digits.starts_with('-') {
                i32::MIN
            } else {
                i32::MAX
            }))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_parse_as_kubernetes_parses_them() {
        for (text, expected) in [
            ("8", 8),
            ("+8", 8),
            ("008", 8),
            ("8.", 8),
            ("8.0", 8),
            ("0.5k", 500),
            (".5k", 500),
            ("8k", 8000),
            ("1Ki", 1024),
            ("1.5Ki", 1536),
            ("2M", 2_000_000),
            ("2Mi", 2 << 20),
            ("3Gi", 3 << 30),
            ("1G", 1_000_000_000),
            ("1T", 1_000_000_000_000),
            ("1Ti", 1 << 40),
            ("1P", 1_000_000_000_000_000),
            ("1Pi", 1 << 50),
            ("1E", 1_000_000_000_000_000_000),
            ("1Ei", 1 << 60),
            ("2e1", 20),
            ("2E1", 20),
            ("2e+3", 2000),
            ("2000e-3", 2),
            ("5000m", 5),
            ("7000000u", 7),
            ("9000000000n", 9),
            ("0", 0),
            ("0e99999999999", 0),
            ("9223372036854775807", 9_223_372_036_854_775_807),
        ] {
            assert_eq!(whole(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn invalid_quantity_names_its_defect() {
        for text in [
            "", "x", "1x", "1KiB", "1ki", "1K", "1 ", " 1", "--1", "1.2.3", ".", "1e", "1e+", "Gi",
            "1e1.5", "0x10", "1,5", "٣",
        ] {
            assert_eq!(whole(text), Err(InvalidQuantity::Malformed), "{text:?}");
        }
        for text in ["-1", "-1Gi", "-0.5", "-1e9"] {
            assert_eq!(whole(text), Err(InvalidQuantity::Negative), "{text}");
        }
        for text in
            ["1.5", "1500m", "1n", "0.1Ki", "1e-3", "0.0000000000000000001", "1e-99999999999"]
        {
            assert_eq!(whole(text), Err(InvalidQuantity::Fraction), "{text}");
        }
        for text in [
            "9223372036854775808",
            "8Ei",
            "10E",
            "1e19",
            "1e99999999999",
            "99999999999999999999999999999999999999999999",
        ] {
            assert_eq!(whole(text), Err(InvalidQuantity::Huge), "{text}");
        }
        assert_eq!(whole("-0"), Ok(0));
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(
            text in "[+-]?[0-9.]{0,40}[eEinumkKMGTP]{0,3}[+-]?[0-9]{0,12}",
        ) {
            let _ = whole(&text);
        }

        #[test]
        fn suffix_multiplies(number in 0_u64..1 << 20, index in 0_usize..7) {
            let (suffix, factor) = [
                ("", 1), ("k", 1000), ("Ki", 1024), ("M", 1_000_000), ("Mi", 1 << 20),
                ("Gi", 1 << 30), ("e6", 1_000_000),
            ][index];
            prop_assert_eq!(whole(&format!("{number}{suffix}")), Ok(number * factor));
        }

        #[test]
        fn fraction_that_comes_out_even_is_whole(thousandths in 0_u64..10_000_000) {
            let text = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
            let expected = match thousandths % 1000 {
                0 => Ok(thousandths / 1000),
                _ => Err(InvalidQuantity::Fraction),
            };
            prop_assert_eq!(whole(&text), expected);
            prop_assert_eq!(whole(&format!("{text}k")), Ok(thousandths));
        }
    }
}
