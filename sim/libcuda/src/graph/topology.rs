//! Dependencies between nodes: queried and changed.

use std::collections::btree_map::Entry;

use cgpu_abi::types::*;

use super::{Edge, Graphs, Nodes, edges};
use crate::answer::{Answer, INVALID_VALUE, LOSSY_QUERY, NOT_SUPPORTED};
use crate::argument::{In, Out};
use crate::call::Call;

/// Writes a list; the rest of the caller's array becomes NULL. If the caller passes no array,
/// writes only the length.
fn put_list(list: &[CUgraphNode], to: Out<CUgraphNode>, length: Out<usize>) -> Answer {
    if to.is_null() {
        length.put(list.len())?;
        return Ok(());
    }
    let capacity = length.read()?;
    to.put_all(list.iter().copied().chain(core::iter::repeat(CUgraphNode::NULL)), capacity)?;
    length.put(list.len().min(capacity))?;
    Ok(())
}

/// Writes the data of edges. `to` is `None` for functions without edge data, and NULL if the caller
/// passes no array.
fn put_data(
    edges: &[Edge],
    to: Option<Out<CUgraphEdgeData>>,
    requested: bool,
    capacity: usize,
) -> Answer {
    match to.filter(|to| !to.is_null()) {
        Some(to) => to.put_all(edges.iter().map(|edge| edge.data), capacity.min(edges.len()))?,
        // The caller must not miss data that matters.
        None if requested && !edges.iter().all(Edge::is_plain) => return Err(LOSSY_QUERY),
        None => {}
    }
    Ok(())
}

pub(crate) fn cuGraphGetNodes(
    call: &Call,
    graph: CUgraph,
    nodes: Out<CUgraphNode>,
    num_nodes: Out<usize>,
) -> Answer {
    let driver = call.driver()?;
    let all: Vec<CUgraphNode> = Graphs::of(driver).graph(graph)?.nodes.keys().copied().collect();
    put_list(&all, nodes, num_nodes)
}

pub(crate) fn cuGraphGetRootNodes(
    call: &Call,
    graph: CUgraph,
    root_nodes: Out<CUgraphNode>,
    num_root_nodes: Out<usize>,
) -> Answer {
    let driver = call.driver()?;
    let graphs = Graphs::of(driver);
    let roots = graphs.graph(graph)?.nodes.iter().filter(|(_, node)| node.dependencies.is_empty());
    let roots: Vec<CUgraphNode> = roots.map(|(&handle, _)| handle).collect();
    put_list(&roots, root_nodes, num_root_nodes)
}

/// Returns every edge, with the node that has it.
fn all_edges(nodes: &Nodes) -> Vec<(CUgraphNode, Edge)> {
    let of = |(&to, node): (&CUgraphNode, &super::Node)| -> Vec<(CUgraphNode, Edge)> {
        node.dependencies.iter().map(|&edge| (to, edge)).collect()
    };
    nodes.iter().flat_map(of).collect()
}

fn get_edges(
    call: &Call,
    graph: CUgraph,
    (from, to): (Out<CUgraphNode>, Out<CUgraphNode>),
    edge_data: Option<Out<CUgraphEdgeData>>,
    num_edges: Out<usize>,
) -> Answer {
    let driver = call.driver()?;
    let all = all_edges(&Graphs::of(driver).graph(graph)?.nodes);
    if from.is_null() != to.is_null() {
        return Err(INVALID_VALUE);
    }
    let (waiting, edges): (Vec<CUgraphNode>, Vec<Edge>) = all.into_iter().unzip();
    if !from.is_null() {
        let capacity = num_edges.read()?;
        put_data(&edges, edge_data, true, capacity)?;
        to.put_all(waiting.iter().copied().chain(core::iter::repeat(CUgraphNode::NULL)), capacity)?;
    }
    let awaited: Vec<CUgraphNode> = edges.iter().map(|edge| edge.from).collect();
    put_list(&awaited, from, num_edges)
}

pub(crate) fn cuGraphGetEdges(
    call: &Call,
    graph: CUgraph,
    from: Out<CUgraphNode>,
    to: Out<CUgraphNode>,
    num_edges: Out<usize>,
) -> Answer {
    get_edges(call, graph, (from, to), None, num_edges)
}

pub(crate) fn cuGraphGetEdges_v2(
    call: &Call,
    graph: CUgraph,
    from: Out<CUgraphNode>,
    to: Out<CUgraphNode>,
    edge_data: Out<CUgraphEdgeData>,
    num_edges: Out<usize>,
) -> Answer {
    get_edges(call, graph, (from, to), Some(edge_data), num_edges)
}

fn put_neighbours(
    edges: &[Edge],
    nodes: Out<CUgraphNode>,
    edge_data: Option<Out<CUgraphEdgeData>>,
    count: Out<usize>,
) -> Answer {
    if !nodes.is_null() {
        put_data(edges, edge_data, true, count.read()?)?;
    }
    let list: Vec<CUgraphNode> = edges.iter().map(|edge| edge.from).collect();
    put_list(&list, nodes, count)
}

pub(crate) fn cuGraphNodeGetDependencies(
    call: &Call,
    node: CUgraphNode,
    dependencies: Out<CUgraphNode>,
    num_dependencies: Out<usize>,
) -> Answer {
    let driver = call.driver()?;
    put_neighbours(
        &Graphs::of(driver).node(node)?.dependencies,
        dependencies,
        None,
        num_dependencies,
    )
}

pub(crate) fn cuGraphNodeGetDependencies_v2(
    call: &Call,
    node: CUgraphNode,
    dependencies: Out<CUgraphNode>,
    edge_data: Out<CUgraphEdgeData>,
    num_dependencies: Out<usize>,
) -> Answer {
    let driver = call.driver()?;
    put_neighbours(
        &Graphs::of(driver).node(node)?.dependencies,
        dependencies,
        Some(edge_data),
        num_dependencies,
    )
}

