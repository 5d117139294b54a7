//! Names of resources, labels, annotations and variables that pods, nodes and scripts already use.

/// Family of resource names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dialect {
    /// `aliyun.com/...`: amounts are totals over all GPUs.
    Aliyun,
    /// `nvidia.com/...` as in HAMi: amounts are for each GPU.
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

/// A resource that containers request.
#[derive(Clone, Copy, Debug)]
pub struct Resource {
    /// Name in the limits.
    pub name: &'static str,
    /// Family of the name.
    pub dialect: Dialect,
    /// What its amounts count.
    pub meaning: Meaning,
}

/// Units of memory.
pub const MEMORY: &str = "aliyun.com/gpu-mem";
/// Percent of compute.
pub const CORE: &str = "aliyun.com/gpu-core.percentage";
/// Number of GPUs: a resource of nodes, a label of pods.
pub const COUNT: &str = "aliyun.com/gpu-count";

/// Number of GPUs in HAMi's names; of these, the kubelet counts this one.
pub const HAMI_GPUS: &str = "nvidia.com/gpu";

/// Priority of a container in HAMi's names: 0 is high, 1 low. It requests nothing.
pub const HAMI_PRIORITY: &str = "nvidia.com/priority";

/// All resources that containers request.
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

/// Returns whether this resource counts GPUs of NVIDIA's device plugin, or instances of them.
#[must_use]
pub fn is_of_nvidia(resource: &str) -> bool {
    resource
        .strip_prefix("nvidia.com/")
        .is_some_and(|name| name == "gpu" || name.starts_with("gpu.") || name.starts_with("mig-"))
}

/// Labels and annotations by which schedulers know the pods of a gang, besides the fields of
/// Kubernetes itself.
pub const GANGS: [&str; 3] = [
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "scheduling.k8s.io/group-name",
];

/// Prefix of pod labels that cgpu interprets.
pub const POD_LABELS: &str = "aliyun.com/gpu-";

/// Dialects that are read besides Aliyun's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialects {
    /// HAMi's names. Off by default, because `nvidia.com/gpu` also requests whole GPUs.
    pub hami: bool,
}

impl Dialects {
    /// Returns whether a dialect is read.
    #[must_use]
    pub fn includes(self, dialect: Dialect) -> bool {
        dialect == Dialect::Aliyun || self.hami
    }
}

/// Annotations of pods, written by the component that chooses their GPUs, and of nodes.
pub mod annotation {
    /// Index of the GPU, if there is one only.
    pub const INDEX: &str = "ALIYUN_COM_GPU_MEM_IDX";
    /// Units of the GPU; if the GPUs differ, of each, joined by commas.
    pub const DEVICE: &str = "ALIYUN_COM_GPU_MEM_DEV";
    /// Units of the pod.
    pub const POD: &str = "ALIYUN_COM_GPU_MEM_POD";
    /// `false`; `true` once a container has started.
    pub const ASSIGNED: &str = "ALIYUN_COM_GPU_MEM_ASSIGNED";
    /// Time of the claim in nanoseconds since 1970.
    pub const ASSUME_TIME: &str = "ALIYUN_COM_GPU_MEM_ASSUME_TIME";
    /// Units by container and GPU: `{"container":{"gpu":units}}`.
    pub const ALLOCATION: &str = "scheduler.framework.gpushare.allocation";
    /// Node that has the GPUs.
    pub const NODE: &str = "cgpu.dev/node";
    /// Annotations of a claim: a withdrawal removes all of them.
    pub const ALL: [&str; 7] = [INDEX, DEVICE, POD, ASSIGNED, ASSUME_TIME, ALLOCATION, NODE];

    /// Time in nanoseconds since 1970 at which the extender found a node for a pod that none had
    /// fitted, and had the scheduler try it again.
    pub const RETRIED: &str = "cgpu.dev/retried";

    /// Slices of the containers as `{"container":"slice"}`, written by the device plugin when they
    /// start.
    pub const SLICES: &str = "cgpu.dev/slices";

    /// What containers of a running pod have instead of what they requested, written by the device
    /// plugin: [`crate::sizes`].
    pub const SIZES: &str = "cgpu.dev/sizes";
    /// What became of a pod's annotation [`crate::resize::ANNOTATION`], written by the device
    /// plugin.
    pub const RESIZE_STATUS: &str = "cgpu.dev/resize-status";

    /// What a translated pod requested, as `{"container":{"resource":"amount"}}`.
    pub const REQUEST: &str = "cgpu.dev/request";

    /// On nodes: their GPUs, written by the device plugin.
    pub const GPUS: &str = "cgpu.dev/gpus";
    /// On nodes: what containers hold that live there, written by the device plugin.
    pub const HELD: &str = "cgpu.dev/held";
}

/// Labels of nodes and pods.
pub mod label {
    /// `true` where the device plugin runs; `false` excludes the node.
    pub const SHARED: &str = "gpushare";
    /// How the GPUs are shared.
    pub const SCHEDULE: &str = "ack.node.gpu.schedule";
    /// Which of a node's GPUs are taken first.
    pub const PLACEMENT: &str = "ack.node.gpu.placement";
    /// `true`: share without limits.
    pub const NO_ISOLATION: &str = "cgpu.disable.isolation";
    /// `true` on pods: a policy replaced old resource names by claims.
    pub const TRANSLATED: &str = "cgpu.dev/translated";
}

/// Variables of containers.
pub mod variable {
    /// GPUs.
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
    /// Share of compute beside other containers; 1 without it.
    pub const WEIGHT: &str = "ALIYUN_COM_GPU_SCHD_WEIGHT";
    /// `true`: no limit.
    pub const DISABLE: &str = "CGPU_DISABLE";
    /// `1`: high priority.
    pub const HIGH_PRIORITY: &str = "ALIYUN_COM_GPU_HIGH_PRIO";
    /// Slice that the kubelet counted, for a container that is not bound yet.
    pub const SLICE: &str = "CGPU_SLICE";
}
