//! The name of a device in the control tree: `N`, NVML's index of a GPU, or `N.M`, where M is the
//! index of a MIG instance on it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// `N` or `N.M`. In JSON a number, or a text such as `"0.1"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct DeviceId {
    gpu: u32,
    instance: Option<u32>,
}

impl DeviceId {
    /// The id of a GPU.
    #[must_use]
    pub const fn of_gpu(gpu: u32) -> Self {
        Self { gpu, instance: None }
    }

    /// The id of a MIG instance.
    #[must_use]
    pub const fn of_instance(gpu: u32, instance: u32) -> Self {
        Self { gpu, instance: Some(instance) }
    }

    /// Returns N, the GPU's index.
    #[must_use]
    pub const fn gpu(self) -> u32 {
        self.gpu
    }

    /// Returns M, the index of a MIG instance.
    #[must_use]
    pub const fn instance(self) -> Option<u32> {
        self.instance
    }

    /// Whether it is a MIG instance's.
    #[must_use]
    pub const fn is_instance(self) -> bool {
        self.instance.is_some()
    }
}

impl From<u32> for DeviceId {
    fn from(gpu: u32) -> Self {
        Self::of_gpu(gpu)
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.instance {
            // As a text, so that a width applies to all of it.
            Some(instance) => f.pad(&format!("{}.{instance}", self.gpu)),
            None => self.gpu.fmt(f),
        }
    }
}

/// A text that is not a device's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidDeviceId;

impl fmt::Display for InvalidDeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a GPU's index such as 0, or an instance's such as 0.1")
    }
}

impl std::error::Error for InvalidDeviceId {}

impl FromStr for DeviceId {
    type Err = InvalidDeviceId;

    /// Parses only the canonical form: `00` and `+0` are not names in the tree.
    fn from_str(text: &str) -> Result<Self, InvalidDeviceId> {
        let number = |text: &str| text.parse().map_err(|_| InvalidDeviceId);
        let read = match text.split_once('.') {
            Some((gpu, instance)) => Self::of_instance(number(gpu)?, number(instance)?),
            None => Self::of_gpu(number(text)?),
        };
        if read.to_string() == text { Ok(read) } else { Err(InvalidDeviceId) }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Gpu(u32),
    Instance(String),
}

impl From<DeviceId> for Written {
    fn from(number: DeviceId) -> Self {
        if number.is_instance() {
            Self::Instance(number.to_string())
        } else {
            Self::Gpu(number.gpu)
        }
    }
}

impl TryFrom<Written> for DeviceId {
    type Error = InvalidDeviceId;

    fn try_from(written: Written) -> Result<Self, InvalidDeviceId> {
        match written {
            Written::Gpu(gpu) => Ok(Self::of_gpu(gpu)),
            Written::Instance(text) => text.parse(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_id_is_parsed_as_it_is_printed() {
        for (number, text, json) in [
            (DeviceId::of_gpu(0), "0", "0"),
            (DeviceId::of_gpu(12), "12", "12"),
            (DeviceId::of_instance(1, 6), "1.6", "\"1.6\""),
        ] {
            assert_eq!(number.to_string(), text);
            assert_eq!(text.parse(), Ok(number));
            assert_eq!(serde_json::to_string(&number).unwrap(), json);
            assert_eq!(serde_json::from_str::<DeviceId>(json).unwrap(), number);
            assert_eq!(format!("{number:>5}|").len(), 6);
        }
        for text in ["", "00", "+1", "-1", "1.", ".1", "1.00", "1.2.3", "a", "1.-1", "4294967296"] {
            assert_eq!(text.parse::<DeviceId>(), Err(InvalidDeviceId), "{text}");
        }
    }

    #[test]
    fn instances_follow_their_gpu_in_order() {
        let in_order = [
            DeviceId::of_gpu(0),
            DeviceId::of_instance(1, 0),
            DeviceId::of_instance(1, 1),
            DeviceId::of_gpu(2),
        ];
        assert!(in_order.is_sorted());
    }
}
