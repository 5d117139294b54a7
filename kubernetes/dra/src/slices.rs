//! ResourceSlices: the pool of a node as the API server has it, and what to write there.
//!
//! A slice has at most [`MAX_DEVICES`] devices, so a pool may need several. All slices of a pool
//! have its generation; readers ignore a pool whose slices differ in it.

use std::collections::BTreeMap;

use cgpu_client::inventory::HostDevice;
use cgpu_kubernetes_core::object::{Metadata, nullable};
use cgpu_kubernetes_core::quantity;
use cgpu_shm::units::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::DRIVER;
use crate::capacity::{CORES, MEMORY, MEMORY_STEP, WEIGHT};
use crate::device::{Details, Device, Mode, Pool};
use crate::version;

/// API group and version of the objects.
pub const API_VERSION: &str = "resource.k8s.io/v1";

/// Maximum number of devices of a slice if any of them has a taint. Without taints it would be 128;
/// one number keeps each device in its slice when a GPU fails.
const MAX_DEVICES: usize = 64;
/// Maximum length of a text attribute in bytes.
const MAX_TEXT: usize = 64;

/// Key of the taint of a device that reported an error.
pub const UNHEALTHY: &str = "gpu.cgpu.dev/unhealthy";
/// Key of the taint of a device that another plugin or driver gives out, too. Its value names that.
pub const OTHER_OWNER: &str = "gpu.cgpu.dev/other-owner";

/// A slice of ours as the API server has it. Another release may have written it in another form.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Existing {
    /// Name and version.
    pub metadata: Metadata,
    /// Its [`Spec`], if it is understood.
    pub spec: Value,
}

impl Existing {
    /// Returns its driver.
    #[must_use]
    pub fn driver(&self) -> &str {
        self.spec["driver"].as_str().unwrap_or_default()
    }

    /// Returns the UUIDs of the GPUs that its devices are, or are instances of. It may be a slice
    /// of any driver; an attribute may be named with its driver, or without.
    #[must_use]
    pub fn uuids(&self) -> Vec<String> {
        let devices = self.spec["devices"].as_array().into_iter().flatten();
        let attributes = devices.filter_map(|device| device["attributes"].as_object()).flatten();
        let named = attributes.filter(|(name, _)| {
            let bare = name.rsplit('/').next().unwrap_or(name);
            bare == "uuid" || bare == "parentUUID"
        });
        named.filter_map(|(_, value)| value["string"].as_str()).map(str::to_owned).collect()
    }

    fn generation(&self) -> i64 {
        self.spec["pool"]["generation"].as_i64().unwrap_or(0)
    }
}

/// A ResourceSlice, with the fields that cgpu writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceSlice {
    /// Name and version.
    pub metadata: Metadata,
    /// Pool and devices.
    pub spec: Spec,
}

impl ResourceSlice {
    /// Returns the object to write. It belongs to the node, so it goes with it.
    #[must_use]
    pub fn to_json(&self, node_uid: &str) -> Value {
        let mut metadata = json!({
            "name": self.metadata.name,
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "name": self.spec.node_name, "uid": node_uid,
            }],
        });
        if !self.metadata.resource_version.is_empty() {
            metadata["resourceVersion"] = json!(self.metadata.resource_version);
        }
        json!({
            "apiVersion": API_VERSION, "kind": "ResourceSlice",
            "metadata": metadata, "spec": self.spec,
        })
    }
}

/// Specification of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// [`DRIVER`].
    pub driver: String,
    /// The node that has the devices.
    #[serde(default)]
    pub node_name: String,
    /// The pool.
    pub pool: PoolReference,
    /// Devices.
    #[serde(default, deserialize_with = "nullable")]
    pub devices: Vec<Published>,
}

/// The pool of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolReference {
    /// Name: the node's.
    pub name: String,
    /// Generation: the same for all slices of the pool.
    #[serde(default)]
    pub generation: i64,
    /// Number of slices.
    pub resource_slice_count: i64,
}