impl Graphs {
    /// Returns the edges to the nodes that depend on a node; `from` is the dependent node.
    fn dependents(&self, node: CUgraphNode) -> Answer<Vec<Edge>> {
        let all = all_edges(&self.graph(self.owner(node)?)?.nodes);
        let outgoing = all.into_iter().filter(|(_, edge)| edge.from == node);
        Ok(outgoing.map(|(to, edge)| Edge { from: to, data: edge.data }).collect())
    }
}

pub(crate) fn cuGraphNodeGetDependentNodes(
    call: &Call,
    node: CUgraphNode,
    dependent_nodes: Out<CUgraphNode>,
    num_dependent_nodes: Out<usize>,
) -> Answer {
    let driver = call.driver()?;
    put_neighbours(
        &Graphs::of(driver).dependents(node)?,
        dependent_nodes,
        None,
        num_dependent_nodes,
    )
}

pub(crate) fn cuGraphNodeGetDependentNodes_v2(
    call: &Call,
    node: CUgraphNode,
    dependent_nodes: Out<CUgraphNode>,
    edge_data: Out<CUgraphEdgeData>,
    num_dependent_nodes: Out<usize>,
) -> Answer {
    let driver = call.driver()?;
    put_neighbours(
        &Graphs::of(driver).dependents(node)?,
        dependent_nodes,
        Some(edge_data),
        num_dependent_nodes,
    )
}

pub(crate) fn cuGraphAddDependencies_v2(
    call: &Call,
    graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    edge_data: In<CUgraphEdgeData>,
    num_dependencies: usize,
) -> Answer {
    change(
        call,
        graph,
        edges(from, Some(edge_data), num_dependencies)?,
        to,
        |dependencies, edge| {
            let known = dependencies.iter().any(|other| other.from == edge.from);
            dependencies.push(edge);
            !known
        },
    )
}

pub(crate) fn cuGraphAddDependencies(
    call: &Call,
    graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    num_dependencies: usize,
) -> Answer {
    change(call, graph, edges(from, None, num_dependencies)?, to, |dependencies, edge| {
        let known = dependencies.iter().any(|other| other.from == edge.from);
        dependencies.push(edge);
        !known
    })
}

pub(crate) fn cuGraphRemoveDependencies_v2(
    call: &Call,
    graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    _edge_data: In<CUgraphEdgeData>,
    num_dependencies: usize,
) -> Answer {
    cuGraphRemoveDependencies(call, graph, from, to, num_dependencies)
}

pub(crate) fn cuGraphRemoveDependencies(
    call: &Call,
    graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    num_dependencies: usize,
) -> Answer {
    if Graphs::of(call.driver()?).graph(graph)?.has_memory() {
        return Err(NOT_SUPPORTED);
    }
    change(call, graph, edges(from, None, num_dependencies)?, to, |dependencies, edge| {
        let before = dependencies.len();
        dependencies.retain(|other| other.from != edge.from);
        dependencies.len() < before
    })
}

/// Changes dependencies: all of them or none.
fn change(
    call: &Call,
    graph: CUgraph,
    edges: Vec<Edge>,
    to: In<CUgraphNode>,
    apply: impl Fn(&mut Vec<Edge>, Edge) -> bool,
) -> Answer {
    let driver = call.driver()?;
    let to = to.read_all(edges.len())?;
    let mut graphs = Graphs::of(driver);
    let nodes = &mut graphs.graph_mut(graph)?.nodes;
    let mut changed: Nodes = Nodes::new();
    for (edge, to) in edges.into_iter().zip(to) {
        if !nodes.contains_key(&edge.from) || edge.from == to {
            return Err(INVALID_VALUE);
        }
        let node = match changed.entry(to) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(nodes.get(&to).ok_or(INVALID_VALUE)?.clone()),
        };
        if !apply(&mut node.dependencies, edge) {
            return Err(INVALID_VALUE);
        }
    }
    nodes.extend(changed);
    Ok(())
}

pub(crate) fn cuGraphNodeGetType(
    call: &Call,
    node: CUgraphNode,
    kind: Out<CUgraphNodeType>,
) -> Answer {
    let driver = call.driver()?;
    kind.put(Graphs::of(driver).node(node)?.body.kind())?;
    Ok(())
}

pub(crate) fn cuGraphNodeGetContainingGraph(
    call: &Call,
    node: CUgraphNode,
    graph: Out<CUgraph>,
) -> Answer {
    let driver = call.driver()?;
    graph.put(Graphs::of(driver).owner(node)?)?;
    Ok(())
}

pub(crate) fn cuGraphNodeGetLocalId(
    call: &Call,
    node: CUgraphNode,
    node_id: Out<c_uint>,
) -> Answer {
    let driver = call.driver()?;
    node_id.put(Graphs::of(driver).node(node)?.number)?;
    Ok(())
}

/// The graph's number above the node's: unique among all nodes.
pub(crate) fn cuGraphNodeGetToolsId(
    call: &Call,
    node: CUgraphNode,
    tools_node_id: Out<c_ulonglong>,
) -> Answer {
    let driver = call.driver()?;
    let graphs = Graphs::of(driver);
    let graph = graphs.graph(graphs.owner(node)?)?.id;
    tools_node_id.put(u64::from(graph) << 32 | u64::from(graphs.node(node)?.number))?;
    Ok(())
}

pub(crate) fn cuGraphGetId(call: &Call, graph: CUgraph, graph_id: Out<c_uint>) -> Answer {
    let driver = call.driver()?;
    graph_id.put(Graphs::of(driver).graph(graph)?.id)?;
    Ok(())
}
