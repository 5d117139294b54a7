//! The steps of a graph and its child graphs, in an order that respects their dependencies.

use std::collections::HashMap;
use std::sync::Arc;

use cgpu_abi::types::*;
use cgpu_sim::machine::{ContextId, Plan, Step};

use super::memory::Reservation;
use super::node::{Body, ConditionalNode};
use super::{Node, Nodes};
use crate::answer::{Answer, INVALID_VALUE};

/// A step: a part of a node's work, or a point where branches meet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Of(CUgraph, CUgraphNode, usize),
    Meeting,
}

#[derive(Debug)]
pub(super) struct Order {
    pub(super) plan: Plan,
    pub(super) parts: Vec<Part>,
    /// Its allocations, and the addresses that it frees.
    pub(super) allocations: Vec<Arc<Reservation>>,
    pub(super) frees: Vec<CUdeviceptr>,
}

/// A graph and its child graphs, to be ordered.
pub(super) struct Shapes<'a> {
    pub(super) nodes: &'a HashMap<CUgraph, Nodes>,
    /// Returns a conditional handle's value at the start of a launch.
    pub(super) value: &'a dyn Fn(CUgraphConditionalHandle) -> c_uint,
    /// Context of steps that have none of their own.
    pub(super) home: ContextId,
}

/// Sorts the nodes of a graph so that each follows those that it depends on; otherwise they stay in
/// the order of their creation.
///
/// # Errors
///
/// Returns a node that depends on itself.
pub(super) fn sorted(nodes: &Nodes) -> Result<Vec<CUgraphNode>, CUgraphNode> {
    let mut missing: HashMap<CUgraphNode, usize> =
        nodes.iter().map(|(&handle, node)| (handle, node.dependencies.len())).collect();
    let mut dependents: HashMap<CUgraphNode, Vec<CUgraphNode>> = HashMap::new();
    for (&handle, node) in nodes {
        for edge in &node.dependencies {
            dependents.entry(edge.from).or_default().push(handle);
        }
    }
    let ready =
        |(&handle, node): (&CUgraphNode, &Node)| node.dependencies.is_empty().then_some(handle);
    let mut ready: std::collections::BTreeSet<CUgraphNode> =
        nodes.iter().filter_map(ready).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(next) = ready.pop_first() {
        order.push(next);
        missing.remove(&next);
        for dependent in dependents.get(&next).into_iter().flatten() {
            if let Some(count) = missing.get_mut(dependent) {
                *count -= 1;
                if *count == 0 {
                    ready.insert(*dependent);
                }
            }
        }
    }
    match missing.keys().min() {
        None => Ok(order),
        Some(&stuck) => Err(stuck),
    }
}

#[derive(Default)]
struct Gathering {
    steps: Vec<Step>,
    parts: Vec<Part>,
    allocations: Vec<Arc<Reservation>>,
    frees: Vec<CUdeviceptr>,
}

impl Order {
    pub(super) fn of(root: CUgraph, shapes: &Shapes<'_>) -> Answer<Self> {
        let mut gathering = Gathering::default();
        gathering.graph(root, &[], shapes)?;
        let Gathering { steps, parts, allocations, frees } = gathering;
        Ok(Self { plan: Plan::new(steps), parts, allocations, frees })
    }
}

impl Gathering {
    fn step(&mut self, part: Part, context: ContextId, after: Vec<usize>) -> usize {
        self.steps.push(Step { context, after });
        self.parts.push(part);
        self.steps.len() - 1
    }

    /// Returns the one step that follows all of these; adds a meeting point if there are several.
    fn meeting(&mut self, mut steps: Vec<usize>, home: ContextId) -> Vec<usize> {
        steps.sort_unstable();
        steps.dedup();
        if steps.len() < 2 { steps } else { vec![self.step(Part::Meeting, home, steps)] }
    }

    /// Adds a graph's steps after `entry`. Returns the steps that end it.
    fn graph(
        &mut self,
        graph: CUgraph,
        entry: &[usize],
        shapes: &Shapes<'_>,
    ) -> Answer<Vec<usize>> {
        let nodes = shapes.nodes.get(&graph).ok_or(INVALID_VALUE)?;
        let mut ends: HashMap<CUgraphNode, Vec<usize>> = HashMap::new();
        let mut waited: std::collections::HashSet<CUgraphNode> = std::collections::HashSet::new();
        for handle in sorted(nodes).map_err(|_| INVALID_VALUE)? {
            let node = &nodes[&handle];
            let mut after: Vec<usize> = Vec::new();
            for edge in &node.dependencies {
                waited.insert(edge.from);
                after.extend(ends.get(&edge.from).into_iter().flatten());
            }
            if node.dependencies.is_empty() {
                after.extend(entry);
            }
            after.sort_unstable();
            after.dedup();
            let end = self.node(graph, handle, &node.body, after, shapes)?;
            ends.insert(handle, end);
        }
        let last = ends.iter().filter(|(handle, _)| !waited.contains(handle));
        let last: Vec<usize> = last.flat_map(|(_, steps)| steps.iter().copied()).collect();
        // An empty graph ends with the steps before it.
        Ok(if nodes.is_empty() { entry.to_vec() } else { last })
    }

    fn node(
        &mut self,
        graph: CUgraph,
        handle: CUgraphNode,
        body: &Body,
        after: Vec<usize>,
        shapes: &Shapes<'_>,
    ) -> Answer<Vec<usize>> {
        match body {
            Body::Child(child) => {
                let entry = self.meeting(after, shapes.home);
                let ends = self.graph(*child, &entry, shapes)?;
                Ok(self.meeting(ends, shapes.home))
            }
            Body::Conditional(node) => self.conditional(node, after, shapes),
            _ => {
                match body {
                    Body::Allocate(reservation) => self.allocations.push(Arc::clone(reservation)),
                    Body::Free(address) => self.frees.push(*address),
                    _ => {}
                }
                let context = body.context().map_or(shapes.home, |context| context.id);
                let first = self.step(Part::Of(graph, handle, 0), context, after);
                let mut last = first;
                for part in 1..body.steps() {
                    last = self.step(Part::Of(graph, handle, part), context, vec![last]);
                }
                Ok(vec![last])
            }
        }
    }

    fn conditional(
        &mut self,
        node: &ConditionalNode,
        after: Vec<usize>,
        shapes: &Shapes<'_>,
    ) -> Answer<Vec<usize>> {
        let entry = self.meeting(after, shapes.home);
        match node.chosen((shapes.value)(node.handle)) {
            Some(body) => {
                let ends = self.graph(body, &entry, shapes)?;
                Ok(self.meeting(ends, shapes.home))
            }
            None => Ok(entry),
        }
    }
}
