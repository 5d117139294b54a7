//! The driver's handles, each a type of its own.

use cgpu_shm::layout::GPUS;
use cgpu_shm::units::DeviceIndex;

/// A device address (`CUdeviceptr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

/// A context's handle (the value of the `CUcontext` pointer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextId(pub usize);

/// A green context's handle (the value of the `CUgreenCtx` pointer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GreenId(pub usize);

/// A handle of physical memory (`CUmemGenericAllocationHandle`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhysicalHandle(pub u64);

/// An executable graph's handle (the value of the `CUgraphExec` pointer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GraphId(pub usize);

/// A graph node's handle (the value of the `CUgraphNode` pointer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(pub usize);

/// A pool's handle (the value of the `CUmemoryPool` pointer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub usize);

/// The uppermost addresses, which no driver returns, stand for the memory that GPUs have reserved
/// for graphs.
const OF_GRAPHS: usize = usize::MAX - (GPUS - 1);

impl PoolId {
    /// Returns the pool that stands for a GPU's memory reserved for this process's graphs.
    #[must_use]
    pub fn of_graphs(gpu: DeviceIndex) -> Self {
        Self(OF_GRAPHS + gpu.get())
    }

    /// Returns the GPU, if the pool stands for memory reserved for graphs.
    #[must_use]
    pub fn graphs_gpu(self) -> Option<DeviceIndex> {
        DeviceIndex::new(self.0.checked_sub(OF_GRAPHS)?)
    }

    pub(crate) fn is_of_graphs(self) -> bool {
        self.0 >= OF_GRAPHS
    }
}

/// An array's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayId {
    /// `CUarray`.
    Array(usize),
    /// `CUmipmappedArray`.
    Mipmapped(usize),
}

impl ArrayId {
    /// Returns its address in the table of allocations. Device addresses have at most 57 bits,
    /// those of host objects 47; addresses in the table are multiples of 256.
    #[must_use]
    pub fn address(self) -> Address {
        let (kind, handle) = match self {
            Self::Array(handle) => (0b10 << 62, handle as u64),
            Self::Mipmapped(handle) => (0b11 << 62, handle as u64),
        };
        // A handle that does not fit has no entry: its array stays charged until the process exits.
        Address(if handle < 1 << 54 { kind | handle << 8 } else { u64::MAX })
    }
}
