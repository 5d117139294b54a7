//! Which GPUs, and in which order: `NVIDIA_VISIBLE_DEVICES` and `ALIYUN_COM_GPU_VISIBLE_DEVICES`.
//!
//! The entries of the memory list follow `NVIDIA_VISIBLE_DEVICES`. Its indexes are the host's, and inside a container the GPUs
//! are numbered anew from 0, in the same order. So, where as many GPUs are visible as are named, indexes are taken by rank:
//! `5,2` names the second and the first of two. Where fewer are named than are visible (no container runtime has narrowed the
//! view), an index is the GPU's place in PCI order. UUIDs are themselves.
//!
//! A GPU that is cut into MIG instances keeps its index, and its instances have none: they go by UUID. In the list of all GPUs
//! they stand where their GPU would.

use cgpu_shm::uuid::whole_gpu;

use super::value::Value;
use crate::gpus::{GpuInfo, UuidStart};
use crate::{Inventory, Refusal};

/// One name of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Index(u64),
    Uuid(UuidStart),
}

/// A list of GPUs as a variable gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    /// `all`, or not set.
    All,
    /// `none` or `void`: the variable names nothing.
    Nothing,
    Names(Value, Vec<Name>),
}

/// What a list of GPUs may hold, for sentences.
const EXPECTED: &str =
    "`all`, or indexes and UUIDs joined by commas, such as `0,1` or `GPU-8f0e6a8c-...`";

impl Listed {
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

/// The visible GPUs, and the place of each in the memory list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Visible {
    /// At each place its GPU; none where the program hid it from itself. With each, the name it was given.
    Placed(Vec<(Name, Option<GpuInfo>)>),
    /// The GPUs are there, but which of them has which place cannot be told.
    Unplaced(Vec<GpuInfo>),
}

impl Visible {
    /// Resolves `NVIDIA_VISIBLE_DEVICES`.
    pub(crate) fn resolve(listed: &Listed, inventory: Inventory<'_>) -> Result<Self, Refusal> {
        let mut gpus = inventory.gpus.to_vec();
        gpus.sort_by_key(|gpu| (gpu.order, gpu.uuid));
        let (value, names) = match listed {
            // A name of nothing while GPUs are there: they came by another way (device plugins with CDI set `void`). The limit
            // must not vanish with the name.
            Listed::All | Listed::Nothing if inventory.complete => {
                return Ok(Self::Placed(numbered(&gpus)));
            }
            Listed::All | Listed::Nothing => return Ok(Self::Unplaced(gpus)),
            Listed::Names(value, names) => (value, names),
        };
        let indexed = names.iter().any(|name| matches!(name, Name::Index(_)));
        if indexed && !inventory.complete {
            return Ok(Self::Unplaced(gpus));
        }
        if inventory.complete && names.len() > gpus.len() {
            return Err(value.unfit(
                &format!("which names {} GPUs, but {} are visible", names.len(), gpus.len()),
                "name only GPUs that the container has",
            ));
        }
        let indexes = Indexes::of(names, &gpus);
        let mut placed: Vec<(Name, Option<GpuInfo>)> = Vec::new();
        for &name in names {
            let gpu = match name {
                Name::Index(index) => match indexes.gpu(index) {
                    Some(Whole::Gpu(gpu)) => Some(gpu),
                    Some(Whole::Cut) => {
                        return Err(value.unfit(
                            &format!("but GPU {index} is cut into MIG instances"),
                            "name those by their own UUID, `MIG-...` (`nvidia-smi -L` lists them)",
                        ));
                    }
                    None => {
                        return Err(value.unfit(
                            &format!("but there is no GPU {index}: {} are visible", gpus.len()),
                            "name only GPUs that the container has",
                        ));
                    }
                },
                Name::Uuid(start) => match matching(start, &gpus, value)? {
                    Some(gpu) => Some(gpu),
                    None if !inventory.complete => None,
                    None => {
                        return Err(value.unfit(
                            "which names a GPU that is not visible",
                            "name only GPUs that the container has (`nvidia-smi -L` lists them)",
                        ));
                    }
                },
            };
            if placed
                .iter()
                .any(|(former, other)| *former == name || (gpu.is_some() && *other == gpu))
            {
                return Err(value.unfit("which names a GPU twice", "name each GPU once"));
            }
            placed.push((name, gpu));
        }
        Ok(Self::Placed(placed))
    }

