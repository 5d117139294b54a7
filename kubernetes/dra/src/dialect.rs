//! Claims for requests in the old resource names.
//!
//! A policy of the API server replaces such a request by a claim, and writes only the name of the
//! claim's template. The name says the amounts, `cgpu-memory-8192mi-cores-30-gpus-1`, so the
//! controller makes the template from the name alone.

use cgpu_kubernetes_core::resource_request::MAX_GPUS;
use cgpu_shm::limits::MAX_WEIGHT;
use serde_json::{Value, json};

use crate::DRIVER;
use crate::capacity::{CORES, MEMORY, WEIGHT};
use crate::config;

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
    /// Part of the compute.
    pub compute: Compute,
    /// Whether its container has high priority.
    pub high_priority: bool,
    /// Number of GPUs.
    pub gpus: usize,
}

/// Part of a GPU's compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Compute {
    /// A weight, on GPUs without fixed percentages. 1 if nothing is requested.
    Weight(u32),
    /// A fixed percentage.
    Cores(u32),
}

impl ClaimRequest {
    /// Returns the request that a template's name says. Each request has one name; any other name
    /// is not one of ours.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let mut words = name.strip_prefix("cgpu-")?.split('-').peekable();
        // What cannot be parsed is left out, so that the name differs at the end.
        let mut amount = |word| words.next_if_eq(&word).and_then(|_| words.next());
        let mib = amount("memory").and_then(|text| text.strip_suffix("mi")?.parse().ok());
        let cores = amount("cores").and_then(|text| text.parse().ok());
        let weight = amount("weight").and_then(|text| text.parse().ok());
        let high_priority = words.next_if_eq(&"high").is_some();
        let gpus = words.next_if_eq(&"gpus").and_then(|_| words.next()?.parse().ok())?;
        let compute = cores.map_or(Compute::Weight(weight.unwrap_or(1)), Compute::Cores);
        let request = Self { mib, compute, high_priority, gpus };
        (request.is_valid() && request.name() == name).then_some(request)
    }

    fn is_valid(&self) -> bool {
        let compute = match self.compute {
            Compute::Weight(weight) => (1..=MAX_WEIGHT).contains(&weight),
            Compute::Cores(cores) => (1..=100).contains(&cores),
        };
        self.mib.is_none_or(|mib| (1..=MAX_MIB).contains(&mib))
            && compute
            && (1..=MAX_GPUS).contains(&self.gpus)
    }

    /// Returns the name of its template.
    #[must_use]
    pub fn name(&self) -> String {
        let memory = self.mib.map(|mib| format!("memory-{mib}mi-")).unwrap_or_default();
        let compute = match self.compute {
            Compute::Weight(1) => String::new(),
            Compute::Weight(weight) => format!("weight-{weight}-"),
            Compute::Cores(cores) => format!("cores-{cores}-"),
        };
        let priority = if self.high_priority { "high-" } else { "" };
        format!("cgpu-{memory}{compute}{priority}gpus-{}", self.gpus)
    }

    /// Returns the specification of its template. Several GPUs are different ones.
    #[must_use]
    pub fn template(&self) -> Value {
        let mut capacity = serde_json::Map::new();
        capacity.extend(self.mib.map(|mib| (MEMORY.to_owned(), json!(format!("{mib}Mi")))));
        let (name, amount) = match self.compute {
            Compute::Weight(weight) => (WEIGHT, weight),
            Compute::Cores(cores) => (CORES, cores),
        };
        if self.compute != Compute::Weight(1) {
            capacity.insert(name.to_owned(), json!(amount.to_string()));
        }
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
        if self.high_priority {
            let parameters = json!({
                "apiVersion": config::API_VERSION, "kind": config::KIND, "highPriority": true,
            });
            devices["config"] = json!([{
                "requests": [REQUEST], "opaque": { "driver": DRIVER, "parameters": parameters },
            }]);
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
    fn weight_and_priority_are_capacity_and_configuration() {
        let name = "cgpu-memory-128mi-weight-3-high-gpus-1";
        let template = ClaimRequest::named(name).expect("a request").template();
        let devices = &template["spec"]["devices"];
        let capacity = &devices["requests"][0]["exactly"]["capacity"]["requests"];
        assert_eq!(capacity, &json!({"memory": "128Mi", "weight": "3"}));
        // The scheduler copies the configuration into the allocation.
        let mut entry = devices["config"][0].clone();
        entry["source"] = json!("FromClaim");
        let entry = serde_json::from_value(entry).expect("a configuration");
        let settings = config::settings(&[entry], REQUEST).expect("it is understood");
        assert!(settings.high_priority);
        let plain = ClaimRequest::named("cgpu-gpus-1").expect("a request").template();
        assert!(plain["spec"]["devices"]["config"].is_null());
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
            "cgpu-weight-1-gpus-1",
            "cgpu-weight-26-gpus-1",
            "cgpu-weight-x-gpus-1",
            "cgpu-cores-30-weight-2-gpus-1",
            "cgpu-high-memory-1mi-gpus-1",
            "cgpu-high-1-gpus-1",
            "cgpu-gpus-1-high",
            "cgpu-cores-0-gpus-1",
            "cgpu-cores-101-gpus-1",
            "cgpu-cores-30-memory-8192mi-gpus-1",
            "cgpu-memory-8192mi-memory-8192mi-gpus-1",
        ] {
            assert_eq!(ClaimRequest::named(name), None, "{name}");
        }
        for name in [
            "cgpu-memory-4398046511104mi-cores-100-high-gpus-16",
            "cgpu-memory-1mi-weight-25-gpus-1",
        ] {
            assert!(ClaimRequest::named(name).is_some(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn name_of_a_request_says_the_request(
            mib in proptest::option::of(1_u64..=MAX_MIB),
            compute in prop_oneof![
                (1..=MAX_WEIGHT).prop_map(Compute::Weight),
                (1_u32..=100).prop_map(Compute::Cores),
            ],
            high_priority: bool,
            gpus in 1_usize..=MAX_GPUS,
        ) {
            let request = ClaimRequest { mib, compute, high_priority, gpus };
            let name = request.name();
            prop_assert_eq!(ClaimRequest::named(&name), Some(request));
            prop_assert!(name.len() <= 63, "{}", name);
        }

        #[test]
        fn any_name_has_no_request_or_is_its_name(
            name in "cgpu-(memory-[0-9]{0,14}(mi)?-)?(cores-[+0-9]{0,4}-)?\
                (weight-[0-9]{0,2}-)?(high-)?gpus-[0-9]{0,3}",
        ) {
            if let Some(request) = ClaimRequest::named(&name) {
                prop_assert_eq!(request.name(), name);
                prop_assert!(request.template().to_string().len() < 1024);
            }
        }
    }
}
