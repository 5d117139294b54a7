//! The GPUs of a node, each with its own size.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::names::{COUNT, MEMORY, annotation, label};
use crate::object::Node;
use crate::quantity;
use crate::refusal::{Refusal, quoted};
use crate::share::Share;
use crate::unit::Unit;

/// Maximum number of containers on a GPU: the monitor can give turns to so many.
pub const MAX_CONTAINERS: u32 = 25;

/// Maximum number of GPUs of a node.
const MAX_GPUS_OF_NODE: u32 = 64;

/// A GPU of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Index on the node.
    pub index: u32,
    /// UUID, if the device plugin has reported it.
    pub uuid: Option<String>,
    /// Name of the product, if the device plugin has reported it.
    pub product: Option<String>,
    /// Where it is in the machine.
    pub locality: Locality,
    /// Memory in units.
    pub units: u64,
    /// Unit of memory.
    pub unit: Unit,
    /// Memory in MiB, if the device plugin has reported it.
    pub mib: Option<u64>,
    /// Percent of compute that pods can hold.
    pub percent: u32,
    /// Number of containers that fit.
    pub containers: u32,
    /// Whether it works, as far as its node knows.
    pub healthy: bool,
    /// Whether a ConfigMap takes it out ([`crate::cordon`]).
    pub cordoned: bool,
    /// The device plugin's resource, or the driver, that gives out this GPU as well.
    pub other_owner: Option<String>,
}

impl Gpu {
    /// Returns a GPU of which only the size is known. With 0 units it is unhealthy.
    #[must_use]
    pub fn plain(index: u32, units: u64) -> Self {
        Self {
            index,
            uuid: None,
            product: None,
            locality: Locality::default(),
            units,
            unit: Unit::Gib,
            mib: None,
            percent: 100,
            containers: MAX_CONTAINERS,
            // A GPU smaller than one unit has nothing to share.
            healthy: units > 0,
            cordoned: false,
            other_owner: None,
        }
    }

    /// Returns whether new pods are placed on it.
    #[must_use]
    pub fn takes_pods(&self) -> bool {
        self.healthy && !self.cordoned && self.other_owner.is_none()
    }

    /// Returns all of the GPU.
    #[must_use]
    pub fn whole(&self) -> Share {
        Share { units: self.units, percent: self.percent, containers: self.containers }
    }
}

/// Which of the fitting GPUs is taken first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The fullest, so that other GPUs stay empty.
    #[default]
    Binpack,
    /// The emptiest, so that pods share GPUs with few others.
    Spread,
}

impl Placement {
    /// Returns the placement of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "binpack" => Some(Self::Binpack),
            "spread" => Some(Self::Spread),
            _ => None,
        }
    }
}

/// Inventory that the device plugin writes on its node, in `cgpu.dev/gpus`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// Unit of memory.
    pub unit: Unit,
    /// GPUs by index.
    pub gpus: Vec<Entry>,
}

/// Where a GPU is in its machine, as far as the kernel knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locality {
    /// NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// PCIe root, such as `pci0000:3a`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_root: Option<String>,
}

/// A GPU in the inventory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// UUID.
    pub uuid: String,
    /// Memory in MiB.
    pub mib: u64,
    /// Whether new pods are placed on it.
    #[serde(default = "default_healthy")]
    pub healthy: bool,
    /// The device plugin's resource, or the driver, that gives out this GPU as well. No new pods
    /// are placed on it either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_owner: Option<String>,
    /// Name of the product.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// Where it is in the machine.
    #[serde(flatten)]
    pub locality: Locality,
}

/// What the containers of a pod hold of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldPart {
    /// Memory in MiB.
    pub mib: u64,
    /// Percent of its compute.
    pub percent: u32,
    /// Number of containers.
    pub containers: u32,
}

