//! The work of a node, by its kind.

use std::collections::BTreeMap;
use std::sync::Arc;

use cgpu_abi::types::*;
use cgpu_sim::machine::{Fill, Launch, Work};

use super::Copying;
use super::arguments::Arguments;
use super::memory::Reservation;
use crate::answer::{Answer, INVALID_HANDLE, INVALID_VALUE};
use crate::call;
use crate::context::Context;
use crate::driver::Driver;
use crate::launch::Shape;
use crate::semaphore::{self, Params};
use crate::{fill, function, memops};

#[derive(Clone, Debug)]
pub(crate) struct KernelNode {
    pub(crate) function: CUfunction,
    pub(crate) kernel: CUkernel,
    pub(crate) context: Arc<Context>,
    pub(crate) shape: Shape,
    pub(crate) launch: Launch,
    pub(crate) arguments: Option<Arc<Arguments>>,
    pub(crate) attributes: BTreeMap<CUlaunchAttributeID, [u64; 8]>,
}

#[derive(Clone, Debug)]
pub(crate) struct FillNode {
    pub(crate) fill: Fill,
    pub(crate) context: Arc<Context>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct HostNode {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    pub(crate) data: usize,
}

/// Writes to memory words, and waits on them.
#[derive(Clone, Debug)]
pub(crate) struct MemOpsNode {
    pub(crate) operations: Arc<[memops::Operation]>,
    pub(crate) flags: c_uint,
    pub(crate) context: Arc<Context>,
}

/// Semaphores of other interfaces, to be signalled or waited for.
#[derive(Clone, Debug)]
pub(crate) struct SemaphoresNode<P> {
    pub(crate) semaphores: Arc<[CUexternalSemaphore]>,
    pub(crate) params: Arc<[P]>,
    pub(crate) context: Arc<Context>,
}

impl<P: Params> SemaphoresNode<P> {
    fn work(&self, driver: &Driver, signals: bool, step: usize) -> Answer<Work> {
        match self.semaphores.get(step).zip(self.params.get(step)) {
            Some((semaphore, params)) => {
                semaphore::work(driver, signals, *semaphore, params.value_and_flags().0)
            }
            None => Ok(Work::Nothing),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ConditionalNode {
    pub(crate) handle: CUgraphConditionalHandle,
    pub(crate) kind: CUgraphConditionalNodeType,
    pub(crate) bodies: Arc<[CUgraph]>,
    pub(crate) context: Arc<Context>,
}

impl ConditionalNode {
    /// Returns the body that a value selects.
    pub(crate) fn chosen(&self, value: c_uint) -> Option<CUgraph> {
        let index = match self.kind {
            CU_GRAPH_COND_TYPE_SWITCH => value,
            CU_GRAPH_COND_TYPE_IF => c_uint::from(value == 0),
            // Nothing on this GPU sets the value to 0, so the body runs once.
            _ if value != 0 => 0,
            _ => return None,
        };
        self.bodies.get(usize::try_from(index).ok()?).copied()
    }
}

/// The work of a node.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Kernel(KernelNode),
    Copy(Copying),
    Fill(FillNode),
    Host(HostNode),
    Child(CUgraph),
    Empty,
    Await(CUevent),
    Record(CUevent),
    Allocate(Arc<Reservation>),
    Free(CUdeviceptr),
    MemOps(MemOpsNode),
    Signal(SemaphoresNode<CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS>),
    Acquire(SemaphoresNode<CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS>),
    Conditional(ConditionalNode),
}

impl Body {
    pub(crate) fn kind(&self) -> CUgraphNodeType {
        match self {
            Self::Kernel(_) => CU_GRAPH_NODE_TYPE_KERNEL,
            Self::Copy(_) => CU_GRAPH_NODE_TYPE_MEMCPY,
            Self::Fill(_) => CU_GRAPH_NODE_TYPE_MEMSET,
            Self::Host(_) => CU_GRAPH_NODE_TYPE_HOST,
            Self::Child(_) => CU_GRAPH_NODE_TYPE_GRAPH,
            Self::Empty => CU_GRAPH_NODE_TYPE_EMPTY,
            Self::Await(_) => CU_GRAPH_NODE_TYPE_WAIT_EVENT,
            Self::Record(_) => CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            Self::Allocate(_) => CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            Self::Free(_) => CU_GRAPH_NODE_TYPE_MEM_FREE,
            Self::MemOps(_) => CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
            Self::Signal(_) => CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL,
            Self::Acquire(_) => CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT,
            Self::Conditional(_) => CU_GRAPH_NODE_TYPE_CONDITIONAL,
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Kernel(_) => "KERNEL",
            Self::Copy(_) => "MEMCPY",
            Self::Fill(_) => "MEMSET",
            Self::Host(_) => "HOST",
            Self::Child(_) => "GRAPH",
            Self::Empty => "EMPTY",
            Self::Await(_) => "WAIT_EVENT",
            Self::Record(_) => "EVENT_RECORD",
            Self::Allocate(_) => "MEM_ALLOC",
            Self::Free(_) => "MEM_FREE",
            Self::MemOps(_) => "BATCH_MEM_OP",
            Self::Signal(_) => "EXT_SEMAS_SIGNAL",
            Self::Acquire(_) => "EXT_SEMAS_WAIT",
            Self::Conditional(_) => "CONDITIONAL",
        }
    }

    /// Returns the name in journals: the kernel's, or that of the kind.
    pub(crate) fn title(&self, driver: &Driver) -> String {
        match self {
            Self::Kernel(node) => function::find(driver, node.function).map_or_else(
                |_| self.name().to_owned(),
                |function| function.name.to_string_lossy().into_owned(),
            ),
            _ => self.name().to_owned(),
        }
    }

    /// Returns the graphs that are part of it.
    pub(crate) fn parts(&self) -> Vec<CUgraph> {
        match self {
            Self::Child(graph) => vec![*graph],
            Self::Conditional(node) => node.bodies.to_vec(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn context(&self) -> Option<&Arc<Context>> {
        match self {
            Self::Kernel(node) => Some(&node.context),
            Self::Copy(node) => Some(&node.context),
            Self::Fill(node) => Some(&node.context),
            Self::MemOps(node) => Some(&node.context),
            Self::Signal(node) => Some(&node.context),
            Self::Acquire(node) => Some(&node.context),
            _ => None,
        }
    }

    /// Returns whether it can be disabled in an executable graph.
    pub(crate) fn can_be_disabled(&self) -> bool {
        matches!(self, Self::Kernel(_) | Self::Copy(_) | Self::Fill(_))
    }

    /// Returns its number of steps on the GPU.
    pub(crate) fn steps(&self) -> usize {
        match self {
            Self::MemOps(node) => node.operations.len().max(1),
            Self::Signal(node) => node.semaphores.len().max(1),
            Self::Acquire(node) => node.semaphores.len().max(1),
            _ => 1,
        }
    }

    /// Returns the machine's work for one step, resolving addresses and events now.
    pub(crate) fn work(&self, driver: &Driver, step: usize) -> Answer<Work> {
        Ok(match self {
            Self::Kernel(node) => Work::Kernel(node.launch),
            Self::Copy(copying) => copying.work(driver)?,
            Self::Fill(node) => fill::work(driver, node.fill)?,
            Self::Host(node) => node.work(),
            Self::Await(event) => Work::Await(driver.events.get(event.0).ok_or(INVALID_HANDLE)?.id),
            Self::Record(event) => {
                Work::Record(driver.events.get(event.0).ok_or(INVALID_HANDLE)?.id)
            }
            Self::MemOps(node) => match node.operations.get(step) {
                Some(operation) => memops::work(driver, operation)?,
                None => Work::Nothing,
            },
            Self::Signal(node) => node.work(driver, true, step)?,
            Self::Acquire(node) => node.work(driver, false, step)?,
            // The launch maps and unmaps memory, and parts have their own steps.
            Self::Empty
            | Self::Allocate(_)
            | Self::Free(_)
            | Self::Child(_)
            | Self::Conditional(_) => Work::Nothing,
        })
    }
}

impl HostNode {
    pub(crate) fn new(function: CUhostFn, data: usize) -> Answer<Self> {
        Ok(Self { function: function.ok_or(INVALID_VALUE)?, data })
    }

    fn work(self) -> Work {
        Work::Call(Arc::new(move || self.call()))
    }

    /// Returns a closure for a stream to call.
    pub(crate) fn once(self) -> Box<dyn FnOnce() + Send> {
        Box::new(move || self.call())
    }

    fn call(self) {
        call::host_function(|| {
            // SAFETY: the program passes function and data to be called together, once each time a
            // stream reaches them.
            unsafe { (self.function)(core::ptr::with_exposed_provenance_mut(self.data)) };
        });
    }
}
