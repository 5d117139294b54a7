//! Graphs made from others: clones, child graphs, bodies of conditional nodes.

use std::collections::HashMap;
use std::sync::Arc;

use cgpu_abi::types::*;

use super::node::{Body, ConditionalNode};
use super::{Condition, Edge, Graphs, Node, Nodes};
use crate::answer::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::argument::Out;
use crate::call::Call;
use crate::context::Context;
use crate::handle;

impl Graphs {
    /// Creates a graph that is part of another one's node.
    fn create_part(&mut self, graph: CUgraph, node: CUgraphNode) -> Answer<CUgraph> {
        let part = self.create();
        self.graph_mut(part)?.parent = Some((graph, node));
        Ok(part)
    }

    /// Copies nodes into an empty graph, and those of their child graphs, which `nodes_of` returns.
    pub(super) fn fill(
        &mut self,
        graph: CUgraph,
        nodes: &Nodes,
        nodes_of: &dyn Fn(&Self, CUgraph) -> Answer<Nodes>,
    ) -> Answer {
        let copies: Vec<(CUgraphNode, CUgraphNode)> =
            nodes.keys().map(|&original| (original, CUgraphNode(handle::fresh()))).collect();
        let copy_of = |original: CUgraphNode| {
            let found = copies.binary_search_by_key(&original, |(original, _)| *original);
            found.map(|place| copies[place].1).map_err(|_| INVALID_VALUE)
        };
        for (&original, node) in nodes {
            let copy = copy_of(original)?;
            let mut dependencies = node.dependencies.clone();
            for edge in &mut dependencies {
                edge.from = copy_of(edge.from)?;
            }
            let part = |this: &mut Self, of: CUgraph| -> Answer<CUgraph> {
                let nodes = nodes_of(this, of)?;
                let part = this.create_part(graph, copy)?;
                this.fill(part, &nodes, nodes_of)?;
                Ok(part)
            };
            let body = match &node.body {
                Body::Child(child) => Body::Child(part(self, *child)?),
                Body::Conditional(conditional) => {
                    let bodies = conditional
                        .bodies
                        .iter()
                        .map(|&body| part(self, body))
                        .collect::<Answer<Vec<_>>>()?;
                    Body::Conditional(ConditionalNode {
                        bodies: bodies.into(),
                        ..conditional.clone()
                    })
                }
                other => other.clone(),
            };
            let found = self.graph_mut(graph)?;
            found.made = found.made.max(node.number);
            found.nodes.insert(
                copy,
                Node { body, dependencies, original: Some(original), number: node.number },
            );
            self.owners.insert(copy, graph);
        }
        Ok(())
    }

    fn has_memory_within(&self, graph: CUgraph) -> Answer<bool> {
        let graph = self.graph(graph)?;
        if graph.has_memory() {
            return Ok(true);
        }
        let mut parts = graph.nodes.values().flat_map(|node| node.body.parts());
        parts.try_fold(false, |found, part| Ok(found || self.has_memory_within(part)?))
    }

    /// Clones a graph. A graph with memory nodes cannot be cloned: the addresses are the
    /// original's.
    pub(super) fn clone_of(&mut self, original: CUgraph) -> Answer<CUgraph> {
        if self.has_memory_within(original)? {
            return Err(NOT_SUPPORTED);
        }
        let nodes = self.graph(original)?.nodes.clone();
        let clone = self.create();
        self.fill(clone, &nodes, &|this, part| Ok(this.graph(part)?.nodes.clone()))?;
        self.copy_references(original, clone);
        Ok(clone)
    }

    /// Adds a child graph: a copy of `child`, or `child` itself if it `moves`.
    pub(super) fn add_child(
        &mut self,
        graph: CUgraph,
        dependencies: Vec<Edge>,
        child: CUgraph,
        moves: bool,
    ) -> Answer<CUgraphNode> {
        let part = if moves {
            let found = self.graph(child)?;
            if child == graph
                || found.parent.is_some()
                || found.executable.is_some()
                || found.capturing
            {
                return Err(INVALID_VALUE);
            }
            child
        } else {
            self.clone_of(child)?
        };
        let node = self.add(graph, dependencies, Body::Child(part)).inspect_err(|_| {
            if !moves {
                // It was created just now.
                let _ = self.destroy(part);
            }
        })?;
        self.graph_mut(part)?.parent = Some((graph, node));
        Ok(node)
    }

    /// Adds the nodes of an executable graph as a child graph.
    pub(crate) fn add_nodes(
        &mut self,
        graph: CUgraph,
        dependencies: Vec<Edge>,
        root: CUgraph,
        shapes: &HashMap<CUgraph, Nodes>,
    ) -> Answer<CUgraphNode> {
        let nodes_of = |part: CUgraph| shapes.get(&part).cloned().ok_or(INVALID_VALUE);
        let part = self.create();
        self.fill(part, &nodes_of(root)?, &|_, part| nodes_of(part))?;
        let node = self.add(graph, dependencies, Body::Child(part))?;
        self.graph_mut(part)?.parent = Some((graph, node));
        Ok(node)
    }

