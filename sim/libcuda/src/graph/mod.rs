//! Graphs: nodes, their work and their dependencies.
//!
//! | module | contents |
//! |---|---|
//! | `node` | the work of a node, by its kind |
//! | `arguments` | arguments of kernels |
//! | `copying` | copies between boxes |
//! | `build`, `typed`, `any` | nodes are added and changed: by the functions of their kind, or by those for all kinds |
//! | `topology` | dependencies |
//! | `family` | clones, child graphs, bodies; the end of graphs |
//! | `memory` | allocations of graphs: addresses of nodes, physical memory of GPUs |
//! | `executable`, `launch` | graphs are instantiated, changed, launched |
//! | `order` | a graph's steps in an order that respects its dependencies |
//! | `update` | an executable graph takes over another graph's parameters |
//! | `object` | user objects, whose lifetime graphs share |
//! | `dot` | descriptions for Graphviz |
//!
//! One lock protects all graphs of the process. Executable graphs hold a copy of their source, so
//! that the two change independently. They have their own locks, which are taken first.

mod any;
mod arguments;
mod build;
mod copying;
mod dot;
mod executable;
mod family;
mod launch;
pub(crate) mod memory;
pub(crate) mod node;
mod object;
mod order;
mod topology;
mod typed;
mod update;

use std::collections::{BTreeMap, HashMap};
use std::sync::MutexGuard;

use cgpu_abi::types::*;

pub(crate) use any::*;
pub(crate) use arguments::Arguments;
pub(crate) use build::*;
pub(crate) use copying::Copying;
pub(crate) use dot::*;
pub(crate) use executable::*;
pub(crate) use family::*;
pub(crate) use launch::*;
pub(crate) use memory::*;
pub(crate) use object::*;
pub(crate) use topology::*;
pub(crate) use typed::*;
pub(crate) use update::*;

use node::Body;
use object::{Objects, Owner};

use crate::answer::{Answer, INVALID_VALUE};
use crate::argument::{Received, values};
use crate::capture::Captures;
use crate::driver::{Driver, lock};
use crate::handle;

values!(CUgraphNode, CUgraphExec, CUuserObject);

/// One node's dependency on another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) from: CUgraphNode,
    pub(crate) data: CUgraphEdgeData,
}

impl Edge {
    /// Returns an edge that waits for all of the other node.
    pub(crate) fn plain(from: CUgraphNode) -> Self {
        Self { from, data: CUgraphEdgeData::default() }
    }

    /// Returns whether a function without edge data can report the edge.
    pub(crate) fn is_plain(&self) -> bool {
        let CUgraphEdgeData { from_port, to_port, kind, .. } = self.data;
        from_port == 0 && to_port == 0 && kind == 0
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) body: Body,
    pub(crate) dependencies: Vec<Edge>,
    /// The node that it was copied from.
    original: Option<CUgraphNode>,
    /// Number of the node in its graph.
    number: u32,
}

/// The nodes of a graph, in the order of their creation.
pub(crate) type Nodes = BTreeMap<CUgraphNode, Node>;

#[derive(Debug, Default)]
pub(crate) struct Graph {
    id: u32,
    pub(crate) nodes: Nodes,
    /// Number of nodes ever created in it.
    made: u32,
    /// Of a child graph: the graph and the node that contain it.
    parent: Option<(CUgraph, CUgraphNode)>,
    /// Whether a capture adds to it.
    pub(crate) capturing: bool,
    /// The executable graph made from it, if it has memory nodes.
    executable: Option<CUgraphExec>,
}

impl Graph {
    /// Returns whether it has memory nodes; such a graph cannot be cloned and its nodes cannot be
    /// removed.
    fn has_memory(&self) -> bool {
        self.nodes.values().any(|node| matches!(node.body, Body::Allocate(_) | Body::Free(_)))
    }
}

/// The value that controls a conditional node.
#[derive(Clone, Copy, Debug)]
struct Condition {
    graph: CUgraph,
    default: c_uint,
    assigned: bool,
    used: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Graphs {
    graphs: HashMap<CUgraph, Graph>,
    owners: HashMap<CUgraphNode, CUgraph>,
    conditions: HashMap<CUgraphConditionalHandle, Condition>,
    objects: Objects,
    pub(crate) captures: Captures,
    /// Number of graphs and executable graphs ever created.
    made: u32,
}

impl Graphs {
    /// Locks all graphs.
    pub(crate) fn of(driver: &Driver) -> MutexGuard<'_, Self> {
        lock(&driver.graphs)
    }

    fn number(&mut self) -> u32 {
        self.made += 1;
        self.made
    }

    pub(crate) fn create(&mut self) -> CUgraph {
        let graph = CUgraph(handle::fresh());
        let id = self.number();
        self.graphs.insert(graph, Graph { id, ..Graph::default() });
        graph
    }

    pub(crate) fn graph(&self, graph: CUgraph) -> Answer<&Graph> {
        self.graphs.get(&graph).ok_or(INVALID_VALUE)
    }

    pub(crate) fn graph_mut(&mut self, graph: CUgraph) -> Answer<&mut Graph> {
        self.graphs.get_mut(&graph).ok_or(INVALID_VALUE)
    }

    pub(crate) fn owner(&self, node: CUgraphNode) -> Answer<CUgraph> {
        self.owners.get(&node).copied().ok_or(INVALID_VALUE)
    }

    pub(crate) fn node(&self, node: CUgraphNode) -> Answer<&Node> {
        self.graph(self.owner(node)?)?.nodes.get(&node).ok_or(INVALID_VALUE)
    }

    fn node_mut(&mut self, node: CUgraphNode) -> Answer<&mut Node> {
        let owner = self.owner(node)?;
        self.graph_mut(owner)?.nodes.get_mut(&node).ok_or(INVALID_VALUE)
    }

    pub(crate) fn add(
        &mut self,
        graph: CUgraph,
        dependencies: Vec<Edge>,
        body: Body,
    ) -> Answer<CUgraphNode> {
        let target = self.graph_mut(graph)?;
        for (index, edge) in dependencies.iter().enumerate() {
            let twice = dependencies[..index].iter().any(|other| other.from == edge.from);
            if twice || !target.nodes.contains_key(&edge.from) {
                return Err(INVALID_VALUE);
            }
        }
        let node = CUgraphNode(handle::fresh());
        target.made += 1;
        let number = target.made;
        target.nodes.insert(node, Node { body, dependencies, original: None, number });
        self.owners.insert(node, graph);
        Ok(node)
    }

    /// Destroys a graph and everything that is part of it.
    pub(crate) fn destroy(&mut self, graph: CUgraph) -> Answer {
        let removed = self.graphs.remove(&graph).ok_or(INVALID_VALUE)?;
        for (node, Node { body, .. }) in removed.nodes {
            self.owners.remove(&node);
            for part in body.parts() {
                // A part that was moved elsewhere is no longer found.
                let _ = self.destroy(part);
            }
        }
        self.conditions.retain(|_, condition| condition.graph != graph);
        self.objects.end(Owner::Graph(graph));
        Ok(())
    }
}