/// A device as it is published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Published {
    /// Name in the pool.
    pub name: String,
    /// Attributes by name.
    #[serde(default, deserialize_with = "nullable")]
    pub attributes: BTreeMap<String, Attribute>,
    /// Capacities by name.
    #[serde(default, deserialize_with = "nullable")]
    pub capacity: BTreeMap<String, Amount>,
    /// Taints. The API server adds a time to each, which is not compared.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Whether several claims can share it.
    #[serde(default, deserialize_with = "nullable")]
    pub allow_multiple_allocations: bool,
}

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attribute {
    /// A text.
    String(String),
    /// A number.
    Int(i64),
    /// A flag.
    Bool(bool),
    /// A semantic version.
    Version(String),
}

/// A capacity: what the device has, and what a claim can consume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Amount {
    /// All of it.
    pub value: String,
    /// How requests are rounded. A cluster without consumable capacity drops it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_policy: Option<RequestPolicy>,
}

/// Rounding of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestPolicy {
    /// Amount of a claim that names none.
    pub default: String,
    /// Valid amounts.
    pub valid_range: ValidRange,
}

/// Valid amounts of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidRange {
    /// Smallest amount; less is rounded up to it.
    pub min: String,
    /// Largest amount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<String>,
    /// Amounts are `min` and multiples of the step above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// A taint of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taint {
    /// [`UNHEALTHY`].
    pub key: String,
    /// A word about it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// `NoSchedule`: claims that have the device keep it.
    pub effect: String,
}

/// What to write at the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Create a slice.
    Create(Box<ResourceSlice>),
    /// Replace a slice, on condition of its version.
    Replace(Box<ResourceSlice>),
    /// Delete the slice of this name.
    Delete(String),
}

/// Compares the slices that the API server has of this node and driver with the pool. Returns what
/// to write; nothing if they are equal.
///
/// Deletions come last: until then the pool has at least the slices of its older generation.
#[must_use]
pub fn changes<'a>(existing: impl IntoIterator<Item = &'a Existing>, pool: &Pool) -> Vec<Change> {
    let known = by_name(existing);
    let generation = known.values().map(|slice| slice.generation()).max();
    let current = slices(pool, generation.unwrap_or(1));
    if are_same(&known, &current) {
        return Vec::new();
    }
    let next = generation.map_or(1, |generation| generation.saturating_add(1));
    let mut changes: Vec<Change> = slices(pool, next)
        .into_iter()
        .map(|mut slice| match known.get(slice.metadata.name.as_str()) {
            Some(known) => {
                slice.metadata.resource_version.clone_from(&known.metadata.resource_version);
                Change::Replace(Box::new(slice))
            }
            None => Change::Create(Box::new(slice)),
        })
        .collect();
    let is_used = |name: &str| current.iter().any(|slice| slice.metadata.name == name);
    let unused = known.keys().filter(|name| !is_used(name));
    changes.extend(unused.map(|name| Change::Delete((*name).to_owned())));
    changes
}

/// Returns whether the slices are those of the pool, but without what lets claims share devices:
/// an API server without consumable capacity drops it from all that is written.
#[must_use]
pub fn are_unshared<'a>(existing: impl IntoIterator<Item = &'a Existing>, pool: &Pool) -> bool {
    let known = by_name(existing);
    let generation = known.values().map(|slice| slice.generation()).max();
    let mut current = slices(pool, generation.unwrap_or(1));
    for device in current.iter_mut().flat_map(|slice| &mut slice.spec.devices) {
        device.allow_multiple_allocations = false;
        device.capacity.values_mut().for_each(|amount| amount.request_policy = None);
    }
    current.iter().any(|slice| !slice.spec.devices.is_empty()) && are_same(&known, &current)
}