    pub(super) fn create_condition(
        &mut self,
        graph: CUgraph,
        default: c_uint,
        assigned: bool,
    ) -> Answer<u64> {
        self.graph(graph)?;
        let handle = handle::fresh() as u64;
        self.conditions.insert(handle, Condition { graph, default, assigned, used: false });
        Ok(handle)
    }

    /// Adds a conditional node and creates its bodies.
    pub(super) fn add_conditional(
        &mut self,
        graph: CUgraph,
        dependencies: Vec<Edge>,
        params: &CUDA_CONDITIONAL_NODE_PARAMS,
        context: Arc<Context>,
    ) -> Answer<(CUgraphNode, Arc<[CUgraph]>)> {
        let maximum = match params.kind {
            CU_GRAPH_COND_TYPE_IF => 2,
            CU_GRAPH_COND_TYPE_WHILE => 1,
            CU_GRAPH_COND_TYPE_SWITCH => c_uint::MAX,
            _ => return Err(INVALID_VALUE),
        };
        let condition = self.conditions.get_mut(&params.handle).ok_or(INVALID_VALUE)?;
        // A handle is for one node.
        if params.size == 0 || params.size > maximum || condition.used {
            return Err(INVALID_VALUE);
        }
        condition.used = true;
        let bodies: Arc<[CUgraph]> = (0..params.size).map(|_| self.create()).collect();
        let body = ConditionalNode {
            handle: params.handle,
            kind: params.kind,
            bodies: Arc::clone(&bodies),
            context,
        };
        let node = self.add(graph, dependencies, Body::Conditional(body))?;
        for &body in &*bodies {
            self.graph_mut(body)?.parent = Some((graph, node));
        }
        Ok((node, bodies))
    }

    /// Returns a handle's value at the start of a launch.
    pub(super) fn condition(&self, handle: CUgraphConditionalHandle) -> c_uint {
        let condition = self.conditions.get(&handle).filter(|condition| condition.assigned);
        condition.map_or(0, |condition| condition.default)
    }

    /// Returns whether the graph has a handle that is used by no node.
    pub(super) fn has_unused_condition(&self, graph: CUgraph) -> bool {
        self.conditions.values().any(|condition| condition.graph == graph && !condition.used)
    }

    pub(super) fn destroy_node(&mut self, node: CUgraphNode) -> Answer {
        let owner = self.owner(node)?;
        let graph = self.graph_mut(owner)?;
        if graph.has_memory() {
            return Err(NOT_SUPPORTED);
        }
        let removed = graph.nodes.remove(&node).ok_or(INVALID_VALUE)?;
        for other in graph.nodes.values_mut() {
            other.dependencies.retain(|edge| edge.from != node);
        }
        self.owners.remove(&node);
        self.captures.forget_node(node);
        removed.body.parts().into_iter().try_for_each(|part| self.destroy(part))
    }
}

pub(crate) fn cuGraphClone(
    call: &Call,
    graph_clone: Out<CUgraph>,
    original_graph: CUgraph,
) -> Answer {
    let driver = call.driver()?;
    let graph_clone = graph_clone.required()?;
    graph_clone.put(Graphs::of(driver).clone_of(original_graph)?)?;
    Ok(())
}

pub(crate) fn cuGraphNodeFindInClone(
    call: &Call,
    node: Out<CUgraphNode>,
    original_node: CUgraphNode,
    cloned_graph: CUgraph,
) -> Answer {
    let driver = call.driver()?;
    let node = node.required()?;
    let graphs = Graphs::of(driver);
    let clone = graphs.graph(cloned_graph)?;
    let found = clone.nodes.iter().find(|(_, node)| node.original == Some(original_node));
    node.put(*found.ok_or(INVALID_VALUE)?.0)?;
    Ok(())
}

pub(crate) fn cuGraphDestroy(call: &Call, graph: CUgraph) -> Answer {
    let driver = call.driver()?;
    {
        let mut graphs = Graphs::of(driver);
        // A child graph ends with its node, and a graph that is being captured cannot end.
        let found = graphs.graph(graph)?;
        if found.parent.is_some() || found.capturing {
            return Err(INVALID_VALUE);
        }
        graphs.destroy(graph)?;
    }
    super::memory::sweep(driver);
    super::object::run_destructors(driver);
    Ok(())
}

pub(crate) fn cuGraphChildGraphNodeGetGraph(
    call: &Call,
    node: CUgraphNode,
    graph: Out<CUgraph>,
) -> Answer {
    let driver = call.driver()?;
    let Body::Child(child) = Graphs::of(driver).node(node)?.body else { return Err(INVALID_VALUE) };
    graph.put(child)?;
    Ok(())
}
