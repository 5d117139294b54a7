//! Graphs that allocate: what each has in it, and what of it is allocated when.
//!
//! A node allocates when its graph is launched. What it has allocated lives until a node frees it, of the same graph or of another one, or
//! the program does, or a launch that frees by itself; it outlives the graph. What is freed stays reserved for graphs until the GPU is told
//! to give back what they do not use.

use std::collections::{BTreeMap, BTreeSet};

use super::BLOCK;
use crate::command::Strand;

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// Of memory, by its name.
    Allocate(u32),
    /// Of the same.
    Free(u32),
    /// A graph that is part of this one.
    Part(u32),
    /// Two of them: the first is done.
    Either([u32; 2]),
}

/// A graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drawn {
    /// In the order in which they were made.
    pub nodes: Vec<Node>,
    /// Whether it is part of another one.
    pub is_part: bool,
    /// Whether the driver made it as a copy: then the program has no name for it.
    pub is_copy: bool,
    /// Whether a capture adds to it.
    pub is_captured: bool,
    /// The executable graph that was made of it while it had memory: there is one at a time.
    pub executable: Option<u32>,
}

/// A graph as it was when something was made of it: its nodes, and those of its parts.
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
    /// Where it is launched, while that is there.
    pub context: Option<u32>,
    /// What it was made of.
    pub source: u32,
    /// What it does.
    pub shape: Vec<Shape>,
    /// Whether a launch frees what the one before it has allocated.
    pub frees: bool,
}

/// What a node allocates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Its size.
    pub bytes: u64,
    /// The graph that it is allocated in.
    pub owner: u32,
    /// Whether that frees it, too.
    pub by_owner: bool,
    /// Other graphs that free it.
    pub by_others: BTreeSet<u32>,
    /// Whether it is allocated.
    pub is_live: bool,
}

impl Memory {
    /// What is reserved for it: whole blocks.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.bytes.next_multiple_of(BLOCK)
    }
}

/// A capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// What it makes.
    pub graph: u32,
    /// Whether that was there before.
    pub into: bool,
    /// Whether its thread may not do everything meanwhile.
    pub is_strict: bool,
    /// Whether it was broken.
    pub is_broken: bool,
    /// Its other streams; whether they have work that the first one does not wait for.
    pub others: BTreeMap<Strand, bool>,
}

/// All of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graphs {
    /// By their names.
    pub graphs: BTreeMap<u32, Drawn>,
    /// By their names.
    pub executables: BTreeMap<u32, Executable>,
    /// By their names.
    pub memory: BTreeMap<u32, Memory>,
    /// By the streams that they began in.
    pub captures: BTreeMap<Strand, Capture>,
    /// What is reserved, as it was last seen, and the most since that mark was set back.
    pub reserved: [u64; 2],
    /// The least and the most that the mark of what is used can say.
    pub used_high: [u64; 2],
}

/// What a launch does with memory: what it allocates, what it frees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// By names.
    pub allocates: Vec<u32>,
    /// By names.
    pub frees: Vec<u32>,
}

impl Work {
    fn of(shape: &[Shape], all: bool) -> Self {
        let mut work = Self::default();
        work.add(shape, all);
        work
    }