fn by_name<'a>(
    existing: impl IntoIterator<Item = &'a Existing>,
) -> BTreeMap<&'a str, &'a Existing> {
    existing.into_iter().map(|slice| (slice.metadata.name.as_str(), slice)).collect()
}

fn are_same(known: &BTreeMap<&str, &Existing>, slices: &[ResourceSlice]) -> bool {
    let is_same = |slice: &ResourceSlice| {
        let known = known.get(slice.metadata.name.as_str());
        known.is_some_and(|known| {
            Spec::deserialize(&known.spec).is_ok_and(|spec| spec == slice.spec)
        })
    };
    known.len() == slices.len() && slices.iter().all(is_same)
}

/// A device as an earlier driver has published it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    /// Its UUID, its id, and its memory as far as claims can have it.
    pub host: HostDevice,
    /// Its attributes.
    pub details: Details,
    /// Whether it had no taint of an error.
    pub healthy: bool,
}

/// Returns the devices of the latest slices. Those that are not understood are left out.
pub fn earlier_devices<'a>(existing: impl IntoIterator<Item = &'a Existing>) -> Vec<Earlier> {
    let existing: Vec<&Existing> = existing.into_iter().collect();
    let latest = existing.iter().map(|slice| slice.generation()).max();
    let latest = existing.iter().filter(|slice| Some(slice.generation()) == latest);
    let specs = latest.filter_map(|slice| Spec::deserialize(&slice.spec).ok());
    specs.flat_map(|spec| spec.devices).filter_map(|device| earlier(&device)).collect()
}

fn earlier(device: &Published) -> Option<Earlier> {
    let text = |name: &str| match device.attributes.get(name) {
        Some(Attribute::String(text)) => Some(text.clone()),
        _ => None,
    };
    let versioned = |name: &str| match device.attributes.get(name) {
        Some(Attribute::Version(version)) => Some(version.clone()),
        _ => None,
    };
    let numa_node = match device.attributes.get("numaNode") {
        Some(Attribute::Int(node)) => u32::try_from(*node).ok(),
        _ => None,
    };
    let total = quantity::whole(&device.capacity.get(MEMORY)?.value).ok()?;
    let host = HostDevice {
        uuid: text("uuid")?.parse().ok()?,
        id: Device::id_of(&device.name)?,
        total: Bytes(total),
        is_partitioned: false,
    };
    let details = Details {
        product_name: text("productName"),
        architecture: text("architecture"),
        mig_profile: text("migProfile"),
        driver_version: text("driverVersionText"),
        // Parts beyond the third were put behind `+`.
        cuda_driver_version: versioned("cudaDriverVersion").map(|text| text.replace('+', ".")),
        numa_node,
        pcie_root: text("resource.kubernetes.io/pcieRoot"),
    };
    let healthy = device.taints.iter().all(|taint| taint.key != UNHEALTHY);
    Some(Earlier { host, details, healthy })
}

/// Returns the slices of a pool. A pool without devices has one empty slice.
#[must_use]
pub fn slices(pool: &Pool, generation: i64) -> Vec<ResourceSlice> {
    let devices: Vec<Published> =
        pool.devices.iter().filter(|device| device.is_offered()).map(published).collect();
    let mut parts: Vec<Vec<Published>> = devices.chunks(MAX_DEVICES).map(<[_]>::to_vec).collect();
    if parts.is_empty() {
        parts.push(Vec::new());
    }
    let count = i64::try_from(parts.len()).unwrap_or(i64::MAX);
    let slice = |(at, devices)| ResourceSlice {
        metadata: Metadata { name: format!("{}-{DRIVER}-{at}", pool.node), ..Metadata::default() },
        spec: Spec {
            driver: DRIVER.to_owned(),
            node_name: pool.node.clone(),
            pool: PoolReference {
                name: pool.node.clone(),
                generation,
                resource_slice_count: count,
            },
            devices,
        },
    };
    parts.into_iter().enumerate().map(slice).collect()
}

