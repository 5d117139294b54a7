//! A GPU's permanent name: 16 bytes, written `GPU-8f0e6a8c-0000-4000-8000-00000000002a`.

use core::fmt;
use core::str::FromStr;

/// The UUID of a GPU or of a MIG instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

/// A text that is not a UUID as the driver writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAUuid;

impl fmt::Display for NotAUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "expected a GPU's UUID such as GPU-8f0e6a8c-0000-4000-8000-00000000002a \
         (`nvidia-smi -L` prints them)",
        )
    }
}

impl core::error::Error for NotAUuid {}

impl FromStr for Uuid {
    type Err = NotAUuid;

    /// Parses `GPU-...` and `MIG-...`, digits in either case. Also parses `MIG-GPU-.../1/0`, as
    /// drivers before R470 write a MIG instance: that is its GPU's UUID, which is also what such a
    /// driver's CUDA returns.
    fn from_str(text: &str) -> Result<Self, NotAUuid> {
        const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];
        let text = whole_gpu(text).unwrap_or(text);
        let digits =
            text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-")).ok_or(NotAUuid)?;
        if !digits.split('-').map(str::len).eq(GROUPS) {
            return Err(NotAUuid);
        }
        let mut nibbles =
            digits.chars().filter(|digit| *digit != '-').map(|digit| digit.to_digit(16));
        let mut nibble = || {
            nibbles.next().flatten().and_then(|nibble| u8::try_from(nibble).ok()).ok_or(NotAUuid)
        };
        let mut bytes = [0; 16];
        for byte in &mut bytes {
            *byte = nibble()? << 4 | nibble()?;
        }
        Ok(Self(bytes))
    }
}

/// Returns the GPU in the older name of a MIG instance, `MIG-GPU-<its UUID>/<GPU instance>/<compute
/// instance>`.
#[must_use]
pub fn whole_gpu(text: &str) -> Option<&str> {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = text.strip_prefix("MIG-")?.split('/');
    let gpu = parts.next().filter(|gpu| gpu.starts_with("GPU-"))?;
    let instance = [parts.next()?, parts.next()?];
    (instance.into_iter().all(number) && parts.next().is_none()).then_some(gpu)
}

impl Uuid {
    /// Returns its 36 characters without `GPU-`: other objects have UUIDs, too.
    #[must_use]
    pub fn digits(&self) -> String {
        self.to_string().split_off("GPU-".len())
    }
}

impl fmt::Display for Uuid {
    /// Formats it as a GPU's; the bytes do not tell whether it is a MIG instance.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU-")?;
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prefixes_and_cases_of_one_uuid_are_one_gpu() {
        let gpu: Uuid = "GPU-8f0e6a8c-0000-4000-8000-00000000002a".parse().unwrap();
        assert_eq!(gpu.0[0], 0x8f);
        assert_eq!(gpu.0[15], 0x2a);
        assert_eq!("MIG-8F0E6A8C-0000-4000-8000-00000000002A".parse(), Ok(gpu));
        assert_eq!("MIG-GPU-8f0e6a8c-0000-4000-8000-00000000002a/11/0".parse(), Ok(gpu));
    }

    #[test]
    fn invalid_texts_are_rejected() {
        for text in [
            "",
            "8f0e6a8c-0000-4000-8000-00000000002a",
            "GPU-",
            "GPU-8f0e6a8c",
            "GPU-8f0e6a8c-0000-4000-8000-00000000002a-",
            "GPU-8f0e6a8c-0000-4000-8000-00000000002g",
            "GPU-8f0e6a8c-0000-4000-80000-0000000002a",
            "GPU-8f0e6a8c-0000-4000-8000-0000000000\u{e9}",
            "MIG-GPU-8f0e6a8c-0000-4000-8000-00000000002a",
            "MIG-GPU-8f0e6a8c-0000-4000-8000-00000000002a/1",
            "MIG-GPU-8f0e6a8c-0000-4000-8000-00000000002a/1/",
            "MIG-GPU-8f0e6a8c-0000-4000-8000-00000000002a/1/0/0",
            "MIG-8f0e6a8c-0000-4000-8000-00000000002a/1/0",
            "GPU-8f0e6a8c-0000-4000-8000-00000000002a/1/0",
        ] {
            assert_eq!(text.parse::<Uuid>(), Err(NotAUuid), "{text}");
        }
    }

    proptest! {
        #[test]
        fn written_uuid_is_read_back(bytes in any::<[u8; 16]>()) {
            prop_assert_eq!(Uuid(bytes).to_string().parse(), Ok(Uuid(bytes)));
        }
    }
}