    /// The GPUs that the program has not hidden from itself, with their places.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = (usize, GpuInfo)> {
        let (placed, unplaced): (&[_], &[_]) = match self {
            Self::Placed(placed) => (placed, &[]),
            Self::Unplaced(gpus) => (&[], gpus),
        };
        let placed =
            placed.iter().enumerate().filter_map(|(place, (_, gpu))| gpu.map(|gpu| (place, gpu)));
        placed.chain(unplaced.iter().copied().enumerate())
    }

    /// Whether `gpu`, at this place, is one that `ALIYUN_COM_GPU_VISIBLE_DEVICES` slices.
    pub(crate) fn slices(&self, sliced: &Listed, gpu: &GpuInfo) -> bool {
        let Listed::Names(_, names) = sliced else { return *sliced == Listed::All };
        names.iter().any(|name| match (name, self) {
            (Name::Uuid(start), _) => start.begins(gpu.uuid),
            (Name::Index(_), Self::Placed(placed)) => {
                placed.iter().any(|(former, other)| former == name && other.as_ref() == Some(gpu))
            }
            (Name::Index(_), Self::Unplaced(_)) => false,
        })
    }

    /// Refuses names in `ALIYUN_COM_GPU_VISIBLE_DEVICES` that are none of these GPUs.
    pub(crate) fn check(&self, sliced: &Listed, complete: bool) -> Result<(), Refusal> {
        let Listed::Names(value, names) = sliced else { return Ok(()) };
        for name in names {
            let known = match (name, self) {
                (Name::Uuid(start), Self::Placed(placed)) => {
                    let gpus: Vec<GpuInfo> = placed.iter().filter_map(|(_, gpu)| *gpu).collect();
                    matching(*start, &gpus, value)?.is_some() || !complete
                }
                (Name::Uuid(_), Self::Unplaced(_)) => true,
                (Name::Index(_), Self::Placed(placed)) => {
                    placed.iter().any(|(former, _)| former == name)
                }
                (Name::Index(_), Self::Unplaced(_)) => return Err(unplaced(value)),
            };
            if !known {
                return Err(value.unfit(
                    "which names a GPU that NVIDIA_VISIBLE_DEVICES does not",
                    "name the GPUs as NVIDIA_VISIBLE_DEVICES does",
                ));
            }
        }
        Ok(())
    }
}

/// The refusal of a list whose places cannot be told.
pub(crate) fn unplaced(value: &Value) -> Refusal {
    value.unfit(
        "but which GPU is which cannot be told: CUDA_VISIBLE_DEVICES hides some and NVML is not there",
        "name the GPUs by UUID in NVIDIA_VISIBLE_DEVICES, or unset CUDA_VISIBLE_DEVICES",
    )
}

/// The one GPU that begins so; none; or a refusal if it is not clear which.
fn matching(start: UuidStart, gpus: &[GpuInfo], value: &Value) -> Result<Option<GpuInfo>, Refusal> {
    let mut found = gpus.iter().filter(|gpu| start.begins(gpu.uuid));
    let first = found.next().copied();
    match found.next() {
        None => Ok(first),
        Some(_) => Err(value.unfit("which fits more than one GPU", "give more digits of the UUID")),
    }
}

/// What an index may lead to.
#[derive(Clone, Copy)]
enum Whole {
    Gpu(GpuInfo),
    /// A GPU that is cut into MIG instances.
    Cut,
}

/// The GPUs that have an index, from GPUs in PCI order; with each of these its GPU's.
fn whole_gpus(gpus: &[GpuInfo]) -> (Vec<Whole>, Vec<u64>) {
    let mut whole = Vec::new();
    let mut indexes = Vec::new();
    let mut partitioned = None;
    for gpu in gpus {
        if !gpu.is_instance() {
            whole.push(Whole::Gpu(*gpu));
        } else if partitioned != Some(gpu.whole_order()) {
            whole.push(Whole::Cut);
            partitioned = Some(gpu.whole_order());
        }
        indexes.push((whole.len() as u64).saturating_sub(1));
    }
    (whole, indexes)
}

/// All GPUs, each by the name that it has where no variable gives it one.
fn numbered(gpus: &[GpuInfo]) -> Vec<(Name, Option<GpuInfo>)> {
    let name = |gpu: &GpuInfo, index| {
        if gpu.is_instance() { Name::Uuid(UuidStart::whole(gpu.uuid)) } else { Name::Index(index) }
    };
    let (_, indexes) = whole_gpus(gpus);
    gpus.iter().zip(indexes).map(|(gpu, index)| (name(gpu, index), Some(*gpu))).collect()
}

/// Indexes to GPUs: by rank where every GPU is named, else by place.
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
        self.gpus.iter().find(|(place, _)| *place == index).map(|(_, gpu)| *gpu)
    }
}
