//! The driver's names for what it makes, each a type of its own.

use cgpu_shm::layout::GPUS;
use cgpu_shm::units::DeviceIndex;

/// A device address (`CUdeviceptr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

/// A context as the driver names it (the `CUcontext` pointer's value).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextId(pub usize);

/// A green context as the driver names it (the `CUgreenCtx` pointer's value).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GreenId(pub usize);

/// A handle of physical memory (`CUmemGenericAllocationHandle`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhysicalHandle(pub u64);

/// An executable graph as the driver names it (the `CUgraphExec` pointer's value).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GraphId(pub usize);

/// A graph's node as the driver names it (the `CUgraphNode` pointer's value).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(pub usize);

/// A pool as the driver names it (the `CUmemoryPool` pointer's value).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub usize);

/// The uppermost addresses, which no driver gives out, stand for what GPUs have reserved for
/// graphs.
const OF_GRAPHS: usize = usize::MAX - (GPUS - 1);

impl PoolId {
    /// What a GPU has reserved for the graphs of this process.
    #[must_use]
    pub fn of_graphs(gpu: DeviceIndex) -> Self {
        Self(OF_GRAPHS + gpu.get())
    }

    /// The GPU, if this is what a GPU has reserved for graphs.
    #[must_use]
    pub fn graphs_gpu(self) -> Option<DeviceIndex> {
        DeviceIndex::new(self.0.checked_sub(OF_GRAPHS)?)
    }

    pub(crate) fn is_of_graphs(self) -> bool {
        self.0 >= OF_GRAPHS
    }
}

/// An array as the driver names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayId {
    /// `CUarray`.
    Array(usize),
    /// `CUmipmappedArray`.
    Mipmapped(usize),
}

impl ArrayId {
    /// Where it stands in the table. Device addresses have 57 bits at most, those of the program's
    /// objects 47; addresses in the table are multiples of 256.
    #[must_use]
    pub fn address(self) -> Address {
        let (kind, handle) = match self {
            Self::Array(handle) => (0b10 << 62, handle as u64),
            Self::Mipmapped(handle) => (0b11 << 62, handle as u64),
        };
        // A handle that does not fit has no place in the table: its array stays charged until the
        // process ends.
        Address(if handle < 1 << 54 { kind | handle << 8 } else { u64::MAX })
    }
}
