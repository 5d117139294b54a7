//! Names that other people's pods, nodes and scripts use.

/// Whose names a pod speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dialect {
    /// `aliyun.com/...`: amounts are in all, over all GPUs.
    Aliyun,
    /// `nvidia.com/...` as HAMi means them: amounts are of each GPU.
    Hami,
}

/// What an amount of a resource counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Units of memory, in all.
    Units,
    /// Percent of a GPU's compute, in all.
    Percent,
    /// GPUs.
    Gpus,
    /// MiB of each GPU.
    MibEach,
    /// Percent of each GPU's memory.
    MemoryPercentEach,
    /// Percent of each GPU's compute.
    PercentEach,
}

/// A resource that containers ask for.
#[derive(Clone, Copy, Debug)]
pub struct Resource {
    /// As it stands in limits.
    pub name: &'static str,
    /// Whose it is.
    pub dialect: Dialect,
    /// What it counts.
    pub meaning: Meaning,
}

/// Units of memory.
pub const MEMORY: &str = "aliyun.com/gpu-mem";
/// Percent of compute.
pub const CORE: &str = "aliyun.com/gpu-core.percentage";
/// Number of GPUs: a resource of nodes, a label of pods.
pub const COUNT: &str = "aliyun.com/gpu-count";

/// GPUs, in HAMi's names: what the kubelet counts of them.
pub const HAMI_GPUS: &str = "nvidia.com/gpu";

/// Every resource that is read, once.
pub const RESOURCES: [Resource; 6] = [
    Resource { name: MEMORY, dialect: Dialect::Aliyun, meaning: Meaning::Units },
    Resource { name: CORE, dialect: Dialect::Aliyun, meaning: Meaning::Percent },
    Resource { name: HAMI_GPUS, dialect: Dialect::Hami, meaning: Meaning::Gpus },
    Resource { name: "nvidia.com/gpumem", dialect: Dialect::Hami, meaning: Meaning::MibEach },
    Resource {
        name: "nvidia.com/gpumem-percentage",
        dialect: Dialect::Hami,
        meaning: Meaning::MemoryPercentEach,
    },
    Resource { name: "nvidia.com/gpucores", dialect: Dialect::Hami, meaning: Meaning::PercentEach },
];

/// Labels of pods that begin so are ours to understand.
pub const POD_LABELS: &str = "aliyun.com/gpu-";

/// Which dialects are listened to, beside Aliyun's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialects {
    /// HAMi's. Off by default: `nvidia.com/gpu` is also what whole GPUs are asked for by.
    pub hami: bool,
}

impl Dialects {
    /// Whether this one is.
    #[must_use]
    pub fn includes(self, dialect: Dialect) -> bool {
        dialect == Dialect::Aliyun || self.hami
    }
}

/// Annotations of pods, written by whoever chose their GPUs.
pub mod annotation {
    /// The GPU, where it is one.
    pub const INDEX: &str = "ALIYUN_COM_GPU_MEM_IDX";
    /// Units of the GPU; several, joined by commas, where GPUs differ.
    pub const DEVICE: &str = "ALIYUN_COM_GPU_MEM_DEV";
    /// Units of the pod.
    pub const POD: &str = "ALIYUN_COM_GPU_MEM_POD";
    /// `false`, and `true` when a container has been started.
    pub const ASSIGNED: &str = "ALIYUN_COM_GPU_MEM_ASSIGNED";
    /// Nanoseconds since 1970.
    pub const ASSUME_TIME: &str = "ALIYUN_COM_GPU_MEM_ASSUME_TIME";
    /// `{"container":{"gpu":units}}`.
    pub const ALLOCATION: &str = "scheduler.framework.gpushare.allocation";
    /// The node whose GPUs are meant.
    pub const NODE: &str = "cgpu.dev/node";
    /// Every one of them: what a withdrawal removes.
    pub const ALL: [&str; 7] = [INDEX, DEVICE, POD, ASSIGNED, ASSUME_TIME, ALLOCATION, NODE];

    /// `{"container":"slice"}`: which of the kubelet's slices the containers have, written by the device plugin when they start.
    pub const SLICES: &str = "cgpu.dev/slices";

    /// Of nodes: their GPUs, written by the device plugin.
    pub const GPUS: &str = "cgpu.dev/gpus";
}

/// Labels of nodes.
pub mod label {
    /// `true` where the device plugin runs; `false` takes a node out.
    pub const SHARED: &str = "gpushare";
    /// How the GPUs are used.
    pub const SCHEDULE: &str = "ack.node.gpu.schedule";
    /// Which of a node's GPUs are taken first.
    pub const PLACEMENT: &str = "ack.node.gpu.placement";
    /// `true`: share without limits.
    pub const NO_ISOLATION: &str = "cgpu.disable.isolation";
}

/// Variables of containers.
pub mod variable {
    /// Which GPUs.
    pub const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
    /// Indexes of the GPUs, joined by commas.
    pub const INDEX: &str = "ALIYUN_COM_GPU_MEM_IDX";
    /// Units of the pod.
    pub const POD: &str = "ALIYUN_COM_GPU_MEM_POD";
    /// Memory of the container on each GPU.
    pub const CONTAINER: &str = "ALIYUN_COM_GPU_MEM_CONTAINER";
    /// Memory of each GPU.
    pub const DEVICE: &str = "ALIYUN_COM_GPU_MEM_DEV";
    /// Percent of a GPU's compute.
    pub const PERCENT: &str = "ALIYUN_COM_GPU_CORE_PERCENTAGE";
    /// `true`: no limit.
    pub const DISABLE: &str = "CGPU_DISABLE";
    /// A slice that the kubelet counted, for a container that is to be told which.
    pub const SLICE: &str = "CGPU_SLICE";
}
