//! Claims for requests in the old resource names.
//!
//! A policy of the API server replaces such a request by a claim, and writes only the name of the
//! claim's template. The name says the amounts, `cgpu-memory-8192mi-cores-30-gpus-1`, so the
//! controller makes the template from the name alone.

use cgpu_kubernetes_core::resource_request::MAX_GPUS;
use serde_json::{Value, json};

use crate::DRIVER;
use crate::capacity::{CORES, MEMORY};

/// Name of the only request in a claim.
const REQUEST: &str = "gpu";
/// Class of the devices.
const CLASS: &str = "cgpu";
/// Most MiB: 2^32 - 1 units of 1 GiB fit, and the bytes fit into a quantity.
const MAX_MIB: u64 = 1 << 42;

/// What a container requests of each of its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimRequest {
    /// MiB of memory; none for all of it.
    pub mib: Option<u64>,
    /// Percent of compute; none where weights decide.
    pub cores: Option<u32>,
    /// Number of GPUs.
    pub gpus: usize,
}

impl ClaimRequest {
    /// Returns the request that a template's name says. Each request has one name; any other name
    /// is not one of ours.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let words: Vec<&str> = name.strip_prefix("cgpu-")?.split('-').collect();
        let (memory, cores, gpus) = match words[..] {
            ["memory", memory, "cores", cores, "gpus", gpus] => (Some(memory), Some(cores), gpus),
            ["memory", memory, "gpus", gpus] => (Some(memory), None, gpus),
            ["cores", cores, "gpus", gpus] => (None, Some(cores), gpus),
            ["gpus", gpus] => (None, None, gpus),
            _ => return None,
        };
        let mib = |text: &str| text.strip_suffix("mi")?.parse().ok();
        let request = Self {
            mib: memory.map(|text| mib(text).ok_or(())).transpose().ok()?,
            cores: cores.map(str::parse).transpose().ok()?,
            gpus: gpus.parse().ok()?,
        };
        (request.is_valid() && request.name() == name).then_some(request)
    }

    fn is_valid(&self) -> bool {
        self.mib.is_none_or(|mib| (1..=MAX_MIB).contains(&mib))
            && self.cores.is_none_or(|cores| (1..=100).contains(&cores))
            && (1..=MAX_GPUS).contains(&self.gpus)
    }

    /// Returns the name of its template.
    #[must_use]
    pub fn name(&self) -> String {
        let part = |amount: Option<String>| amount.unwrap_or_default();
        let memory = part(self.mib.map(|mib| format!("memory-{mib}mi-")));
        let cores = part(self.cores.map(|cores| format!("cores-{cores}-")));
        format!("cgpu-{memory}{cores}gpus-{}", self.gpus)
    }

    /// Returns the specification of its template. Several GPUs are different ones.
    #[must_use]
    pub fn template(&self) -> Value {
        let mut capacity = serde_json::Map::new();
        capacity.extend(self.mib.map(|mib| (MEMORY.to_owned(), json!(format!("{mib}Mi")))));
        capacity.extend(self.cores.map(|cores| (CORES.to_owned(), json!(cores.to_string()))));
        let mut device = json!({
            "deviceClassName": CLASS, "allocationMode": "ExactCount", "count": self.gpus,
        });
        if !capacity.is_empty() {
            device["capacity"] = json!({ "requests": capacity });
        }
        let mut devices = json!({ "requests": [{ "name": REQUEST, "exactly": device }] });
        if self.gpus > 1 {
            let uuid = format!("{DRIVER}/uuid");
            devices["constraints"] = json!([{ "requests": [REQUEST], "distinctAttribute": uuid }]);
        }
        json!({ "spec": { "devices": devices } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn template_has_the_amounts_of_its_name() {
        let template = |name: &str| ClaimRequest::named(name).expect("a request").template();
        assert_eq!(
            template("cgpu-memory-8192mi-cores-30-gpus-1"),
            json!({"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {
                "deviceClassName": "cgpu", "allocationMode": "ExactCount", "count": 1,
                "capacity": {"requests": {"memory": "8192Mi", "cores": "30"}},
            }}]}}})
        );
        assert_eq!(
            template("cgpu-gpus-2"),
            json!({"spec": {"devices": {
                "requests": [{"name": "gpu", "exactly": {
                    "deviceClassName": "cgpu", "allocationMode": "ExactCount", "count": 2,
                }}],
                "constraints": [{"requests": ["gpu"], "distinctAttribute": "gpu.cgpu.dev/uuid"}],
            }}})
        );
    }

    #[test]
    fn names_that_are_not_canonical_or_too_large_have_no_template() {
        for name in [
            "",
            "cgpu",
            "cgpu-",
            "cgpu-gpus-",
            "cgpu-gpus-0",
            "cgpu-gpus-01",
            "cgpu-gpus-+1",
            "cgpu-gpus-17",
            "cgpu-gpus-99999999999999999999999",
            "cgpu-gpus-1-",
            "cgpu-gpus-1.x",
            "xcgpu-gpus-1",
            "CGPU-gpus-1",
            "cgpu-memory-0mi-gpus-1",
            "cgpu-memory-8192-gpus-1",
            "cgpu-memory-8192Mi-gpus-1",
            "cgpu-memory-4398046511105mi-gpus-1",
            "cgpu-memory-99999999999999999999999mi-gpus-1",
            "cgpu-memory--1mi-gpus-1",
            "cgpu-memory-8192mi",
            "cgpu-cores-0-gpus-1",
            "cgpu-cores-101-gpus-1",
            "cgpu-cores-30-memory-8192mi-gpus-1",
            "cgpu-memory-8192mi-memory-8192mi-gpus-1",
        ] {
            assert_eq!(ClaimRequest::named(name), None, "{name}");
        }
        assert!(ClaimRequest::named("cgpu-memory-4398046511104mi-cores-100-gpus-16").is_some());
    }

    proptest! {
        #[test]
        fn name_of_a_request_says_the_request(
            mib in proptest::option::of(1_u64..=MAX_MIB),
            cores in proptest::option::of(1_u32..=100),
            gpus in 1_usize..=MAX_GPUS,
        ) {
            let request = ClaimRequest { mib, cores, gpus };
            let name = request.name();
            prop_assert_eq!(ClaimRequest::named(&name), Some(request));
            prop_assert!(name.len() <= 63, "{}", name);
        }

        #[test]
        fn any_name_has_no_request_or_is_its_name(
            name in "cgpu-(memory-[0-9]{0,14}(mi)?-)?(cores-[+0-9]{0,4}-)?gpus-[0-9]{0,3}",
        ) {
            if let Some(request) = ClaimRequest::named(&name) {
                prop_assert_eq!(request.name(), name);
                prop_assert!(request.template().to_string().len() < 1024);
            }
        }
    }
}