fn published(device: &Device) -> Published {
    let taint = |key: &str, value: String| Taint {
        key: key.to_owned(),
        value,
        effect: "NoSchedule".to_owned(),
    };
    let unhealthy = (!device.healthy).then(|| taint(UNHEALTHY, String::new()));
    let owned = device.other_owner.as_ref().map(|owner| taint(OTHER_OWNER, owner.label()));
    Published {
        name: device.name(),
        attributes: attributes(device),
        capacity: capacity(device),
        taints: unhealthy.into_iter().chain(owned).collect(),
        allow_multiple_allocations: true,
    }
}

fn attributes(device: &Device) -> BTreeMap<String, Attribute> {
    let text = |text: &str| Attribute::String(cut(text).to_owned());
    let (host, details) = (&device.host, &device.details);
    let mut attributes = BTreeMap::from([
        ("uuid".to_owned(), text(&host.name())),
        ("index".to_owned(), Attribute::Int(host.id.gpu().into())),
        ("type".to_owned(), text(if host.id.is_instance() { "mig" } else { "gpu" })),
        ("mode".to_owned(), text(device.mode.name())),
    ]);
    let texts = [
        ("productName", &details.product_name),
        ("architecture", &details.architecture),
        ("migProfile", &details.mig_profile),
        ("driverVersionText", &details.driver_version),
        ("resource.kubernetes.io/pcieRoot", &details.pcie_root),
    ];
    for (name, value) in texts {
        attributes.extend(value.as_ref().map(|value| (name.to_owned(), text(value))));
    }
    let versions = [
        ("driverVersion", &details.driver_version),
        ("cudaDriverVersion", &details.cuda_driver_version),
    ];
    for (name, value) in versions {
        let version = value.as_ref().and_then(|value| version::semantic(cut(value)));
        attributes.extend(version.map(|version| (name.to_owned(), Attribute::Version(version))));
    }
    let node = details.numa_node.map(|node| Attribute::Int(node.into()));
    attributes.extend(node.map(|node| ("numaNode".to_owned(), node)));
    attributes
}

fn capacity(device: &Device) -> BTreeMap<String, Amount> {
    let all = device.capacity();
    let weight = u64::from(all.weight);
    let memory = Amount {
        value: written(all.memory),
        request_policy: Some(RequestPolicy {
            default: written(all.memory),
            valid_range: ValidRange {
                min: written(MEMORY_STEP),
                max: None,
                step: Some(written(MEMORY_STEP)),
            },
        }),
    };
    let whole = |value: u64, default: u64, most: u64| Amount {
        value: value.to_string(),
        request_policy: Some(RequestPolicy {
            default: default.to_string(),
            valid_range: ValidRange {
                min: "1".to_owned(),
                max: Some(most.to_string()),
                step: Some("1".to_owned()),
            },
        }),
    };
    let mut capacity = BTreeMap::from([(MEMORY.to_owned(), memory)]);
    match device.mode {
        Mode::Weight => {
            capacity.insert(WEIGHT.to_owned(), whole(weight, 1, weight));
        }
        Mode::Cores => {
            // Each claim takes one place, and by default what a place is worth.
            let place = 100 / weight.max(1);
            capacity.insert(WEIGHT.to_owned(), whole(weight, 1, 1));
            capacity.insert(CORES.to_owned(), whole(100, place, 100));
        }
    }
    capacity
}

/// Cuts a text to what an attribute holds, between characters.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

/// Writes bytes as the API server writes them: with the largest suffix that leaves a whole number.
/// Another form would differ from what is read back.
fn written(bytes: u64) -> String {
    let suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let (mut value, mut at) = (bytes, 0);
    while value >= 1024 && value.is_multiple_of(1024) && at + 1 < suffixes.len() {
        (value, at) = (value / 1024, at + 1);
    }
    format!("{value}{}", suffixes[at])
}

#[cfg(test)]
mod tests;