    /// `all`: of bodies that are not done, too.
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
    /// Whether there is nothing of all this.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.graphs.is_empty() && self.executables.is_empty() && self.memory.is_empty()
    }

    /// What is allocated, as it was asked for.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.memory.values().filter(|memory| memory.is_live).map(|memory| memory.bytes).sum()
    }

    /// What of the GPU that takes.
    #[must_use]
    pub fn live_rooms(&self) -> u64 {
        self.memory.values().filter(|memory| memory.is_live).map(Memory::room).sum()
    }

    /// A graph as it is now.
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

    /// What a launch of a graph would do; with `all`, whatever its conditions say.
    #[must_use]
    pub fn work(shape: &[Shape], all: bool) -> Work {
        Work::of(shape, all)
    }

    /// Whether a graph, or a part of it, allocates or frees.
    #[must_use]
    pub fn has_memory(&self, graph: u32) -> bool {
        Self::work(&self.shape(graph), true) != Work::default()
    }

    /// The most that a launch can take.
    #[must_use]
    pub fn bound(&self, shape: &[Shape]) -> u64 {
        let all = Self::work(shape, true).allocates;
        all.iter().filter_map(|key| self.memory.get(key)).map(Memory::room).sum()
    }

    /// What a launch takes, as it was asked for, beyond what is allocated.
    #[must_use]
    pub fn fresh(&self, shape: &[Shape]) -> u64 {
        let done = Self::work(shape, false).allocates;
        let fresh =
            done.iter().filter_map(|key| self.memory.get(key)).filter(|memory| !memory.is_live);
        fresh.map(|memory| memory.bytes).sum()
    }

    /// What of the GPU that takes.
    #[must_use]
    pub fn fresh_rooms(&self, shape: &[Shape]) -> u64 {
        let done = Self::work(shape, false).allocates;
        let fresh =
            done.iter().filter_map(|key| self.memory.get(key)).filter(|memory| !memory.is_live);
        fresh.map(Memory::room).sum()
    }

    /// Whether an executable graph can be launched: what it allocates is not allocated, what it frees is.
    #[must_use]
    pub fn can_launch(&self, executable: &Executable) -> bool {
        let work = Self::work(&executable.shape, false);
        let is_live = |key: &u32| self.memory.get(key).is_some_and(|memory| memory.is_live);
        work.allocates.iter().all(|key| executable.frees || !is_live(key))
            && work.frees.iter().all(|key| work.allocates.contains(key) || is_live(key))
    }

    /// Whether it frees what is no graph's any more, and was never allocated: another's memory may lie there by now.
    #[must_use]
    pub fn frees_nobodys(&self, executable: &Executable) -> bool {
        let frees = Self::work(&executable.shape, false).frees;
        frees.iter().any(|key| !self.memory.contains_key(key))
    }

    /// It was launched.
    pub fn launched(&mut self, executable: u32) {
        let Some(executable) = self.executables.get(&executable) else { return };
        let work = Self::work(&executable.shape, false);
        // All that it allocates is there at once, as far as is known.
        for key in work.allocates {
            if let Some(memory) = self.memory.get_mut(&key) {
                memory.is_live = true;
            }
        }
        // How much of it at a time is the driver's business; what stays was there for sure.
        for key in work.frees {
            if let Some(memory) = self.memory.get_mut(&key) {
                memory.is_live = false;
            }
        }
        self.used_high[0] = self.used_high[0].max(self.live_rooms());
        self.forget();
    }

    /// What is reserved is seen.
    pub fn seen(&mut self, reserved: u64) {
        self.reserved = [reserved, self.reserved[1].max(reserved)];
        self.used_high[1] = self.used_high[1].max(reserved);
    }

    /// Whether a node of `graph` may free memory: of its own graph one, and no other; of others one each.
    #[must_use]
    pub fn can_free(&self, graph: u32, key: u32) -> bool {
        self.memory.get(&key).is_some_and(|memory| {
            let own = memory.owner == graph;
            let once = !memory.by_owner && !memory.by_others.contains(&graph);
            once && (!own || memory.by_others.is_empty())
        })
    }

    /// A node allocates.
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

    /// A node frees.
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

    /// A graph has one node more.
    pub fn add(&mut self, graph: u32, node: Node) {
        self.graphs.entry(graph).or_default().nodes.push(node);
    }

    /// A copy of a graph, under a name that `fresh` gives.
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
        self.graphs.insert(copy, Drawn { nodes, is_part: true, is_copy: true, ..Drawn::default() });
        copy
    }

    /// A graph is gone, with its parts.
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

    /// An executable graph is gone; what it has allocated is there.
    pub fn end_executable(&mut self, executable: u32) {
        let Some(gone) = self.executables.remove(&executable) else { return };
        if let Some(source) = self.graphs.get_mut(&gone.source)
            && source.executable == Some(executable)
        {
            source.executable = None;
        }
        self.forget();
    }

    /// A capture has ended without a graph.
    pub fn abandon(&mut self, origin: Strand) {
        let Some(capture) = self.captures.remove(&origin) else { return };
        match self.graphs.get_mut(&capture.graph) {
            Some(graph) if capture.into => graph.is_captured = false,
            _ => self.end(capture.graph),
        }
    }

    /// A context is gone: nothing is launched nor captured there any more.
    pub fn lose(&mut self, context: u32) {
        let its =
            self.executables.values_mut().filter(|executable| executable.context == Some(context));
        its.for_each(|executable| executable.context = None);
        let origins: Vec<Strand> =
            self.captures.keys().copied().filter(|lane| lane.context == context).collect();
        origins.into_iter().for_each(|origin| self.abandon(origin));
    }

    /// Whether a capture goes on that forbids its thread other calls.
    #[must_use]
    pub fn is_strict(&self) -> bool {
        self.captures.values().any(|capture| capture.is_strict)
    }

    /// The capture that a stream is part of: where it began.
    #[must_use]
    pub fn capture_of(&self, lane: Strand) -> Option<Strand> {
        let is_in = |(origin, capture): &(&Strand, &Capture)| {
            **origin == lane || capture.others.contains_key(&lane)
        };
        self.captures.iter().find(is_in).map(|(origin, _)| *origin)
    }

    /// The program has freed it.
    pub fn given_back(&mut self, key: u32) {
        if let Some(memory) = self.memory.get_mut(&key) {
            memory.is_live = false;
        }
        self.forget();
    }

    /// Whether an executable graph allocates it.
    #[must_use]
    pub fn is_armed(&self, key: u32) -> bool {
        self.executables
            .values()
            .any(|executable| Self::work(&executable.shape, true).allocates.contains(&key))
    }

    /// Addresses which nobody can name any more may be another node's next.
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
