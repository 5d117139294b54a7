//! The lists of GPUs: `NVIDIA_VISIBLE_DEVICES` and `ALIYUN_COM_GPU_VISIBLE_DEVICES`.
//!
//! The entries of the memory list follow `NVIDIA_VISIBLE_DEVICES`. Its indexes are the host's;
//! inside a container the GPUs are numbered anew from 0, in the same order. Where as many GPUs are
//! visible as are listed, indexes are taken by rank: `5,2` are the second and the first of two.
//! Where fewer are listed than are visible (no container runtime has hidden the others), an index
//! is the GPU's position in PCI order. UUIDs stand for themselves.
//!
//! A partitioned GPU keeps its index. Its MIG instances have no index and are listed by UUID. In
//! the list of all GPUs they take the position of their GPU.

use cgpu_shm::uuid::whole_gpu;

use super::value::Value;
use crate::gpus::{GpuInfo, UuidStart};
use crate::{Inventory, Refusal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Index(u64),
    Uuid(UuidStart),
}

/// A list of GPUs, as a variable has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GpuList {
    /// `all`, or not set.
    All,
    /// `none` or `void`: no names.
    Nothing,
    Names(Value, Vec<Name>),
}

/// What a list of GPUs may contain, for messages.
const EXPECTED: &str =
    "`all`, or indexes and UUIDs joined by commas, such as `0,1` or `GPU-8f0e6a8c-...`";

impl GpuList {
    pub(crate) fn read(value: Option<Value>) -> Result<Self, Refusal> {
        let Some(value) = value else { return Ok(Self::All) };
        match value.text()? {
            "all" => return Ok(Self::All),
            "none" | "void" => return Ok(Self::Nothing),
            _ => {}
        }
        let names: Option<Vec<Name>> = value.text()?.split(',').map(Name::parse).collect();
        match names {
            Some(names) => Ok(Self::Names(value, names)),
            None => {
                Err(value
                    .refused(EXPECTED, "correct it (MIG devices go by their own UUID, `MIG-...`)"))
            }
        }
    }
}

impl Name {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim_matches([' ', '\t']);
        if let Some(index) = super::amounts::whole(text) {
            return Some(Self::Index(index));
        }
        let text = whole_gpu(text).unwrap_or(text);
        let digits = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"))?;
        UuidStart::parse(digits).map(Self::Uuid)
    }
}

/// The visible GPUs, and the position of each in the memory list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Visible {
    /// By position, the GPU and its name in the list; no GPU if the program hid it from itself.
    Ordered(Vec<(Name, Option<GpuInfo>)>),
    /// The GPUs, whose positions are unknown.
    Unordered(Vec<GpuInfo>),
}

impl Visible {
    /// Resolves `NVIDIA_VISIBLE_DEVICES`.
    pub(crate) fn resolve(listed: &GpuList, inventory: Inventory<'_>) -> Result<Self, Refusal> {
        let mut gpus = inventory.gpus.to_vec();
        gpus.sort_by_key(|gpu| (gpu.order, gpu.uuid));
        let (value, names) = match listed {
            // Nothing is listed while GPUs are visible: they were added in another way (device
            // plugins with CDI set `void`). The limit must remain.
            GpuList::All | GpuList::Nothing if inventory.complete => {
                return Ok(Self::Ordered(numbered(&gpus)));
            }
            GpuList::All | GpuList::Nothing => return Ok(Self::Unordered(gpus)),
            GpuList::Names(value, names) => (value, names),
        };
        let indexed = names.iter().any(|name| matches!(name, Name::Index(_)));
        if indexed && !inventory.complete {
            return Ok(Self::Unordered(gpus));
        }
        if inventory.complete && names.len() > gpus.len() {
            return Err(value.mismatched(
                &format!("which names {} GPUs, but {} are visible", names.len(), gpus.len()),
                "name only GPUs that the container has",
            ));
        }
        let indexes = Indexes::of(names, &gpus);
        let mut ordered: Vec<(Name, Option<GpuInfo>)> = Vec::new();
        for &name in names {
            let gpu = match name {
                Name::Index(index) => match indexes.gpu(index) {
                    Some(Whole::Gpu(gpu)) => Some(gpu),
                    Some(Whole::Partitioned) => {
                        return Err(value.mismatched(
                            &format!("but GPU {index} is partitioned into MIG instances"),
                            "name those by their own UUID, `MIG-...` (`nvidia-smi -L` lists them)",
                        ));
                    }
                    None => {
                        return Err(value.mismatched(
                            &format!("but there is no GPU {index}: {} are visible", gpus.len()),
                            "name only GPUs that the container has",
                        ));
                    }
                },
                Name::Uuid(start) => match matching(start, &gpus, value)? {
                    Some(gpu) => Some(gpu),
                    None if !inventory.complete => None,
                    None => {
                        return Err(value.mismatched(
                            "which names a GPU that is not visible",
                            "name only GPUs that the container has (`nvidia-smi -L` lists them)",
                        ));
                    }
                },
            };
            if ordered
                .iter()
                .any(|(former, other)| *former == name || (gpu.is_some() && *other == gpu))
            {
                return Err(value.mismatched("which names a GPU twice", "name each GPU once"));
            }
            ordered.push((name, gpu));
        }
        Ok(Self::Ordered(ordered))
    }

