//! Graphs: nodes, what they do and on which others they depend.
//!
//! | module | what it is |
//! |---|---|
//! | `node` | what a node does, by its kind |
//! | `arguments` | values of a kernel's parameters |
//! | `copying` | copies between boxes |
//! | `build`, `typed`, `any` | nodes are added and changed: by their own calls, or by one for all kinds |
//! | `topology` | what depends on what |
//! | `family` | clones, children, bodies; graphs end |
//! | `memory` | what graphs allocate: addresses of nodes, physical memory of GPUs |
//! | `executable`, `launch` | graphs made ready, changed since, launched |
//! | `order` | the steps of a graph in an order in which they can be done |
//! | `update` | an executable graph takes over another graph's parameters |
//! | `object` | host objects whose lifetime graphs share |
//! | `dot` | a description for Graphviz |
//!
//! All graphs of the process lie under one lock. Executable graphs hold a copy of what they were made from, so that the two change
//! independently, and have locks of their own, taken first.

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
    /// Waits for all of the other node.
    pub(crate) fn plain(from: CUgraphNode) -> Self {
        Self { from, data: CUgraphEdgeData::default() }
    }

    /// Whether a call that knows no edge data can tell of it.
    pub(crate) fn is_plain(&self) -> bool {
        let CUgraphEdgeData { from_port, to_port, kind, .. } = self.data;
        from_port == 0 && to_port == 0 && kind == 0
    }
}

/// A node of a graph.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) body: Body,
    pub(crate) dependencies: Vec<Edge>,
    /// The node that it is a copy of.
    original: Option<CUgraphNode>,
    /// Which node of its graph.
    number: u32,
}

/// The nodes of a graph, in the order in which they were made.
pub(crate) type Nodes = BTreeMap<CUgraphNode, Node>;

/// A graph.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    id: u32,
    pub(crate) nodes: Nodes,
    /// Nodes ever made in it.
    made: u32,
    /// The graph and the node that it is part of.
    parent: Option<(CUgraph, CUgraphNode)>,
    /// A capture adds to it.
    pub(crate) capturing: bool,
    /// The executable graph made from it, if it has memory of its own.
    executable: Option<CUgraphExec>,
}

impl Graph {
    /// Whether it allocates or frees; of such a graph nothing can be taken away.
    fn has_memory(&self) -> bool {
        self.nodes.values().any(|node| matches!(node.body, Body::Allocate(_) | Body::Free(_)))
    }
}

/// What decides about conditional nodes.
#[derive(Clone, Copy, Debug)]
struct Condition {
    graph: CUgraph,
    default: c_uint,
    assigned: bool,
    used: bool,
}

/// All graphs of the process.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    graphs: HashMap<CUgraph, Graph>,
    /// The graph of each node.
    owners: HashMap<CUgraphNode, CUgraph>,
    conditions: HashMap<CUgraphConditionalHandle, Condition>,
    objects: Objects,
    pub(crate) captures: Captures,
    /// Graphs and executable graphs ever made.
    made: u32,
}

impl Graphs {
    /// All graphs, locked.
    pub(crate) fn of(driver: &Driver) -> MutexGuard<'_, Self> {
        lock(&driver.graphs)
    }

    fn number(&mut self) -> u32 {
        self.made += 1;
        self.made
    }

    /// Makes an empty graph.
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

    /// The graph of a node.
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

    /// Adds a node.
    pub(crate) fn add(
        &mut self,
        graph: CUgraph,
        dependencies: Vec<Edge>,
        body: Body,
    ) -> Answer<CUgraphNode> {
        let there = self.graph_mut(graph)?;
        for (index, edge) in dependencies.iter().enumerate() {
            let twice = dependencies[..index].iter().any(|other| other.from == edge.from);
            if twice || !there.nodes.contains_key(&edge.from) {
                return Err(INVALID_VALUE);
            }
        }
        let node = CUgraphNode(handle::fresh());
        there.made += 1;
        let number = there.made;
        there.nodes.insert(node, Node { body, dependencies, original: None, number });
        self.owners.insert(node, graph);
        Ok(node)
    }

    /// Ends a graph and all that is part of it.
    pub(crate) fn destroy(&mut self, graph: CUgraph) -> Answer {
        let gone = self.graphs.remove(&graph).ok_or(INVALID_VALUE)?;
        for (node, Node { body, .. }) in gone.nodes {
            self.owners.remove(&node);
            for part in body.parts() {
                // A part that was moved elsewhere is not there any more.
                let _ = self.destroy(part);
            }
        }
        self.conditions.retain(|_, condition| condition.graph != graph);
        self.objects.end(Owner::Graph(graph));
        Ok(())
    }
}
