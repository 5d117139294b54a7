//! How much memory: the lists of `ALIYUN_COM_GPU_MEM_CONTAINER` and `ALIYUN_COM_GPU_MEM_DEV`, and what they come to on a GPU.

use cgpu_shm::units::Bytes;

use super::value::{Value, Variable};
use crate::Refusal;

/// Bytes of one MiB.
const MIB: u64 = 1 << 20;

/// Whole numbers joined by commas; the last one repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Amounts {
    value: Value,
    numbers: Vec<u64>,
}

impl Amounts {
    /// Reads a list; any entry that is not a whole number refuses all of it.
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

    /// Whether any entry is zero.
    pub(crate) fn has_zero(&self) -> bool {
        self.numbers.contains(&0)
    }

    /// Entries given.
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether every GPU has the same.
    pub(crate) fn is_uniform(&self) -> bool {
        self.numbers.windows(2).all(|pair| pair.first() == pair.last())
    }

    /// The entry of the GPU at `place`: the last one repeats.
    pub(crate) fn at(&self, place: usize) -> u64 {
        self.numbers.get(place).or(self.numbers.last()).copied().unwrap_or(0)
    }

    /// What came, for sentences.
    pub(crate) fn value(&self) -> &Value {
        &self.value
    }
}

/// A whole number in digits alone, spaces around it allowed. Not `u64::from_str`, which takes a sign.
pub(crate) fn whole(text: &str) -> Option<u64> {
    let text = text.trim_matches([' ', '\t']);
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// What a number in `ALIYUN_COM_GPU_MEM_CONTAINER` counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Shares of a GPU: the GPU's memory is so many of them (`ALIYUN_COM_GPU_MEM_DEV`).
    Shares(Amounts),
    /// Units of so many bytes (`CGPU_MEM_UNIT`).
    Units(Bytes),
}

impl Measure {
    /// From the two variables. The unit is read even where it does not count, so that a wrong one never lies in wait.
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

    /// The list behind it, if there is one.
    pub(crate) fn shares(&self) -> Option<&Amounts> {
        match self {
            Self::Shares(shares) => Some(shares),
            Self::Units(_) => None,
        }
    }

    /// The limit that `amount` comes to on the GPU at `place` with memory `total`: `floor(total_MiB x amount / shares)` MiB,
    /// or `amount` units. None if it is beyond any number.
    pub(crate) fn limit(&self, amount: u64, place: usize, total: Bytes) -> Option<Bytes> {
        let bytes = match self {
            Self::Units(unit) => u128::from(amount) * u128::from(unit.0),
            Self::Shares(shares) => {
                let mib = u128::from(total.0 / MIB) * u128::from(amount);
                mib.checked_div(u128::from(shares.at(place)))?.checked_mul(u128::from(MIB))?
            }
        };
        u64::try_from(bytes).ok().map(Bytes)
    }

    /// Whether the number counts MiB.
    pub(crate) fn is_mib(&self) -> bool {
        *self == Self::Units(Bytes(MIB))
    }

    /// What the number counts, for sentences.
    pub(crate) fn noun(&self) -> String {
        match self {
            Self::Units(Bytes(unit)) if *unit == 1 << 30 => "GiB".to_owned(),
            Self::Units(Bytes(MIB)) => "MiB".to_owned(),
            Self::Units(Bytes(unit)) => format!("times {} MiB", unit / MIB),
            Self::Shares(shares) => format!("of {} {}", Variable::MemDev.name(), shares.value),
        }
    }
}

/// A size in MiB, for sentences.
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
    fn shares_are_floors_of_whole_mebibytes() {
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
        // Odd bytes of the GPU's total do not count.
        assert_eq!(shares("2").limit(1, 0, Bytes((101 << 20) + 77)), Some(Bytes::from_mib(50)));
    }

    #[test]
    fn the_last_entry_repeats() {
        let list =
            Amounts::read(Value::new(Variable::MemContainer, "3,1")).expect("a well-formed list");
        assert_eq!([0, 1, 2, 9].map(|place| list.at(place)), [3, 1, 1, 1]);
    }

    #[test]
    fn limits_beyond_any_number_are_none() {
        assert_eq!(Measure::Units(Bytes(1 << 30)).limit(u64::MAX, 0, Bytes(1)), None);
        assert_eq!(shares("1").limit(u64::MAX, 0, Bytes(u64::MAX)), None);
    }

    #[test]
    fn only_digits_are_whole_numbers() {
        assert_eq!(whole(" 03\t"), Some(3));
        for text in ["", " ", "+3", "-3", "3.0", "3e1", "0x3", "٣", "3 4", "18446744073709551616"]
        {
            assert_eq!(whole(text), None, "{text:?}");
        }
    }
}
