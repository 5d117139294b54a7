//! Claims of GPUs (dynamic resource allocation): the devices that nodes publish, what claims
//! consume of them, and why a claim is not allocated.
//!
//! ```text
//!   ResourceSlices --> devices --+--> overview (tables, data)
//!   claims ----------> consumed -+
//!   classes, requests --> selector, room --> obstacle: why a claim is not allocated
//! ```
//!
//! All of it is pure. The decisions are the scheduler's; they are repeated here to explain them.

pub(crate) mod object;
pub(crate) mod obstacle;
pub(crate) mod overview;
pub(crate) mod room;
pub(crate) mod selector;

use std::collections::BTreeMap;

use cgpu_kubernetes_core::quantity;
use cgpu_kubernetes_dra::DRIVER;
use cgpu_kubernetes_dra::claim::{AllocationResult, Configuration};
use cgpu_kubernetes_dra::slices::{Attribute, Published, Spec, Taint};
use serde::Deserialize;

use object::{DeviceRequest, ObservedClaim, ObservedDeviceClass, ObservedSlice, Selector};

/// A device as its node publishes it, and what claims consume of it.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) pool: String,
    pub(crate) published: Published,
    /// Amounts of its capacities, by name.
    pub(crate) consumed: BTreeMap<String, u64>,
    /// Number of results that have a part of it.
    pub(crate) shares: u64,
    /// Results without amounts: they have all of it.
    pub(crate) whole: u64,
}

impl Device {
    /// Returns its pool, which has the node's name, and its own name.
    pub(crate) fn title(&self) -> String {
        format!("{}/{}", self.pool, self.published.name)
    }

    /// Returns all of a capacity; none if it has no such capacity.
    pub(crate) fn total(&self, capacity: &str) -> Option<u64> {
        self.published.capacity.get(capacity).and_then(|it| quantity::whole(&it.value).ok())
    }

    /// Returns what claims consume of a capacity.
    pub(crate) fn consumed(&self, capacity: &str) -> u64 {
        match self.whole {
            0 => self.consumed.get(capacity).copied().unwrap_or(0),
            _ => self.total(capacity).unwrap_or(0),
        }
    }

    /// Returns an attribute that is a text.
    pub(crate) fn text(&self, attribute: &str) -> &str {
        match self.published.attributes.get(attribute) {
            Some(Attribute::String(text)) => text,
            _ => "",
        }
    }
}

/// The claims of a cluster, and the devices of cgpu's driver.
#[derive(Default)]
pub(crate) struct Claims {
    /// Devices by pool and name.
    pub(crate) devices: Vec<Device>,
    /// Pools with slices that are missing or not understood: the scheduler ignores them.
    pub(crate) incomplete: Vec<String>,
    pub(crate) classes: BTreeMap<String, ObservedDeviceClass>,
    /// Claims by namespace and name.
    pub(crate) claims: Vec<ObservedClaim>,
}

impl Claims {
    pub(crate) fn new(
        slices: &[ObservedSlice],
        classes: Vec<ObservedDeviceClass>,
        mut claims: Vec<ObservedClaim>,
    ) -> Self {
        let (mut devices, incomplete) = devices(slices);
        let name = |device: &Device| (device.pool.clone(), device.published.name.clone());
        let positions: BTreeMap<(String, String), usize> =
            devices.iter().enumerate().map(|(at, device)| (name(device), at)).collect();
        for result in claims.iter().flat_map(results).filter(|result| !result.admin_access) {
            let position = positions.get(&(result.pool.clone(), result.device.clone()));
            let Some(device) = position.and_then(|at| devices.get_mut(*at)) else { continue };
            device.shares += 1;
            device.whole += u64::from(result.consumed_capacity.is_empty());
            for (name, amount) in &result.consumed_capacity {
                let sum = device.consumed.entry(bare(name).to_owned()).or_default();
                *sum = sum.saturating_add(quantity::whole(&amount.0).unwrap_or(0));
            }
        }
        claims.sort_by_cached_key(|claim| {
            (claim.metadata.namespace.clone(), claim.metadata.name.clone())
        });
        let classes = classes.into_iter().map(|class| (class.metadata.name.clone(), class));
        Self { devices, incomplete, classes: classes.collect(), claims }
    }

    /// Returns the devices of a pool.
    pub(crate) fn pool(&self, name: &str) -> &[Device] {
        let start = self.devices.partition_point(|device| device.pool.as_str() < name);
        let rest = &self.devices[start..];
        &rest[..rest.partition_point(|device| device.pool == name)]
    }

