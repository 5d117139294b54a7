//! Graphs as the driver shows them: what a graph can allocate on each GPU, and what GPUs have
//! reserved for graphs.

use core::ptr;
use std::collections::TryReserveError;

use cgpu_abi::Role;
use cgpu_abi::types::*;
use cgpu_memory::{
    Address, Bodies, Bytes, DeviceIndex, Footprint, NodeId, PoolDriver, PoolId, Tenant,
};
use cgpu_shm::atomic::{AtomicBool, Ordering::Relaxed};

use crate::devices::DriverOrdinal;
use crate::order::RelaxedCapture;
use crate::source::Source;
use crate::{driver, process};

/// Whether a graph of this process, or of a parent before a fork, may ever have allocated. Until
/// then no graph is inspected.
static ALLOCATES: AtomicBool = AtomicBool::new(false);

pub(crate) fn will_allocate() {
    ALLOCATES.store(true, Relaxed);
}

/// Returns whether any graph may have one.
///
/// Relaxed: a thread that launches another thread's graph has been synchronized with it by the
/// program.
#[inline(always)]
pub(crate) fn may_allocate() -> bool {
    ALLOCATES.load(Relaxed)
}

/// The driver's memory reserved for the graphs of this process.
#[derive(Debug)]
pub(crate) struct Driver;

impl PoolDriver for Driver {
    fn reserved(&self, pool: PoolId) -> Option<Bytes> {
        attribute(pool, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)
    }

    fn used(&self, pool: PoolId) -> Option<Bytes> {
        attribute(pool, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)
    }

    fn trim(&self, pool: PoolId) {
        let _unbound = RelaxedCapture::begin();
        if let Some(device) = device(pool) {
            // SAFETY: no obligations. The next reading shows the result.
            let _ = unsafe { driver::cuDeviceGraphMemTrim(device.0) };
        }
    }

    /// It lives as long as the process.
    fn destroy(&self, _: PoolId) -> bool {
        false
    }
}

fn device(pool: PoolId) -> Option<DriverOrdinal> {
    process::devices(process::tenant()?).of_gpu(pool.graphs_gpu()?)
}

fn attribute(pool: PoolId, name: CUgraphMem_attribute) -> Option<Bytes> {
    let device = device(pool)?;
    let _unbound = RelaxedCapture::begin();
    let read = |number: *mut u64| {
        // SAFETY: the value of this attribute is a 64-bit number, for which there is room.
        unsafe { driver::cuDeviceGetGraphMemAttribute(device.0, name, number.cast()) }
    };
    driver::get(read).ok().map(Bytes)
}

/// Reason why a graph is not instantiated.
pub(crate) enum UnsupportedGraph {
    /// It allocates memory that is refused.
    Memory(Role),
    /// There is no host memory to inspect it.
    NoHostMemory,
}

impl From<TryReserveError> for UnsupportedGraph {
    fn from(_: TryReserveError) -> UnsupportedGraph {
        UnsupportedGraph::NoHostMemory
    }
}

/// Returns what a graph and all its parts can allocate. Parts about which the driver reports an
/// error are left for it to refuse.
pub(crate) fn footprint(tenant: &Tenant, graph: CUgraph) -> Result<Footprint, UnsupportedGraph> {
    let mut footprint = Footprint::new();
    let mut open = Vec::new();
    push(&mut open, graph)?;
    while let Some(graph) = open.pop() {
        for node in nodes(graph)? {
            match kind(node) {
                Some(CU_GRAPH_NODE_TYPE_MEM_ALLOC) => {
                    if let Some((gpu, wanted)) = allocation(tenant, node)? {
                        footprint.add(gpu, Address(wanted.dptr), Bytes(wanted.bytesize as u64))?;
                    }
                }
                Some(CU_GRAPH_NODE_TYPE_GRAPH) => {
                    if let Some(child) = child(node) {
                        push(&mut open, child)?;
                    }
                }
                Some(CU_GRAPH_NODE_TYPE_CONDITIONAL) => {
                    for body in bodies(tenant, node) {
                        push(&mut open, body)?;
                    }
                }
                _ => {}
            }
        }
    }
    Ok(footprint)
}

fn push(open: &mut Vec<CUgraph>, graph: CUgraph) -> Result<(), TryReserveError> {
    open.try_reserve(1)?;
    open.push(graph);
    Ok(())
}

fn nodes(graph: CUgraph) -> Result<Vec<CUgraphNode>, TryReserveError> {
    let (mut nodes, mut count) = (Vec::new(), 0);
    // SAFETY: the count is writable, and without a list nothing else is written; the graph is the
    // program's or a part of it.
    if unsafe { driver::cuGraphGetNodes(graph, ptr::null_mut(), &raw mut count) }
        != CUresult::SUCCESS
    {
        return Ok(nodes);
    }
    nodes.try_reserve_exact(count)?;
    nodes.resize(count, CUgraphNode::NULL);
    // SAFETY: the list has room for `count` nodes, and the driver writes at most as many.
    let answer = unsafe { driver::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) };
    nodes.truncate(if answer == CUresult::SUCCESS { count } else { 0 });
    Ok(nodes)
}

fn kind(node: CUgraphNode) -> Option<CUgraphNodeType> {
    // SAFETY: the kind is writable; the driver has given the node.
    driver::get(|kind| unsafe { driver::cuGraphNodeGetType(node, kind) }).ok()
}

fn child(node: CUgraphNode) -> Option<CUgraph> {
    // SAFETY: the handle is writable; by the driver's answer the node is a child graph.
    driver::get(|graph| unsafe { driver::cuGraphChildGraphNodeGetGraph(node, graph) }).ok()
}

/// Returns what a node allocates, if an accounted GPU is charged for it.
fn allocation(
    tenant: &Tenant,
    node: CUgraphNode,
) -> Result<Option<(DeviceIndex, CUDA_MEM_ALLOC_NODE_PARAMS)>, UnsupportedGraph> {
    let mut wanted = core::mem::MaybeUninit::<CUDA_MEM_ALLOC_NODE_PARAMS>::zeroed();
    // SAFETY: the record is writable; by the driver's answer the node allocates.
    let answer = unsafe { driver::cuGraphMemAllocNodeGetParams(node, wanted.as_mut_ptr()) };
    if answer != CUresult::SUCCESS {
        return Ok(None);
    }
    // SAFETY: the record is initialised: by zeros, which are valid for its numbers and addresses,
    // and by the driver.
    let wanted = unsafe { wanted.assume_init() };
    match Source::of(tenant, wanted.pool_props.alloc_type, wanted.pool_props.location) {
        Source::Gpu(gpu) => Ok(Some((gpu, wanted))),
        Source::Elsewhere => Ok(None),
        Source::Refused(role) => Err(UnsupportedGraph::Memory(role)),
    }
}

/// Returns the bodies of a conditional node, as the driver returned them at its creation; drivers
/// before 13.2 do not return them again.
fn bodies(tenant: &Tenant, node: CUgraphNode) -> impl Iterator<Item = CUgraph> {
    let Bodies { list, count } =
        tenant.graphs().conditional(NodeId(node.0)).unwrap_or(Bodies { list: 0, count: 0 });
    let list = ptr::with_exposed_provenance::<CUgraph>(list);
    (0..count as usize).map(move |place| {
        // SAFETY: `place` is below the length of the driver's list.
        let body = unsafe { list.add(place) };
        // SAFETY: the driver's list exists as long as the node, which is in a graph that the
        // program uses.
        unsafe { body.read() }
    })
}
