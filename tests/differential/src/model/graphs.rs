//! Graphs that allocate: their nodes, and which memory is allocated when.
//!
//! A node allocates when its graph is launched. The memory outlives the graph. It is freed by a
//! node of the same or another graph, by the program, or by a launch with AUTO_FREE_ON_LAUNCH.
//! Freed memory stays reserved for graphs until a trim.

use std::collections::{BTreeMap, BTreeSet};

use super::BLOCK;
use crate::command::StreamKey;

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// Allocates memory of this name.
    Allocate(u32),
    /// Frees it.
    Free(u32),
    /// A child graph.
    Part(u32),
    /// A condition with two bodies, of which the first runs.
    Either([u32; 2]),
}

/// A graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuiltGraph {
    /// Nodes in the order of their creation.
    pub nodes: Vec<Node>,
    /// Whether it is part of another graph.
    pub is_part: bool,
    /// Whether the driver created it as a copy: the program has no handle for it.
    pub is_copy: bool,
    /// Whether a capture adds to it.
    pub is_captured: bool,
    /// The executable graph made from it while it has memory nodes: one at a time.
    pub executable: Option<u32>,
}

/// The nodes of a graph and its parts when it was instantiated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// As [`Node::Allocate`].
    Allocate(u32),
    /// As [`Node::Free`].
    Free(u32),
    /// As [`Node::Part`].
    Part(Vec<Shape>),
    /// As [`Node::Either`].
    Either([Vec<Shape>; 2]),
}

/// An executable graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executable {
    /// The context that it is launched in, while that is live.
    pub context: Option<u32>,
    /// The graph that it was made from.
    pub source: u32,
    /// Its nodes.
    pub shape: Vec<Shape>,
    /// Whether a launch frees what the launch before it allocated.
    pub frees: bool,
}

/// Memory that a node allocates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Size in bytes.
    pub bytes: u64,
    /// The graph that allocates it.
    pub owner: u32,
    /// Whether that graph also frees it.
    pub by_owner: bool,
    /// Other graphs that free it.
    pub by_others: BTreeSet<u32>,
    /// Whether it is allocated.
    pub is_live: bool,
}

impl Memory {
    /// Returns the bytes reserved for it, in whole blocks.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.bytes.next_multiple_of(BLOCK)
    }
}

/// A stream capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The graph that it builds.
    pub graph: u32,
    /// Whether that existed before.
    pub into: bool,
    /// Whether it forbids its thread other calls.
    pub is_strict: bool,
    /// Whether it was invalidated.
    pub is_broken: bool,
    /// Its other streams, and whether they have work that the first one does not wait for.
    pub others: BTreeMap<StreamKey, bool>,
}

/// Graphs of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graphs {
    /// Graphs by name.
    pub graphs: BTreeMap<u32, BuiltGraph>,
    /// Executable graphs by name.
    pub executables: BTreeMap<u32, Executable>,
    /// Memory of nodes by name.
    pub memory: BTreeMap<u32, Memory>,
    /// Captures by the stream that they began in.
    pub captures: BTreeMap<StreamKey, Capture>,
    /// Reserved bytes when last observed, and the maximum since the mark was reset.
    pub reserved: [u64; 2],
    /// Minimum and maximum of what the high-water mark of used memory can be.
    pub used_high: [u64; 2],
}

/// The allocations and frees of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Names of allocated memory.
    pub allocates: Vec<u32>,
    /// Names of freed memory.
    pub frees: Vec<u32>,
}

impl Work {
    fn of(shape: &[Shape], all: bool) -> Self {
        let mut work = Self::default();
        work.add(shape, all);
        work
    }

    /// With `all`, bodies that do not run count as well.
    fn add(&mut self, shape: &[Shape], all: bool) {
        for node in shape {
            match node {
                Shape::Allocate(key) => self.allocates.push(*key),
                Shape::Free(key) => self.frees.push(*key),
                Shape::Part(part) => self.add(part, all),
                Shape::Either([done, other]) => {
                    self.add(done, all);
                    if all {
                        self.add(other, all);
                    }
                }
            }
        }
    }
}