    /// Returns the GPUs that the program has not hidden from itself, with their positions.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = (usize, GpuInfo)> {
        let (ordered, unordered): (&[_], &[_]) = match self {
            Self::Ordered(ordered) => (ordered, &[]),
            Self::Unordered(gpus) => (&[], gpus),
        };
        let ordered = ordered
            .iter()
            .enumerate()
            .filter_map(|(position, (_, gpu))| gpu.map(|gpu| (position, gpu)));
        ordered.chain(unordered.iter().copied().enumerate())
    }

    /// Returns whether `ALIYUN_COM_GPU_VISIBLE_DEVICES` selects `gpu`.
    pub(crate) fn slices(&self, sliced: &GpuList, gpu: &GpuInfo) -> bool {
        let GpuList::Names(_, names) = sliced else { return *sliced == GpuList::All };
        names.iter().any(|name| match (name, self) {
            (Name::Uuid(start), _) => start.begins(gpu.uuid),
            (Name::Index(_), Self::Ordered(ordered)) => {
                ordered.iter().any(|(former, other)| former == name && other.as_ref() == Some(gpu))
            }
            (Name::Index(_), Self::Unordered(_)) => false,
        })
    }

    /// Refuses entries of `ALIYUN_COM_GPU_VISIBLE_DEVICES` that are none of these GPUs.
    pub(crate) fn check(&self, sliced: &GpuList, complete: bool) -> Result<(), Refusal> {
        let GpuList::Names(value, names) = sliced else { return Ok(()) };
        for name in names {
            let known = match (name, self) {
                (Name::Uuid(start), Self::Ordered(ordered)) => {
                    let gpus: Vec<GpuInfo> = ordered.iter().filter_map(|(_, gpu)| *gpu).collect();
                    matching(*start, &gpus, value)?.is_some() || !complete
                }
                (Name::Uuid(_), Self::Unordered(_)) => true,
                (Name::Index(_), Self::Ordered(ordered)) => {
                    ordered.iter().any(|(former, _)| former == name)
                }
                (Name::Index(_), Self::Unordered(_)) => return Err(unordered(value)),
            };
            if !known {
                return Err(value.mismatched(
                    "which names a GPU that NVIDIA_VISIBLE_DEVICES does not",
                    "name the GPUs as NVIDIA_VISIBLE_DEVICES does",
                ));
            }
        }
        Ok(())
    }
}

/// Returns the refusal of a list whose positions are unknown.
pub(crate) fn unordered(value: &Value) -> Refusal {
    value.mismatched(
        "but the order of the GPUs is unknown: CUDA_VISIBLE_DEVICES hides some and NVML is missing",
        "name the GPUs by UUID in NVIDIA_VISIBLE_DEVICES, or unset CUDA_VISIBLE_DEVICES",
    )
}

/// Returns the GPU whose UUID begins so, `None`, or a refusal if there are several.
fn matching(start: UuidStart, gpus: &[GpuInfo], value: &Value) -> Result<Option<GpuInfo>, Refusal> {
    let mut found = gpus.iter().filter(|gpu| start.begins(gpu.uuid));
    let first = found.next().copied();
    match found.next() {
        None => Ok(first),
        Some(_) => {
            Err(value.mismatched("which fits more than one GPU", "give more digits of the UUID"))
        }
    }
}

#[derive(Clone, Copy)]
enum Whole {
    Gpu(GpuInfo),
    /// A GPU that is partitioned into MIG instances.
    Partitioned,
}

/// Returns the GPUs that have an index, and for each of `gpus`, which are in PCI order, the index
/// of its GPU.
fn whole_gpus(gpus: &[GpuInfo]) -> (Vec<Whole>, Vec<u64>) {
    let mut whole = Vec::new();
    let mut indexes = Vec::new();
    let mut partitioned = None;
    for gpu in gpus {
        if !gpu.is_instance() {
            whole.push(Whole::Gpu(*gpu));
        } else if partitioned != Some(gpu.whole_order()) {
            whole.push(Whole::Partitioned);
            partitioned = Some(gpu.whole_order());
        }
        indexes.push((whole.len() as u64).saturating_sub(1));
    }
    (whole, indexes)
}

/// Returns all GPUs, named by index, or by UUID if they have none.
fn numbered(gpus: &[GpuInfo]) -> Vec<(Name, Option<GpuInfo>)> {
    let name = |gpu: &GpuInfo, index| {
        if gpu.is_instance() { Name::Uuid(UuidStart::whole(gpu.uuid)) } else { Name::Index(index) }
    };
    let (_, indexes) = whole_gpus(gpus);
    gpus.iter().zip(indexes).map(|(gpu, index)| (name(gpu, index), Some(*gpu))).collect()
}

/// Indexes of GPUs: ranks if every GPU is listed, else positions.
struct Indexes {
    gpus: Vec<(u64, Whole)>,
}

impl Indexes {
    fn of(names: &[Name], gpus: &[GpuInfo]) -> Self {
        let (whole, _) = whole_gpus(gpus);
        let begins = |name: &Name, gpu: &Whole| match (name, gpu) {
            (Name::Uuid(start), Whole::Gpu(gpu)) => start.begins(gpu.uuid),
            _ => false,
        };
        let concerned = |name: &&Name| match name {
            Name::Index(_) => true,
            Name::Uuid(_) => whole.iter().any(|gpu| begins(name, gpu)),
        };
        if names.iter().filter(concerned).count() != whole.len() {
            return Self { gpus: (0..).zip(whole).collect() };
        }
        let rest = whole.iter().copied().filter(|gpu| !names.iter().any(|name| begins(name, gpu)));
        let mut indexes: Vec<u64> = names
            .iter()
            .filter_map(|name| if let Name::Index(index) = name { Some(*index) } else { None })
            .collect();
        indexes.sort_unstable();
        indexes.dedup();
        Self { gpus: indexes.into_iter().zip(rest).collect() }
    }

    fn gpu(&self, index: u64) -> Option<Whole> {
        self.gpus.iter().find(|(known, _)| *known == index).map(|(_, gpu)| *gpu)
    }
}