/// What the containers of a pod hold that live on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldPod {
    /// `namespace/name`.
    pub pod: String,
    /// By the index of the GPU.
    pub gpus: BTreeMap<u32, HeldPart>,
    /// What holds the memory limit of each container, by its name: `driver`,
    /// `driver_except_managed`, `partial`, `shim`. Of several GPUs, the weakest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub walls: BTreeMap<String, String>,
    /// Why the driver does not hold it, by the container's name: `old_driver`, `mig` and others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", rename = "wallReasons")]
    pub wall_reasons: BTreeMap<String, String>,
}

/// What containers hold that live on a node, by the uid of their pod: the device plugin writes it
/// on its node, in `cgpu.dev/held`.
pub type Held = BTreeMap<String, HeldPod>;

fn default_healthy() -> bool {
    true
}

/// A node, reduced to what concerns its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeGpus {
    /// Name.
    pub name: String,
    /// First internal address.
    pub address: String,
    /// GPUs by index.
    pub gpus: Vec<Gpu>,
    /// Which GPU is taken first.
    pub placement: Placement,
    /// Whether containers are held to their limits.
    pub isolated: bool,
    /// Why no pod may be placed here.
    pub closed: Option<Refusal>,
    /// Labels that were ignored, as messages.
    pub notes: Vec<String>,
    /// What containers hold that live on the node. A pod that has no object any more counts by it.
    pub held: Held,
    /// Whether its kubelet reports that it is ready. If not, `held` may be outdated.
    pub ready: bool,
}

impl NodeGpus {
    /// Reads the GPUs from a node's annotation, or else from its resources.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        let labels = &node.metadata.labels;
        let text = |name: &str| labels.get(name).map(String::as_str);
        let address = node.status.addresses.iter().find(|address| address.kind == "InternalIP");
        let mut notes = Vec::new();
        let placement = text(label::PLACEMENT).map_or(Placement::default(), |name| {
            Placement::named(name).unwrap_or_else(|| {
                notes.push(format!(
                    "the label {} is {}, expected `binpack` or `spread`; it counts as `binpack`",
                    label::PLACEMENT,
                    quoted(name)
                ));
                Placement::Binpack
            })
        });
        let (gpus, held, unreadable) = match gpus_of(node).and_then(|gpus| Ok((gpus, held(node)?)))
        {
            Ok((gpus, held)) => (gpus, held, None),
            Err(refusal) => (Vec::new(), Held::new(), Some(refusal)),
        };
        let mode = Mode::of(text(label::SCHEDULE));
        let closed = unreadable.or_else(|| {
            let excluded = text(label::SHARED) == Some("false");
            match (&mode, excluded) {
                (_, true) => Some(Refusal::new("the node's label gpushare is `false`")),
                (Mode::Other(name), _) => Some(Refusal::new(format!(
                    "the node's label {} is {}, expected `cgpu`, `core_mem` or `share`",
                    label::SCHEDULE,
                    quoted(name)
                ))),
                _ if gpus.is_empty() => Some(Refusal::new("the node has no GPUs to share")),
                _ => None,
            }
        });
        let percent = if matches!(mode, Mode::Both) { 100 } else { 0 };
        Self {
            name: node.metadata.name.clone(),
            address: address
                .map_or_else(|| "unknown".to_owned(), |address| address.address.clone()),
            gpus: gpus.into_iter().map(|gpu| Gpu { percent, ..gpu }).collect(),
            placement,
            isolated: !matches!(mode, Mode::Share) && text(label::NO_ISOLATION) != Some("true"),
            closed,
            notes,
            held,
            ready: node
                .status
                .conditions
                .iter()
                .all(|it| it.kind != "Ready" || it.status == "True"),
        }
    }

    /// Returns the units of all GPUs.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.gpus.iter().fold(0, |sum, gpu| sum.saturating_add(gpu.units))
    }

    /// Returns the GPU of this index.
    #[must_use]
    pub fn gpu(&self, index: u32) -> Option<&Gpu> {
        self.gpus.get(usize::try_from(index).ok()?)
    }
}

