//! Amounts of memory: `ALIYUN_COM_GPU_MEM_CONTAINER` and `ALIYUN_COM_GPU_MEM_DEV`, and the limits
//! that they give.

use cgpu_shm::units::Bytes;

use super::value::{Value, Variable};
use crate::Refusal;

const MIB: u64 = 1 << 20;

/// Whole numbers joined by commas; the last one repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Amounts {
    value: Value,
    numbers: Vec<u64>,
}

impl Amounts {
    /// Reads a list; refuses all of it if an entry is not a whole number.
    pub(crate) fn read(value: Value) -> Result<Self, Refusal> {
        let text = value.text()?;
        let mut numbers = Vec::new();
        for entry in text.split(',') {
            match whole(entry) {
                Some(number) => numbers.push(number),
                None => {
                    return Err(value.refused(
                        "whole numbers joined by commas, one for each GPU, such as `3` or `3,1`",
                        "correct it, or unset ALIYUN_COM_GPU_MEM_CONTAINER to run without a limit",
                    ));
                }
            }
        }
        Ok(Self { value, numbers })
    }

    pub(crate) fn has_zero(&self) -> bool {
        self.numbers.contains(&0)
    }

    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns whether all GPUs have the same amount.
    pub(crate) fn is_uniform(&self) -> bool {
        self.numbers.windows(2).all(|pair| pair.first() == pair.last())
    }

    /// Returns the entry for the GPU at `position`: the last one repeats.
    pub(crate) fn at(&self, position: usize) -> u64 {
        self.numbers.get(position).or(self.numbers.last()).copied().unwrap_or(0)
    }

    pub(crate) fn value(&self) -> &Value {
        &self.value
    }
}

/// Reads a whole number of digits alone, with spaces around it. `u64::from_str` would accept a
/// sign.
pub(crate) fn whole(text: &str) -> Option<u64> {
    let text = text.trim_matches([' ', '\t']);
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// The unit of `ALIYUN_COM_GPU_MEM_CONTAINER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Shares of a GPU, whose memory is so many of them (`ALIYUN_COM_GPU_MEM_DEV`).
    Shares(Amounts),
    /// Units of so many bytes (`CGPU_MEM_UNIT`).
    Units(Bytes),
}

impl Measure {
    /// Reads the two variables. A wrong unit is refused even where it has no effect.
    pub(crate) fn read(whole_gpu: Option<Value>, unit: Option<Value>) -> Result<Self, Refusal> {
        let unit = match unit {
            None => Bytes(1 << 30),
            Some(value) => match value.text()? {
                "GiB" => Bytes(1 << 30),
                "MiB" => Bytes(MIB),
                "128MiB" => Bytes(128 * MIB),
                _ => {
                    return Err(value.refused(
                        "`GiB`, `MiB` or `128MiB`",
                        "set one of these, or unset it for GiB",
                    ));
                }
            },
        };
        let Some(value) = whole_gpu else { return Ok(Self::Units(unit)) };
        let shares = Amounts::read(value)?;
        if shares.has_zero() {
            return Err(shares.value.refused(
                "the memory of a GPU in the unit of ALIYUN_COM_GPU_MEM_CONTAINER, which is not 0",
                "set it to the GPU's memory, or unset it to count in CGPU_MEM_UNIT",
            ));
        }
        Ok(Self::Shares(shares))
    }

    /// Returns the list of `ALIYUN_COM_GPU_MEM_DEV`, if it is set.
    pub(crate) fn shares(&self) -> Option<&Amounts> {
        match self {
            Self::Shares(shares) => Some(shares),
            Self::Units(_) => None,
        }
    }

    /// Returns the limit of `amount` on the GPU at `position` with `total` memory:
    /// `floor(total_MiB x amount / shares)` MiB, or `amount` units. `None` if it exceeds a `u64`.
    pub(crate) fn limit(&self, amount: u64, position: usize, total: Bytes) -> Option<Bytes> {
        let bytes = match self {
            Self::Units(unit) => u128::from(amount) * u128::from(unit.0),
            Self::Shares(shares) => {
                let mib = u128::from(total.0 / MIB) * u128::from(amount);
                mib.checked_div(u128::from(shares.at(position)))?.checked_mul(u128::from(MIB))?
            }
        };
        u64::try_from(bytes).ok().map(Bytes)
    }

    pub(crate) fn is_mib(&self) -> bool {
        *self == Self::Units(Bytes(MIB))
    }

    /// Returns the unit for messages.
    pub(crate) fn noun(&self) -> String {
        match self {
            Self::Units(Bytes(unit)) if *unit == 1 << 30 => "GiB".to_owned(),
            Self::Units(Bytes(MIB)) => "MiB".to_owned(),
            Self::Units(Bytes(unit)) => format!("times {} MiB", unit / MIB),
            Self::Shares(shares) => format!("of {} {}", Variable::MemDev.name(), shares.value),
        }
    }
}

/// Returns a size in MiB for messages.
pub(crate) fn mib(bytes: Bytes) -> String {
    format!("{} MiB", bytes.0 / MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(text: &str) -> Measure {
        Measure::read(Some(Value::new(Variable::MemDev, text)), None).expect("a well-formed list")
    }

    #[test]
    fn shares_are_rounded_down_to_mebibytes() {
        for (total_mib, amount, of, limit_mib) in [
            (15109, 6, "15", 6043),
            (15109, 8, "15", 8058),
            (16130, 2, "15", 2150),
            (23028, 8, "22", 8373),
            (23028, 12, "22", 12560),
            (23028, 22, "22", 23028),
            (81559, 1, "79", 1032),
        ] {
            let limit = shares(of).limit(amount, 0, Bytes::from_mib(total_mib));
            assert_eq!(limit, Some(Bytes::from_mib(limit_mib)), "{total_mib} x {amount} / {of}");
        }
        // Bytes beyond a whole MiB of the GPU's total do not count.
        assert_eq!(shares("2").limit(1, 0, Bytes((101 << 20) + 77)), Some(Bytes::from_mib(50)));
    }

    #[test]
    fn last_entry_repeats() {
        let list =
            Amounts::read(Value::new(Variable::MemContainer, "3,1")).expect("a well-formed list");
        assert_eq!([0, 1, 2, 9].map(|position| list.at(position)), [3, 1, 1, 1]);
    }

    #[test]
    fn limit_beyond_64_bits_is_none() {
        assert_eq!(Measure::Units(Bytes(1 << 30)).limit(u64::MAX, 0, Bytes(1)), None);
        assert_eq!(shares("1").limit(u64::MAX, 0, Bytes(u64::MAX)), None);
    }

    #[test]
    fn whole_number_has_digits_only() {
        assert_eq!(whole(" 03\t"), Some(3));
        for text in ["", " ", "+3", "-3", "3.0", "3e1", "0x3", "٣", "3 4", "18446744073709551616"]
        {
            assert_eq!(whole(text), None, "{text:?}");
        }
    }
}
