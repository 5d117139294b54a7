//! Graphs that are built node by node or by stream capture.

use super::Run;
use crate::command::{Adder, Command, GraphStep, Maker, Mode, StreamKey};
use crate::model::{BuiltGraph, Capture, Graphs};

/// Maximum number of top-level graphs of a process, and of executable ones.
const MOST: usize = 6;
/// Number of nodes from which on a graph does not grow.
const MANY: usize = 6;
/// Streams of a context beside its default one.
const STREAMS: u64 = 3;

impl Run<'_> {
    /// Draws commands that build graphs node by node, and commands for all graphs.
    pub(super) fn draw_node(&mut self, index: usize, context: u32) -> Command {
        let drawn = self.model.processes[index].drawn.clone();
        let tops = names(&drawn, |_, graph| !graph.is_part && !graph.is_captured);
        let open = names(&drawn, |_, graph| {
            !graph.is_copy && !graph.is_captured && graph.nodes.len() < MANY
        });
        let (top, graph) = (self.random.pick(&tops).copied(), self.random.pick(&open).copied());
        let executables: Vec<u32> = drawn.executables.keys().copied().collect();
        let executable = self.random.pick(&executables).copied();
        let command = match self.random.below(26) {
            0 | 1 if tops.len() < MOST => Some(GraphStep::Make { graph: self.new_key() }),
            2..=5 => graph.map(|graph| GraphStep::Allocate {
                graph,
                key: self.new_key(),
                bytes: self.node_size(),
                adder: self.adder(),
            }),
            6 | 7 => graph.and_then(|graph| self.draw_free(&drawn, graph)),
            8 => top.and_then(|graph| self.draw_child(&drawn, graph, &tops)),
            9 => graph.filter(|_| self.random.once_in(2)).map(|graph| {
                let bodies = [self.new_key(), self.new_key()];
                GraphStep::Condition { context, graph, bodies, first: self.random.once_in(2) }
            }),
            10..=12 if executables.len() < MOST => {
                // A second executable graph must be refused.
                let again = self.random.once_in(8);
                let fits =
                    |its: &BuiltGraph| !its.nodes.is_empty() && (again || its.executable.is_none());
                let graphs = names(&drawn, |_, its| !its.is_part && !its.is_captured && fits(its));
                let graph = self.random.pick(&graphs).copied();
                graph.map(|graph| self.draw_instantiate(context, graph, &drawn))
            }
            13 => executable.and_then(|executable| self.draw_launch(&drawn, executable, true)),
            14..=18 => {
                executable.and_then(|executable| self.draw_launch(&drawn, executable, false))
            }
            19 => executable.and_then(|executable| self.draw_update(&drawn, executable, &tops)),
            20 if self.random.once_in(2) => {
                executable.map(|executable| GraphStep::EndExecutable { executable })
            }
            21 if self.random.once_in(2) => top.map(|graph| GraphStep::End { graph }),
            22 | 23 => self.draw_free_outliving(&drawn, context),
            24 => {
                let contexts = self.model.processes[index].contexts.clone();
                Some(GraphStep::Attributes { contexts, trim: self.random.once_in(2) })
            }
            25 if self.random.once_in(2) => Some(GraphStep::Reset { used: self.random.once_in(2) }),
            25 => return Command::GraphTrim,
            _ => None,
        };
        command.map_or(Command::Synchronise { context }, Command::Graph)
    }

    /// Draws commands for captures and for their graphs.
    pub(super) fn draw_capture(&mut self, index: usize, context: u32) -> Command {
        let drawn = self.model.processes[index].drawn.clone();
        let captures: Vec<StreamKey> = drawn.captures.keys().copied().collect();
        let origin = self.random.pick(&captures).copied();
        match (self.random.below(8), origin) {
            (0 | 1, _) => {
                let lane = self.stream(context);
                if drawn.capture_of(lane).is_some() {
                    return self.draw_node(index, context);
                }
                let modes = [Mode::Global, Mode::ThreadLocal, Mode::Relaxed, Mode::Relaxed];
                let mode = self.random.pick(&modes).copied().unwrap_or(Mode::Relaxed);
                let tops = names(&drawn, |_, its| {
                    !its.is_part && !its.is_captured && its.executable.is_none()
                });
                let into = self.random.pick(&tops).copied().filter(|_| self.random.once_in(4));
                Command::Graph(GraphStep::Begin { lane, mode, into })
            }
            (2..=5, Some(origin)) => self.draw_recorded(index, &drawn, origin),
            _ => self.draw_node(index, context),
        }
    }

    /// Draws a command during a capture that forbids its thread other calls: a part of the capture
    /// or an allowed call.
    pub(super) fn draw_strictly(&mut self, index: usize, context: u32) -> Command {
        let drawn = self.model.processes[index].drawn.clone();
        let strict = drawn.captures.iter().find(|(_, capture)| capture.is_strict);
        let executables: Vec<u32> = drawn.executables.keys().copied().collect();
        let executable = self.random.pick(&executables).copied();
        match (self.random.below(8), strict, executable) {
            (0, ..) => Command::MemoryInfo { context },
            (1, _, Some(executable)) => {
                let uploads = self.random.once_in(3);
                let launch = self.draw_launch(&drawn, executable, uploads);
                launch.map_or(Command::MemoryInfo { context }, Command::Graph)
            }
            (_, Some((origin, _)), _) => self.draw_recorded(index, &drawn, *origin),
            (_, None, _) => Command::MemoryInfo { context },
        }
    }

    /// Draws a part of a capture.
    fn draw_recorded(&mut self, index: usize, drawn: &Graphs, origin: StreamKey) -> Command {
        let Some(capture) = drawn.captures.get(&origin) else {
            return Command::MemoryInfo { context: origin.context };
        };
        let lanes: Vec<StreamKey> = capture.others.keys().copied().chain([origin]).collect();
        let lane = self.random.pick(&lanes).copied().unwrap_or(origin);
        let finish = GraphStep::Finish { lane: origin, graph: capture.graph };
        Command::Graph(match self.random.below(16) {
            0..=4 => {
                let pools: Vec<u32> = self.model.processes[index].pools.keys().copied().collect();
                let pool = self.random.pick(&pools).copied().filter(|_| self.random.once_in(2));
                let bytes = self.node_size();
                GraphStep::Take { lane, key: self.new_key(), bytes, pool }
            }
            5..=7 if !capture.is_broken => {
                let own = |its: &u32| *its == capture.graph;
                let may = |key: &u32| drawn.can_free(capture.graph, *key);
                let keys = drawn.memory.iter().filter(|(key, its)| {
                    may(key)
                        && if own(&its.owner) { !its.is_live } else { is_apart(drawn, its.owner) }
                });
                let keys: Vec<u32> = keys.map(|(key, _)| *key).collect();
                match self.random.pick(&keys).copied() {
                    Some(key) => GraphStep::Drop { lane, key },
                    None => finish,
                }
            }
            8 | 9 if !capture.is_broken => self.draw_fork(drawn, origin, capture).unwrap_or(finish),
            10 => {
                let keys: Vec<u32> =
                    self.model.processes[index].allocations.keys().copied().collect();
                self.random
                    .pick(&keys)
                    .copied()
                    .map_or(finish, |key| GraphStep::DropLinear { lane, key })
            }
            11 if self.random.once_in(3) => {
                let bytes = capture.is_strict.then(|| self.random.size(self.model.limit / 8));
                GraphStep::Break { lane: origin, bytes }
            }
            12 if self.random.once_in(4) => GraphStep::Abandon { lane: origin },
            _ => match capture.others.iter().find(|(_, works)| **works) {
                // Sometimes the capture ends unjoined.
                Some((other, _)) if !self.random.once_in(4) && !capture.is_broken => {
                    GraphStep::Follow { from: *other, to: origin }
                }
                _ => finish,
            },
        })
    }

    /// Draws a stream's entry into a capture, or the wait for its work.
    fn draw_fork(
        &mut self,
        drawn: &Graphs,
        origin: StreamKey,
        capture: &Capture,
    ) -> Option<GraphStep> {
        if let Some((other, _)) = capture.others.first_key_value() {
            return Some(GraphStep::Follow { from: *other, to: origin });
        }
        let to = self.stream(origin.context);
        drawn.capture_of(to).is_none().then_some(GraphStep::Follow { from: origin, to })
    }

    /// Draws a node that frees: in the graph that allocates, before that is instantiated; or in
    /// another graph.
    fn draw_free(&mut self, drawn: &Graphs, graph: u32) -> Option<GraphStep> {
        let is_part = drawn.graphs.get(&graph).is_none_or(|graph| graph.is_part);
        let fits = |key: u32| {
            drawn.memory.get(&key).is_some_and(|its| match its.owner == graph {
                true => !its.is_live && !drawn.is_armed(key),
                false => !is_part && is_apart(drawn, its.owner),
            })
        };
        // A second free must be refused.
        let legal = !self.random.once_in(8);
        let fits = |key: &u32| fits(*key) && drawn.can_free(graph, *key) == legal;
        let keys: Vec<u32> = drawn.memory.keys().copied().filter(fits).collect();
        let key = self.random.pick(&keys).copied()?;
        Some(GraphStep::Free { graph, key, adder: self.adder() })
    }

    fn draw_child(&mut self, drawn: &Graphs, graph: u32, tops: &[u32]) -> Option<GraphStep> {
        // No other graph allocates or frees its memory.
        let is_alone = |child: u32| {
            let work = Graphs::work(&drawn.shape(child), true);
            let by_others =
                |key: &u32| drawn.memory.get(key).is_some_and(|its| !its.by_others.is_empty());
            work.frees.iter().all(|key| work.allocates.contains(key))
                && !work.allocates.iter().any(by_others)
        };
        let fits = |child: &u32| {
            *child != graph
                && drawn.graphs.get(child).is_some_and(|its| its.executable.is_none())
                && is_alone(*child)
        };
        let children: Vec<u32> = tops.iter().copied().filter(fits).collect();
        let child = self.random.pick(&children).copied()?;
        // Copying a graph that allocates must be refused.
        let moves =
            if drawn.has_memory(child) { !self.random.once_in(6) } else { self.random.once_in(2) };
        let adder = match self.adder() {
            Adder::Named if moves => Adder::First,
            adder => adder,
        };
        Some(GraphStep::Child { graph, child, adder, moves })
    }

    fn draw_instantiate(&mut self, context: u32, graph: u32, drawn: &Graphs) -> GraphStep {
        let frees = self.random.once_in(3);
        let upload = self.random.once_in(2).then(|| self.free_lane(drawn, context));
        let makers =
            [Maker::First, Maker::Second, Maker::Flags(frees), Maker::Params(frees, upload)];
        let maker = self.random.pick(&makers).copied().unwrap_or(Maker::First);
        GraphStep::Instantiate { context, graph, executable: self.new_key(), maker }
    }

    /// Draws a launch, nearly always a possible one, or an upload.
    fn draw_launch(&mut self, drawn: &Graphs, executable: u32, uploads: bool) -> Option<GraphStep> {
        let about = drawn.executables.get(&executable)?;
        let lane = self.free_lane(drawn, about.context?);
        if uploads {
            return Some(GraphStep::Upload { executable, lane });
        }
        let can = drawn.can_launch(about) || self.random.once_in(8);
        (can && !drawn.frees_unnamed(about)).then_some(GraphStep::Launch { executable, lane })
    }

    fn draw_update(&mut self, drawn: &Graphs, executable: u32, tops: &[u32]) -> Option<GraphStep> {
        let source = drawn.executables.get(&executable)?.source;
        let own = tops.contains(&source) && !self.random.once_in(4);
        let graph = if own { Some(source) } else { self.random.pick(tops).copied() };
        Some(GraphStep::Update { executable, graph: graph?, second: self.random.once_in(2) })
    }

    fn draw_free_outliving(&mut self, drawn: &Graphs, context: u32) -> Option<GraphStep> {
        let wanted = !self.random.once_in(10);
        let keys = drawn.memory.iter().filter(|(_, its)| its.is_live == wanted);
        let keys: Vec<u32> = keys.map(|(key, _)| *key).collect();
        let key = self.random.pick(&keys).copied()?;
        let now = self.random.once_in(2);
        Some(GraphStep::FreeOutliving { key, lane: self.free_lane(drawn, context), now })
    }

    /// Draws the size of an allocation node: sometimes so large that a few of them fill the limit.
    fn node_size(&mut self) -> u64 {
        match self.random.below(3) {
            0 => self.random.below(self.model.limit / 4) + 1,
            _ => self.random.size(self.model.limit / 8),
        }
    }

    fn adder(&mut self) -> Adder {
        // `cuGraphAddNode_v3` came with 13.4.
        let adders = [Adder::Named, Adder::First, Adder::Second, Adder::Third];
        let known = if self.plan.is_of_two_domains() { 4 } else { 3 };
        self.random.pick(&adders[..known]).copied().unwrap_or(Adder::Named)
    }

    /// Draws a stream of a context other than its default one.
    fn stream(&mut self, context: u32) -> StreamKey {
        StreamKey { context, which: u8::try_from(self.random.below(STREAMS) + 1).unwrap_or(1) }
    }

    /// Draws a stream that is not capturing.
    fn free_lane(&mut self, drawn: &Graphs, context: u32) -> StreamKey {
        let lane = self.stream(context);
        let is_free = self.random.once_in(2) && drawn.capture_of(lane).is_none();
        if is_free { lane } else { StreamKey { context, which: 0 } }
    }
}

/// Returns the names of the graphs that satisfy `of`.
fn names(drawn: &Graphs, of: impl Fn(u32, &BuiltGraph) -> bool) -> Vec<u32> {
    drawn.graphs.iter().filter(|(name, graph)| of(**name, graph)).map(|(name, _)| *name).collect()
}

/// Returns whether a graph is not part of another one; a destroyed graph, whose memory may remain,
/// counts.
fn is_apart(drawn: &Graphs, graph: u32) -> bool {
    drawn.graphs.get(&graph).is_none_or(|graph| !graph.is_part && !graph.is_captured)
}
