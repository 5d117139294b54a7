//! The nodes of the control tree: names, kinds, and what each stands for. Pure; `control` reads and
//! writes them.
//!
//! ```text
//! version                  r     of the monitor
//! default_memsize          rw    bytes, 0: none
//! N/policy                 rw    0..5; N is a GPU's index, or an instance's (MIG) as N.M
//! N/max_inst               rw    1..25
//! N/free_weight            r     capacity units that are free
//! N/prio_ratio             rw    20..99
//! N/work_conserving        rw    0, 1
//! N/<id>/id                r
//! N/<id>/memsize           rw    bytes; 0: the limit that it was started with
//! N/<id>/meminfo           r     "Free: <bytes>", then "PID: <pid> Mem: <bytes>" for each process
//! N/<id>/weight            rw    1..25; reads 0 where none was left for it
//! N/<id>/percent           rw    0..100; 0: the percentage that it was started with, or none
//! N/<id>/highprio          rw    0, 1
//! ```

use cgpu_client::message::Kind;
use cgpu_scheduler::TenantId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Root,
    Version,
    DefaultMemsize,
    Gpu(usize),
    Policy(usize),
    MaxInst(usize),
    FreeWeight(usize),
    PrioRatio(usize),
    WorkConserving(usize),
    Container(usize, TenantId),
    Id(usize, TenantId),
    Memsize(usize, TenantId),
    Meminfo(usize, TenantId),
    Weight(usize, TenantId),
    Percent(usize, TenantId),
    Highprio(usize, TenantId),
}

impl Node {
    pub(crate) const fn kind(self) -> Kind {
        match self {
            Self::Root | Self::Gpu(_) | Self::Container(..) => Kind::Folder,
            Self::Version | Self::FreeWeight(_) | Self::Id(..) | Self::Meminfo(..) => Kind::Read,
            Self::DefaultMemsize
            | Self::Policy(_)
            | Self::MaxInst(_)
            | Self::PrioRatio(_)
            | Self::WorkConserving(_)
            | Self::Memsize(..)
            | Self::Weight(..)
            | Self::Percent(..)
            | Self::Highprio(..) => Kind::Write,
        }
    }
}

pub(crate) type OfGpu = fn(usize) -> Node;
pub(crate) type OfContainer = fn(usize, TenantId) -> Node;

pub(crate) const ROOT_NODES: [(&str, Node); 2] =
    [("version", Node::Version), ("default_memsize", Node::DefaultMemsize)];
pub(crate) const GPU_NODES: [(&str, OfGpu); 5] = [
    ("policy", Node::Policy),
    ("max_inst", Node::MaxInst),
    ("free_weight", Node::FreeWeight),
    ("prio_ratio", Node::PrioRatio),
    ("work_conserving", Node::WorkConserving),
];
pub(crate) const CONTAINER_NODES: [(&str, OfContainer); 6] = [
    ("id", Node::Id),
    ("memsize", Node::Memsize),
    ("meminfo", Node::Meminfo),
    ("weight", Node::Weight),
    ("percent", Node::Percent),
    ("highprio", Node::Highprio),
];

/// Whether a container of this name would hide a node of its GPU.
pub(crate) fn is_reserved(name: &str) -> bool {
    GPU_NODES.iter().any(|(node, _)| *node == name)
}
