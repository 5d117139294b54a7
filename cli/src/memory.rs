//! Amounts of memory on the command line.

use std::str::FromStr;

use anyhow::{Context, Error, Result, bail, ensure};
use cgpu_shm::units::Bytes;

/// A memory limit for each GPU, in whole MiB: `6GiB`, `512MiB`, `6` (GiB), or a list for the GPUs
/// in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    mib: Vec<u64>,
}

impl Memory {
    /// Returns the value of ALIYUN_COM_GPU_MEM_CONTAINER with CGPU_MEM_UNIT=MiB. The last amount
    /// applies to all further GPUs.
    pub(crate) fn list(&self) -> String {
        self.mib.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
    }

    /// Returns the greatest amount.
    pub(crate) fn most(&self) -> Bytes {
        Bytes::from_mib(self.mib.iter().copied().max().unwrap_or(0))
    }

    /// Parses one amount, such as `6GiB`; a number without a unit is of GiB.
    pub(crate) fn amount(text: &str) -> Result<Bytes> {
        Ok(Bytes::from_mib(amount(text)?))
    }
}

impl FromStr for Memory {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mib = text.split(',').map(|text| {
            let mib = amount(text)?;
            ensure!(mib > 0, "{text:?} allows no memory: leave --mem out to run without a limit");
            Ok(mib)
        });
        Ok(Self { mib: mib.collect::<Result<_>>()? })
    }
}

/// Parses one amount; returns MiB.
fn amount(text: &str) -> Result<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    // Docker's units are lower-case.
    let unit = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "g" | "gi" | "gb" | "gib" => 1024,
        "m" | "mi" | "mb" | "mib" => 1,
        "t" | "ti" | "tb" | "tib" => 1024 * 1024,
        _ => {
            bail!(
                "{text:?} is not an amount of memory: expected a number and GiB or MiB, such as \
                 6GiB or 512MiB"
            )
        }
    };
    whole(number, unit).with_context(|| {
        format!("{text:?} is not an amount of memory: expected whole MiB, such as 6GiB or 512MiB")
    })
}

/// Returns `number` times `unit`; `None` if the product is not a whole number or too large.
fn whole(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let scale = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let fraction = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()? };
    let scaled =
        whole.parse::<u64>().ok()?.checked_mul(scale)?.checked_add(fraction)?.checked_mul(unit)?;
    (scaled % scale == 0).then_some(scaled / scale)
}

#[cfg(test)]
mod tests {
    use super::Memory;

    fn list(text: &str) -> Result<String, String> {
        text.parse::<Memory>().map(|memory| memory.list()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn amount_accepts_units() {
        for (text, mib) in [
            ("6GiB", "6144"),
            ("6", "6144"),
            ("6G", "6144"),
            ("6GB", "6144"),
            ("6Gi", "6144"),
            ("6g", "6144"),
            ("512m", "512"),
            ("512MB", "512"),
            ("512MiB", "512"),
            ("1.5GiB", "1536"),
            ("0.5", "512"),
            ("6GiB,512MiB", "6144,512"),
            ("1TiB", "1048576"),
            (" 3 GiB ", "3072"),
        ] {
            assert_eq!(list(text).as_deref(), Ok(mib), "{text}");
        }
    }

    #[test]
    fn invalid_amount_names_the_expected_form() {
        for text in [
            "",
            "GiB",
            "six",
            "-1",
            "6GX",
            "6B",
            "1.0001MiB",
            "0",
            "0MiB",
            "6GiB,",
            "99999999999999999999",
            "1e3",
            "1..5",
        ] {
            let error = list(text).expect_err(text);
            assert!(
                error.contains("such as") || error.contains("leave --mem out"),
                "{text}: {error}"
            );
        }
    }
}
