//! Device ids for the kubelet: one for each unit of a node.
//!
//! An id belongs to no GPU: the kubelet chooses ids freely, and a pod's GPUs are in its
//! annotations. So ids are short numbers. An unhealthy GPU makes as many ids unhealthy as it has
//! units, no matter which.

use crate::gpus::{Gpu, NodeGpus};
use crate::refusal::Refusal;
use crate::unit::Unit;

/// Maximum size of a message to the kubelet, in bytes.
pub const MAX_MESSAGE_BYTES: u64 = 4_194_304;

/// Digits of ids.
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Returns the id of a number.
#[must_use]
pub fn id(number: u64) -> String {
    let mut digits = Vec::new();
    let mut rest = number;
    loop {
        digits.push(DIGITS[usize::try_from(rest % 36).unwrap_or(0)]);
        rest /= 36;
        if rest == 0 {
            break;
        }
    }
    digits.iter().rev().map(|digit| char::from(*digit)).collect()
}

/// Returns the number of an id, or `None` if it is not one of ours.
#[must_use]
pub fn number(id: &str) -> Option<u64> {
    let ours = !id.is_empty()
        && (id == "0" || !id.starts_with('0'))
        && id.bytes().all(|byte| DIGITS.contains(&byte));
    ours.then(|| u64::from_str_radix(id, 36).ok()).flatten()
}

/// Chooses ids for a container: `included`, then others of `available`. Ids for which `is_first`
/// holds come last. It says whether an assigned slice begins with that id, whose pod may have ended
/// unnoticed.
#[must_use]
pub fn preferred(
    available: Vec<String>,
    included: Vec<String>,
    size: usize,
    is_first: impl Fn(u64) -> bool,
) -> Vec<String> {
    let free = available.into_iter().filter(|id| !included.contains(id));
    let mut free: Vec<(bool, u64, String)> =
        free.filter_map(|id| number(&id).map(|number| (is_first(number), number, id))).collect();
    free.sort_unstable();
    let mut chosen = included;
    chosen.extend(free.into_iter().map(|(_, _, id)| id));
    chosen.truncate(size);
    chosen
}

/// Devices of a node for the kubelet. The first `healthy` ids are healthy, the others are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Devices {
    /// Units of healthy GPUs.
    pub healthy: u64,
    /// Units of all GPUs.
    pub all: u64,
}

impl Devices {
    /// Counts a node's units; zero if no pod may be placed on it.
    ///
    /// # Errors
    /// The message would exceed the kubelet's limit if every GPU became unhealthy, which takes more
    /// bytes. The error has the sizes and a unit that fits.
    pub fn of(node: &NodeGpus) -> Result<Self, Refusal> {
        let devices = Self::counted(node, |gpu| gpu.units);
        let bytes = Self { healthy: 0, ..devices }.message();
        if bytes <= MAX_MESSAGE_BYTES {
            return Ok(devices);
        }
        let unit = node.gpus.first().map_or(Unit::Gib, |gpu| gpu.unit);
        let other = Unit::ALL
            .into_iter()
            .filter(|other| other.mib() > unit.mib())
            .min_by_key(|other| other.mib());
        let advice =
            other.map_or_else(String::new, |other| format!("; count in units of {other} instead"));
        Err(Refusal::new(format!(
            "the node's {} GPUs have {} units of {unit}, whose message of {bytes} bytes exceeds \
             the kubelet's limit of {MAX_MESSAGE_BYTES}{advice}",
            node.gpus.len(),
            devices.all
        )))
    }

    /// Counts the percent of compute that can be held.
    #[must_use]
    pub fn percent(node: &NodeGpus) -> Self {
        Self::counted(node, |gpu| gpu.percent.into())
    }

    /// Counts the containers that fit, each on one GPU.
    #[must_use]
    pub fn containers(node: &NodeGpus) -> Self {
        Self::counted(node, |gpu| gpu.containers.into())
    }

    fn counted(node: &NodeGpus, of: impl Fn(&Gpu) -> u64) -> Self {
        let sum = |healthy_only: bool| {
            let gpus = node.gpus.iter().filter(|gpu| gpu.takes_pods() || !healthy_only);
            gpus.fold(0_u64, |sum, gpu| sum.saturating_add(of(gpu)))
        };
        if node.closed.is_some() {
            Self { healthy: 0, all: 0 }
        } else {
            Self { healthy: sum(true), all: sum(false) }
        }
    }