    /// Returns whether a node publishes devices.
    pub(crate) fn has_pool(&self, name: &str) -> bool {
        !self.pool(name).is_empty() || self.incomplete.iter().any(|pool| pool == name)
    }

    pub(crate) fn claim(&self, namespace: &str, name: &str) -> Option<&ObservedClaim> {
        let key = (namespace, name);
        let position = self.claims.binary_search_by_key(&key, |claim| {
            (claim.metadata.namespace.as_str(), claim.metadata.name.as_str())
        });
        position.ok().map(|at| &self.claims[at])
    }

    /// Returns whether a class is about GPUs of cgpu.
    pub(crate) fn has_class(&self) -> bool {
        self.classes.keys().any(|name| self.is_class_ours(name))
    }

    /// Returns whether a claim is about GPUs of cgpu: it has one, names the driver, or names a
    /// class that does or that does not exist.
    pub(crate) fn is_ours(&self, claim: &ObservedClaim) -> bool {
        if claim.status.allocation.is_some() {
            return results(claim).next().is_some();
        }
        let devices = &claim.spec.devices;
        let mut alternatives = devices.requests.iter().flat_map(DeviceRequest::alternatives);
        devices.config.iter().any(is_for_driver)
            || alternatives.any(|(_, it)| {
                self.is_class_ours(&it.device_class_name) || names_driver(&it.selectors)
            })
    }

    /// Returns whether a class is about GPUs of cgpu, or does not exist.
    fn is_class_ours(&self, name: &str) -> bool {
        self.classes.get(name).is_none_or(|class| {
            names_driver(&class.spec.selectors) || class.spec.config.iter().any(is_for_driver)
        })
    }
}

fn names_driver(selectors: &[Selector]) -> bool {
    selectors.iter().any(|it| it.cel.expression.contains(DRIVER))
}

fn is_for_driver(entry: &Configuration) -> bool {
    entry.opaque.as_ref().is_some_and(|opaque| opaque.driver == DRIVER)
}

/// Returns the results of a claim that are devices of cgpu's driver.
pub(crate) fn results(claim: &ObservedClaim) -> impl Iterator<Item = &AllocationResult> {
    let all = claim.status.allocation.iter().flat_map(|allocation| &allocation.devices.results);
    all.filter(|result| result.driver == DRIVER)
}

/// Returns a taint as kubectl writes it: `key=value:effect`.
fn taint(taint: &Taint) -> String {
    let equals = if taint.value.is_empty() { "" } else { "=" };
    format!("{}{equals}{}:{}", taint.key, taint.value, taint.effect)
}

/// Returns the name of a capacity without the driver's domain.
fn bare(name: &str) -> &str {
    name.strip_prefix(DRIVER).and_then(|name| name.strip_prefix('/')).unwrap_or(name)
}

/// Returns the devices of the newest generation of each pool, and the names of incomplete pools.
fn devices(slices: &[ObservedSlice]) -> (Vec<Device>, Vec<String>) {
    let mut pools: BTreeMap<&str, Vec<(i64, Option<Spec>)>> = BTreeMap::new();
    for slice in slices.iter().filter(|slice| slice.spec["driver"] == DRIVER) {
        let pool = &slice.spec["pool"];
        let name = pool["name"].as_str().unwrap_or_default();
        let generation = pool["generation"].as_i64().unwrap_or(0);
        pools.entry(name).or_default().push((generation, Spec::deserialize(&slice.spec).ok()));
    }
    let (mut devices, mut incomplete) = (Vec::new(), Vec::new());
    for (name, slices) in pools {
        let newest = slices.iter().map(|(generation, _)| *generation).max();
        let newest: Vec<Option<Spec>> = slices
            .into_iter()
            .filter(|(generation, _)| Some(*generation) == newest)
            .map(|(_, spec)| spec)
            .collect();
        let expected = newest.iter().flatten().map(|spec| spec.pool.resource_slice_count).max();
        let is_complete =
            newest.iter().all(Option::is_some) && expected == i64::try_from(newest.len()).ok();
        if !is_complete {
            incomplete.push(name.to_owned());
            continue;
        }
        devices.extend(newest.into_iter().flatten().flat_map(|spec| spec.devices).map(
            |published| Device {
                pool: name.to_owned(),
                published,
                consumed: BTreeMap::new(),
                shares: 0,
                whole: 0,
            },
        ));
    }
    devices.sort_by_cached_key(|device| (device.pool.clone(), natural(&device.published.name)));
    (devices, incomplete)
}

/// Orders `gpu-2` before `gpu-10`.
fn natural(name: &str) -> Vec<(u64, String)> {
    name.split('-').map(|part| (part.parse().unwrap_or(0), part.to_owned())).collect()
}