/// How a node's GPUs are shared, from its label.
enum Mode<'a> {
    /// Memory and compute are limited.
    Both,
    /// Memory is limited; compute is shared.
    Memory,
    /// Nothing is limited.
    Share,
    /// The node is not for cgpu.
    Other(&'a str),
}

impl<'a> Mode<'a> {
    fn of(label: Option<&'a str>) -> Self {
        match label {
            None | Some("core_mem") => Self::Both,
            Some("cgpu") => Self::Memory,
            Some("share") => Self::Share,
            Some(other) => Self::Other(other),
        }
    }
}

fn gpus_of(node: &Node) -> Result<Vec<Gpu>, Refusal> {
    match node.metadata.annotations.get(annotation::GPUS) {
        Some(text) => listed(text),
        None => divided(node),
    }
}

/// Reads what containers hold.
fn held(node: &Node) -> Result<Held, Refusal> {
    let Some(text) = node.metadata.annotations.get(annotation::HELD) else {
        return Ok(Held::new());
    };
    serde_json::from_str(text).map_err(|error| {
        Refusal::new(format!(
            "the node's annotation {} is not what the device plugin writes ({error}); remove it; \
             the device plugin writes it again",
            annotation::HELD
        ))
    })
}

/// Reads the inventory of our device plugin.
fn listed(text: &str) -> Result<Vec<Gpu>, Refusal> {
    let refuse = |why: String| {
        Refusal::new(format!(
            "the node's annotation {} {why}; remove it; the device plugin writes it again",
            annotation::GPUS
        ))
    };
    let inventory: Inventory = serde_json::from_str(text)
        .map_err(|error| refuse(format!("is not what the device plugin writes ({error})")))?;
    if inventory.gpus.len() > MAX_GPUS_OF_NODE as usize {
        return Err(refuse(format!(
            "lists {} GPUs, expected at most {MAX_GPUS_OF_NODE}",
            inventory.gpus.len()
        )));
    }
    let names: BTreeSet<&str> = inventory.gpus.iter().map(|entry| entry.uuid.as_str()).collect();
    if names.len() < inventory.gpus.len() {
        return Err(refuse("lists a GPU twice".to_owned()));
    }
    let unit = inventory.unit;
    let gpu = |(index, entry): (u32, Entry)| {
        let plain = Gpu::plain(index, unit.units_of(entry.mib));
        let healthy = entry.healthy && plain.healthy;
        let Entry { uuid, mib, other_owner, product, locality, .. } = entry;
        let (uuid, mib) = (Some(uuid), Some(mib));
        Gpu { uuid, unit, mib, healthy, other_owner, product, locality, ..plain }
    };
    Ok((0..).zip(inventory.gpus).map(gpu).collect())
}

/// Reads what gpushare's device plugin writes: total units and a number of GPUs. All GPUs are
/// assumed to be equal.
fn divided(node: &Node) -> Result<Vec<Gpu>, Refusal> {
    let number = |name: &str| match node.status.allocatable.get(name) {
        None => Ok(0),
        Some(written) => quantity::whole(&written.0).map_err(|invalid| {
            Refusal::new(invalid.of(&format!("{name} of the node"), &written.0))
        }),
    };
    let (units, count) = (number(MEMORY)?, number(COUNT)?);
    if units == 0 {
        return Ok(Vec::new());
    }
    let Some(count) =
        u32::try_from(count).ok().filter(|count| (1..=MAX_GPUS_OF_NODE).contains(count))
    else {
        return Err(Refusal::new(format!(
            "{COUNT} of the node is {count}, expected 1 to {MAX_GPUS_OF_NODE} GPUs for its {units} \
             units"
        )));
    };
    let each = units / u64::from(count);
    // gpushare does not report the unit. Its own table guesses in the same way.
    let unit = if each > 100 { Unit::Mib } else { Unit::Gib };
    Ok((0..count).map(|index| Gpu { unit, ..Gpu::plain(index, each) }).collect())
}

#[cfg(test)]
mod tests;
