//! Graphs that are built node by node or by stream capture.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use super::{OUT_OF_MEMORY, Run, succeeds_if};
use crate::command::{Answer, GraphStep, Maker, Mode, StreamKey};
use crate::model::{BuiltGraph, Capture, Executable, Graphs, Node, rounded};

/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`, `_INVALIDATED`, `_UNJOINED`.
const UNSUPPORTED: i32 = 900;
const INVALIDATED: i32 = 901;
const UNJOINED: i32 = 904;

impl Run<'_> {
    /// Requires that the bytes reserved for graphs cover what they have allocated.
    pub(super) fn judge_reserved(&mut self, index: usize, answer: &Answer) -> Result<()> {
        let drawn = &mut self.model.processes[index].drawn;
        drawn.seen(answer.graphs);
        let live = drawn.live_rooms();
        ensure!(
            answer.graphs >= live,
            "{} are reserved for graphs that have {live}",
            answer.graphs
        );
        Ok(())
    }

    pub(super) fn judge_graph(
        &mut self,
        index: usize,
        step: &GraphStep,
        answer: &Answer,
    ) -> Result<()> {
        let code = answer.code;
        let drawn = &mut self.model.processes[index].drawn;
        match *step {
            GraphStep::Make { graph } => {
                ensure!(code == 0, "the graph was not made");
                drawn.graphs.insert(graph, BuiltGraph::default());
            }
            GraphStep::Allocate { graph, key, bytes, .. } => {
                ensure!(code == 0, "a node, which takes nothing yet, was not made");
                drawn.allocates(graph, key, bytes);
            }
            GraphStep::Free { graph, key, .. } => {
                succeeds_if(drawn.can_free(graph, key), code, "a node that frees")?;
                if code == 0 {
                    drawn.frees(graph, key);
                }
            }
            GraphStep::Child { graph, child, moves, .. } => {
                succeeds_if(moves || !drawn.has_memory(child), code, "a child")?;
                if code != 0 {
                    return Ok(());
                }
                let part = if moves {
                    if let Some(child) = drawn.graphs.get_mut(&child) {
                        child.is_part = true;
                    }
                    child
                } else {
                    let next = &mut self.next_key;
                    drawn.copy(child, &mut || {
                        *next += 1;
                        *next
                    })
                };
                drawn.add(graph, Node::Part(part));
            }
            GraphStep::Condition { graph, bodies, first, .. } => {
                ensure!(code == 0, "the conditional node was not made");
                for body in bodies {
                    drawn
                        .graphs
                        .insert(body, BuiltGraph { is_part: true, ..BuiltGraph::default() });
                }
                let [one, other] = bodies;
                drawn.add(graph, Node::Either(if first { bodies } else { [other, one] }));
            }
            GraphStep::Instantiate { context, graph, executable, maker } => {
                let is_there =
                    drawn.graphs.get(&graph).is_some_and(|graph| graph.executable.is_some());
                if is_there {
                    ensure!(
                        code != 0,
                        "two executable graphs would allocate at the same addresses"
                    );
                    return Ok(());
                }
                let (frees, uploads) = match maker {
                    Maker::First | Maker::Second => (false, false),
                    Maker::Flags(frees) => (frees, false),
                    Maker::Params(frees, upload) => (frees, upload.is_some()),
                };
                let shape = drawn.shape(graph);
                if uploads {
                    let bytes = drawn.launch_bytes(&shape);
                    self.takes_within(bytes, code)?;
                } else {
                    ensure!(code == 0, "the graph, which takes nothing yet, was not made ready");
                    self.counts(code);
                }
                if code == 0 {
                    let drawn = &mut self.model.processes[index].drawn;
                    if drawn.has_memory(graph)
                        && let Some(graph) = drawn.graphs.get_mut(&graph)
                    {
                        graph.executable = Some(executable);
                    }
                    let made = Executable { context: Some(context), source: graph, shape, frees };
                    drawn.executables.insert(executable, made);
                }
            }
            GraphStep::Upload { executable, .. } => {
                let about = drawn.executables.get(&executable).context("the executable graph")?;
                let bytes = drawn.launch_bytes(&about.shape);
                let least = drawn.live_rooms() + drawn.fresh_rooms(&about.shape);
                self.takes_within(bytes, code)?;
                ensure!(
                    code != 0 || answer.graphs >= least,
                    "an upload reserved less than {least}"
                );
            }
            GraphStep::Launch { executable, .. } => {
                let about = drawn.executables.get(&executable).context("the executable graph")?;
                let bytes @ (_, bound) = drawn.launch_bytes(&about.shape);
                if !drawn.can_launch(about) {
                    ensure!(
                        code != 0,
                        "launched although its memory is allocated, or what it frees is not"
                    );
                    ensure!(
                        code != OUT_OF_MEMORY || !self.model.fits(bound),
                        "out of memory with room, for an impossible launch"
                    );
                    return Ok(());
                }
                if self.takes_within(bytes, code)? {
                    self.model.processes[index].drawn.launched(executable);
                }
            }
            GraphStep::Update { executable, graph, .. } => {
                let about = drawn.executables.get(&executable).context("the executable graph")?;
                let same = drawn.shape(graph) == about.shape;
                // Graphs of the same shape can differ in the values of their conditions.
                ensure!(
                    code == 0 || code != OUT_OF_MEMORY && !(same && about.source == graph),
                    "it was not updated"
                );
                ensure!(
                    code != 0 || same || !drawn.has_memory(graph),
                    "updated by a graph that allocates something else"
                );
                if code == 0 {
                    let shape = drawn.shape(graph);
                    if let Some(about) = drawn.executables.get_mut(&executable) {
                        about.shape = shape;
                    }
                }
            }
            GraphStep::EndExecutable { executable } => {
                ensure!(code == 0, "the executable graph was not destroyed");
                drawn.end_executable(executable);
            }
            GraphStep::End { graph } => {
                ensure!(code == 0, "the graph was not destroyed");
                drawn.end(graph);
            }
            GraphStep::FreeOutliving { key, .. } => {
                let about = drawn.memory.get(&key).context("the memory")?;
                let can = about.is_live && !about.by_owner;
                succeeds_if(can, code, "the free of a graph's memory")?;
                if code == 0 {
                    drawn.freed_by_program(key);
                }
            }
            GraphStep::Attributes { trim, .. } => {
                ensure!(code == 0, "the contexts were not waited for");
                let ([used, most], [reserved, highest]) =
                    (answer.figures.used, answer.figures.reserved);
                let live = drawn.live_rooms();
                let ([_, high], [least, greatest]) = (drawn.reserved, drawn.used_high);
                ensure!(used == live, "{used} are used by graphs that have {live}");
                ensure!(
                    reserved == answer.graphs && reserved >= used,
                    "{reserved} are reserved for {used}"
                );
                ensure!(
                    !trim || reserved == used,
                    "{reserved} are left of {used} when the rest was given back"
                );
                let high = high.max(reserved);
                ensure!(highest == high, "{highest} were reserved at most, and {high} were seen");
                ensure!(
                    (least..=greatest.max(reserved)).contains(&most),
                    "{most} were used at most, of {least} to {greatest}"
                );
            }
            GraphStep::Reset { used } => {
                ensure!(code == 0, "the mark was not set back");
                if used {
                    drawn.used_high = [drawn.live_rooms(), answer.graphs];
                } else {
                    drawn.reserved[1] = answer.graphs;
                }
            }
            _ => self.judge_capture(index, step, code)?,
        }
        Ok(())
    }

    /// Compares the commands of captures, which allocate nothing.
    fn judge_capture(&mut self, index: usize, step: &GraphStep, code: i32) -> Result<()> {
        let next = self.new_name();
        let drawn = &mut self.model.processes[index].drawn;
        match *step {
            GraphStep::Begin { lane, mode, into } => {
                ensure!(code == 0, "the capture did not begin");
                let graph = into.unwrap_or(next);
                drawn.graphs.entry(graph).or_default().is_captured = true;
                let made = Capture {
                    graph,
                    into: into.is_some(),
                    is_strict: mode != Mode::Relaxed,
                    is_broken: false,
                    others: BTreeMap::new(),
                };
                drawn.captures.insert(lane, made);
            }
            GraphStep::Take { lane, key, bytes, .. } => {
                let (graph, is_broken) = about(drawn, lane)?;
                ensure!(
                    code == if is_broken { INVALIDATED } else { 0 },
                    "an allocation in a capture"
                );
                if code == 0 {
                    drawn.allocates(graph, key, bytes);
                    works(drawn, lane);
                }
            }
            GraphStep::Drop { lane, key } => {
                ensure!(code == 0, "a free in a capture");
                let (graph, _) = about(drawn, lane)?;
                drawn.frees(graph, key);
                works(drawn, lane);
            }
            GraphStep::DropLinear { .. } => {
                ensure!(code != 0, "linear memory was freed by a graph")
            }
            GraphStep::Follow { from, to } => {
                ensure!(code == 0, "a stream did not wait for another one that captures");
                let origin = drawn.capture_of(from).context("the capture")?;
                let capture = drawn.captures.get_mut(&origin).context("the capture")?;
                if from == origin {
                    capture.others.insert(to, false);
                } else {
                    capture.others.insert(from, false);
                }
            }
            GraphStep::Break { lane, bytes } => {
                // An allocation without room is refused before the driver is called, so the capture
                // stays valid.
                if let Some(bytes) = bytes
                    && code == OUT_OF_MEMORY
                {
                    ensure!(!self.model.fits(rounded(bytes)), "refused where there is room");
                    return Ok(());
                }
                let drawn = &mut self.model.processes[index].drawn;
                let capture = drawn.captures.get_mut(&lane).context("the capture")?;
                let expected =
                    if capture.is_broken { [UNSUPPORTED, INVALIDATED] } else { [UNSUPPORTED; 2] };
                ensure!(expected.contains(&code), "a call that breaks a capture");
                capture.is_broken = true;
            }
            GraphStep::Finish { lane, graph } => {
                let capture = drawn.captures.get(&lane).context("the capture")?;
                let expected = match capture.is_broken {
                    true => INVALIDATED,
                    false if capture.others.values().any(|works| *works) => UNJOINED,
                    false => 0,
                };
                ensure!(code == expected, "the end of a capture: not {expected}");
                if code == 0 {
                    drawn.captures.remove(&lane);
                    drawn.graphs.entry(graph).or_default().is_captured = false;
                } else {
                    drawn.abandon(lane);
                }
            }
            GraphStep::Abandon { lane } => {
                ensure!(code == 0, "a stream that captures was not destroyed");
                drawn.abandon(lane);
            }
            _ => anyhow::bail!("no comparison for {step:?}"),
        }
        Ok(())
    }

    /// Returns a name for a graph that the driver creates.
    fn new_name(&mut self) -> u32 {
        self.next_key += 1;
        self.next_key
    }
}

/// Returns the graph of the capture that a stream is in, and whether the capture is invalidated.
fn about(drawn: &Graphs, lane: StreamKey) -> Result<(u32, bool)> {
    let origin = drawn.capture_of(lane).context("the capture")?;
    let capture = drawn.captures.get(&origin).context("the capture")?;
    Ok((capture.graph, capture.is_broken))
}

/// Records that a stream has work. If another stream is the origin, that does not yet wait for it.
fn works(drawn: &mut Graphs, lane: StreamKey) {
    for capture in drawn.captures.values_mut() {
        if let Some(works) = capture.others.get_mut(&lane) {
            *works = true;
        }
    }
}