    /// Returns the size in bytes of the message (`ListAndWatchResponse`): id and health of each
    /// device, each with a tag and a length, and a tag and a length around both.
    #[must_use]
    pub fn message(self) -> u64 {
        let ids = |up_to: u64| {
            // By length of the id: 36 have one digit, 36 x 35 have two, and so on.
            let (mut bytes, mut from, mut digits) = (0_u64, 0_u64, 1_u64);
            while from < up_to {
                let last = 36_u64
                    .checked_pow(u32::try_from(digits).unwrap_or(u32::MAX))
                    .unwrap_or(u64::MAX);
                let end = last.min(up_to);
                bytes = bytes.saturating_add((end - from).saturating_mul(digits));
                (from, digits) = (end, digits + 1);
            }
            bytes
        };
        let around = |health: &str| 2 + 2 + 2 + health.len() as u64;
        let healthy = self.healthy.saturating_mul(around("Healthy"));
        let unhealthy = (self.all - self.healthy.min(self.all)).saturating_mul(around("Unhealthy"));
        ids(self.all).saturating_add(healthy).saturating_add(unhealthy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::node;
    use proptest::prelude::*;

    /// Returns the length of the message encoded as protobuf, one device at a time.
    fn encoded(devices: Devices) -> u64 {
        let mut bytes = Vec::new();
        for index in 0..devices.all {
            let health = if index < devices.healthy { "Healthy" } else { "Unhealthy" };
            let mut device = Vec::new();
            for (tag, text) in [(0x0a, id(index)), (0x12, health.to_owned())] {
                device.push(tag);
                device.push(u8::try_from(text.len()).unwrap());
                device.extend(text.bytes());
            }
            bytes.push(0x0a);
            bytes.push(u8::try_from(device.len()).unwrap());
            bytes.extend(device);
        }
        bytes.len() as u64
    }

    #[test]
    fn message_length_equals_the_encoding() {
        for (healthy, all) in [
            (0, 0),
            (1, 1),
            (36, 36),
            (37, 37),
            (1296, 1297),
            (0, 5),
            (5120, 5120),
            (40_000, 50_000),
        ] {
            let devices = Devices { healthy, all };
            assert_eq!(devices.message(), encoded(devices), "{devices:?}");
        }
    }

    #[test]
    fn devices_beyond_the_message_limit_are_refused() {
        let gpus =
            |unit: &str, mib: u64, count: usize| NodeGpus::of(&node("n", unit, &vec![mib; count]));
        assert_eq!(Devices::of(&gpus("GiB", 81920, 8)), Ok(Devices { healthy: 640, all: 640 }));
        assert_eq!(
            Devices::of(&gpus("128MiB", 81920, 8)),
            Ok(Devices { healthy: 5120, all: 5120 })
        );
        // gpushare's ids contain a UUID, so one such GPU already exceeds the limit.
        assert_eq!(Devices::of(&gpus("MiB", 81920, 2)).map(|devices| devices.all), Ok(163_840));
        assert_eq!(
            Devices::of(&gpus("MiB", 81920, 8)).unwrap_err().message(),
            "the node's 8 GPUs have 655360 units of MiB, whose message of 12403852 bytes exceeds \
             the kubelet's limit of 4194304; count in units of 128MiB instead"
        );
    }

    #[test]
    fn unhealthy_gpu_removes_its_units() {
        let mut gpus = NodeGpus::of(&node("n", "GiB", &[15109, 23028]));
        gpus.gpus[0].healthy = false;
        assert_eq!(Devices::of(&gpus), Ok(Devices { healthy: 22, all: 36 }));
        assert_eq!(Devices::percent(&gpus), Devices { healthy: 100, all: 200 });
        assert_eq!(Devices::containers(&gpus), Devices { healthy: 25, all: 50 });
        gpus.closed = Some(Refusal::new("closed"));
        let none = Devices { healthy: 0, all: 0 };
        assert_eq!((Devices::of(&gpus), Devices::containers(&gpus)), (Ok(none), none));
    }

    proptest! {
        #[test]
        fn id_round_trips(index in any::<u64>()) {
            prop_assert_eq!(number(&id(index)), Some(index));
        }

        #[test]
        fn invalid_id_has_no_number(text in ".{0,14}") {
            prop_assert!(number(&text).is_none_or(|number| id(number) == text));
        }
    }
}