impl Graphs {
    /// Returns whether the process has no graphs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.graphs.is_empty() && self.executables.is_empty() && self.memory.is_empty()
    }

    /// Returns the requested bytes that are allocated.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.memory.values().filter(|memory| memory.is_live).map(|memory| memory.bytes).sum()
    }

    /// Returns the bytes that those take on the GPU.
    #[must_use]
    pub fn live_rooms(&self) -> u64 {
        self.memory.values().filter(|memory| memory.is_live).map(Memory::room).sum()
    }

    /// Returns the present shape of a graph.
    #[must_use]
    pub fn shape(&self, graph: u32) -> Vec<Shape> {
        let nodes = self.graphs.get(&graph).map_or(&[][..], |graph| &graph.nodes);
        let shape = |node: &Node| match node {
            Node::Allocate(key) => Shape::Allocate(*key),
            Node::Free(key) => Shape::Free(*key),
            Node::Part(part) => Shape::Part(self.shape(*part)),
            Node::Either(bodies) => Shape::Either(bodies.map(|body| self.shape(body))),
        };
        nodes.iter().map(shape).collect()
    }

    /// Returns what a launch does; with `all`, including bodies that do not run.
    #[must_use]
    pub fn work(shape: &[Shape], all: bool) -> Work {
        Work::of(shape, all)
    }

    /// Returns whether a graph or a part of it allocates or frees.
    #[must_use]
    pub fn has_memory(&self, graph: u32) -> bool {
        Self::work(&self.shape(graph), true) != Work::default()
    }

    /// Returns the minimum and the maximum of the bytes that a launch can take.
    #[must_use]
    pub fn launch_bytes(&self, shape: &[Shape]) -> (u64, u64) {
        (self.fresh(shape).map(|memory| memory.bytes).sum(), self.bound(shape))
    }

    fn bound(&self, shape: &[Shape]) -> u64 {
        let all = Self::work(shape, true).allocates;
        all.iter().filter_map(|key| self.memory.get(key)).map(Memory::room).sum()
    }

    /// Returns the memory that a launch adds to what is allocated.
    fn fresh(&self, shape: &[Shape]) -> impl Iterator<Item = &Memory> {
        let done = Self::work(shape, false).allocates;
        done.into_iter()
            .filter_map(move |key| self.memory.get(&key))
            .filter(|memory| !memory.is_live)
    }

    /// Returns the bytes that it takes on the GPU.
    #[must_use]
    pub fn fresh_rooms(&self, shape: &[Shape]) -> u64 {
        self.fresh(shape).map(Memory::room).sum()
    }

    /// Returns whether an executable graph can be launched: its allocations are free, and what it
    /// frees is allocated.
    #[must_use]
    pub fn can_launch(&self, executable: &Executable) -> bool {
        let work = Self::work(&executable.shape, false);
        let is_live = |key: &u32| self.memory.get(key).is_some_and(|memory| memory.is_live);
        work.allocates.iter().all(|key| executable.frees || !is_live(key))
            && work.frees.iter().all(|key| work.allocates.contains(key) || is_live(key))
    }

    /// Returns whether it frees memory that no graph names any more and that was never allocated:
    /// other memory may have that address by now.
    #[must_use]
    pub fn frees_unnamed(&self, executable: &Executable) -> bool {
        let frees = Self::work(&executable.shape, false).frees;
        frees.iter().any(|key| !self.memory.contains_key(key))
    }

    /// Applies a launch.
    pub fn launched(&mut self, executable: u32) {
        let Some(executable) = self.executables.get(&executable) else { return };
        let work = Self::work(&executable.shape, false);
        // As far as the model knows, all of its allocations exist at once.
        for key in work.allocates {
            if let Some(memory) = self.memory.get_mut(&key) {
                memory.is_live = true;
            }
        }
        // The driver decides how much exists at a time. What remains allocated is certain.
        for key in work.frees {
            if let Some(memory) = self.memory.get_mut(&key) {
                memory.is_live = false;
            }
        }
        self.used_high[0] = self.used_high[0].max(self.live_rooms());
        self.forget();
    }

    /// Applies an observation of the reserved bytes.
    pub fn seen(&mut self, reserved: u64) {
        self.reserved = [reserved, self.reserved[1].max(reserved)];
        self.used_high[1] = self.used_high[1].max(reserved);
    }

    /// Returns whether a node of `graph` may free memory: one node of its own graph and no other,
    /// or one node in each of several other graphs.
    #[must_use]
    pub fn can_free(&self, graph: u32, key: u32) -> bool {
        self.memory.get(&key).is_some_and(|memory| {
            let own = memory.owner == graph;
            let once = !memory.by_owner && !memory.by_others.contains(&graph);
            once && (!own || memory.by_others.is_empty())
        })
    }

    /// Adds a node that allocates.
    pub fn allocates(&mut self, graph: u32, key: u32, bytes: u64) {
        let memory = Memory {
            bytes,
            owner: graph,
            by_owner: false,
            by_others: BTreeSet::new(),
            is_live: false,
        };
        self.memory.insert(key, memory);
        self.add(graph, Node::Allocate(key));
    }

    /// Adds a node that frees.
    pub fn frees(&mut self, graph: u32, key: u32) {
        if let Some(memory) = self.memory.get_mut(&key) {
            if memory.owner == graph {
                memory.by_owner = true;
            } else {
                memory.by_others.insert(graph);
            }
        }
        self.add(graph, Node::Free(key));
    }

    /// Adds a node to a graph.
    pub fn add(&mut self, graph: u32, node: Node) {
        self.graphs.entry(graph).or_default().nodes.push(node);
    }

    /// Copies a graph under a name from `fresh`.
    pub fn copy(&mut self, graph: u32, fresh: &mut impl FnMut() -> u32) -> u32 {
        let nodes = self.graphs.get(&graph).map(|graph| graph.nodes.clone()).unwrap_or_default();
        let copy = fresh();
        let mut part = |part: u32| self.copy(part, &mut *fresh);
        let nodes = nodes.into_iter().map(|node| match node {
            Node::Part(its) => Node::Part(part(its)),
            Node::Either(bodies) => Node::Either(bodies.map(&mut part)),
            memory => memory,
        });
        let nodes = nodes.collect();
        self.graphs.insert(
            copy,
            BuiltGraph { nodes, is_part: true, is_copy: true, ..BuiltGraph::default() },
        );
        copy
    }

    /// Removes a graph and its parts.
    pub fn end(&mut self, graph: u32) {
        let Some(gone) = self.graphs.remove(&graph) else { return };
        for node in gone.nodes {
            match node {
                Node::Part(part) => self.end(part),
                Node::Either(bodies) => bodies.into_iter().for_each(|body| self.end(body)),
                Node::Allocate(_) | Node::Free(_) => {}
            }
        }
        self.forget();
    }

    /// Removes an executable graph; its memory stays allocated.
    pub fn end_executable(&mut self, executable: u32) {
        let Some(gone) = self.executables.remove(&executable) else { return };
        if let Some(source) = self.graphs.get_mut(&gone.source)
            && source.executable == Some(executable)
        {
            source.executable = None;
        }
        self.forget();
    }

    /// Ends a capture without a graph.
    pub fn abandon(&mut self, origin: StreamKey) {
        let Some(capture) = self.captures.remove(&origin) else { return };
        match self.graphs.get_mut(&capture.graph) {
            Some(graph) if capture.into => graph.is_captured = false,
            _ => self.end(capture.graph),
        }
    }

    /// Removes a context: its executable graphs cannot be launched any more, and its captures end.
    pub fn remove_context(&mut self, context: u32) {
        let its =
            self.executables.values_mut().filter(|executable| executable.context == Some(context));
        its.for_each(|executable| executable.context = None);
        let origins: Vec<StreamKey> =
            self.captures.keys().copied().filter(|lane| lane.context == context).collect();
        origins.into_iter().for_each(|origin| self.abandon(origin));
    }

    /// Returns whether a capture forbids its thread other calls.
    #[must_use]
    pub fn is_strict(&self) -> bool {
        self.captures.values().any(|capture| capture.is_strict)
    }

    /// Returns the origin stream of the capture that a stream is part of.
    #[must_use]
    pub fn capture_of(&self, lane: StreamKey) -> Option<StreamKey> {
        let is_in = |(origin, capture): &(&StreamKey, &Capture)| {
            **origin == lane || capture.others.contains_key(&lane)
        };
        self.captures.iter().find(is_in).map(|(origin, _)| *origin)
    }

    /// Applies a free by the program.
    pub fn freed_by_program(&mut self, key: u32) {
        if let Some(memory) = self.memory.get_mut(&key) {
            memory.is_live = false;
        }
        self.forget();
    }

    /// Returns whether an executable graph allocates it.
    #[must_use]
    pub fn is_armed(&self, key: u32) -> bool {
        self.executables
            .values()
            .any(|executable| Self::work(&executable.shape, true).allocates.contains(&key))
    }

    /// Forgets memory that no graph names: the driver may use its address for another node.
    fn forget(&mut self) {
        let named = self.executables.values().flat_map(|executable| {
            let Work { allocates, .. } = Self::work(&executable.shape, true);
            allocates
        });
        let drawn = self.graphs.values().flat_map(|graph| &graph.nodes);
        let drawn =
            drawn.filter_map(|node| if let Node::Allocate(key) = node { Some(*key) } else { None });
        let named: BTreeSet<u32> = named.chain(drawn).collect();
        self.memory.retain(|key, memory| memory.is_live || named.contains(key));
    }
}
