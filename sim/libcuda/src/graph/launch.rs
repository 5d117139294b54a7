//! Launches of graphs.

use std::sync::Arc;

use cgpu_abi::types::*;
use cgpu_sim::machine::{StreamId, Ticket, Work};

use super::executable::{Executable, State};
use super::memory::{self, GraphMemory, Reservation};
use super::order::{Order, Part};
use crate::answer::{Answer, INVALID_VALUE};
use crate::call::{self, Call};
use crate::capture::{self, Lane};
use crate::driver::{Driver, lock};

impl Executable {
    /// Launches the graph after the stream's earlier work and after its own last launch.
    fn launch(&self, driver: &Driver, stream: StreamId) -> Answer {
        loop {
            memory::update_idle(driver)?;
            let mut state = lock(&self.state);
            let order = self.order(&mut state)?;
            if let Some(ticket) = self.allocate(driver, &state, &order, stream)? {
                drop(state);
                driver.machine.wait(ticket)?;
                continue;
            }
            let launched = self.enqueue(driver, &mut state, &order, stream);
            let last = state.flight.last();
            let mut memory = lock(&driver.graph_memory);
            if launched.is_err() {
                free_all(&mut memory, &order.allocations, last);
            } else {
                // A graph that frees unallocated memory was refused above.
                order.frees.iter().try_for_each(|&address| memory.free(address, last))?;
            }
            return launched.map(|_| ());
        }
    }

    /// Maps memory to the graph's allocations. If an address is still in use by work that the
    /// launch does not follow, returns the ticket to wait for first.
    fn allocate(
        &self,
        driver: &Driver,
        state: &State,
        order: &Order,
        stream: StreamId,
    ) -> Answer<Option<Ticket>> {
        let mut memory = lock(&driver.graph_memory);
        let frees_itself =
            self.flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
        let last = state.flight.last();
        // Every check comes before the first change.
        for reservation in &order.allocations {
            if memory.is_live(reservation.first) && !frees_itself {
                return Err(INVALID_VALUE);
            }
        }
        let allocates =
            |address| order.allocations.iter().any(|reservation| reservation.first == address);
        if order.frees.iter().any(|&address| !memory.is_live(address) && !allocates(address)) {
            return Err(INVALID_VALUE);
        }
        // Launches of one graph, and launches in one stream, are in order.
        let follows =
            |ticket: Ticket| ticket.stream == stream || last.is_some_and(|last| last == ticket);
        for (place, reservation) in order.allocations.iter().enumerate() {
            if memory.is_live(reservation.first) {
                memory.free(reservation.first, last)?;
            }
            let allocated = memory.allocate(driver, reservation, follows);
            if !matches!(allocated, Ok(None)) {
                free_all(&mut memory, &order.allocations[..place], last);
                return allocated;
            }
        }
        Ok(None)
    }

    fn enqueue(
        &self,
        driver: &Driver,
        state: &mut State,
        order: &Order,
        stream: StreamId,
    ) -> Answer<Ticket> {
        let State { shapes, disabled, flight, .. } = state;
        let work = |part: &Part| match *part {
            Part::Of(graph, node, step) if !disabled.contains(&node) => {
                let nodes = shapes.get(&graph).ok_or(INVALID_VALUE)?;
                nodes.get(&node).ok_or(INVALID_VALUE)?.body.work(driver, step)
            }
            Part::Of(..) | Part::Meeting => Ok(Work::Nothing),
        };
        let works = order.parts.iter().map(work).collect::<Answer<Vec<Work>>>()?;
        call::note("steps", || -> Vec<String> {
            let body = |part: &Part| match *part {
                Part::Of(graph, node, _) => shapes.get(&graph)?.get(&node).map(|node| &node.body),
                Part::Meeting => None,
            };
            order
                .parts
                .iter()
                .map(|part| body(part).map_or(String::new(), |body| body.title(driver)))
                .collect()
        });
        // SAFETY: host memory that nodes name belongs to the program, which must keep it until the
        // launch is done; all other addresses were checked just now.
        Ok(unsafe { driver.machine.launch_plan(stream, &order.plan, &works, flight) }?)
    }

    /// Makes the graph ready for its first launch: loads code and reserves memory for its
    /// allocations. Fails with OUT_OF_MEMORY if there is no room for them.
    fn upload(&self, driver: &Driver) -> Answer {
        driver.context(self.home.handle)?;
        memory::update_idle(driver)?;
        let order = self.order(&mut lock(&self.state))?;
        lock(&driver.graph_memory).reserve(driver, &order.allocations)
    }
}

/// Undoes the allocations for a launch that fails.
fn free_all(memory: &mut GraphMemory, allocations: &[Arc<Reservation>], last: Option<Ticket>) {
    for reservation in allocations {
        // It was allocated just now.
        let _ = memory.free(reservation.first, last);
    }
}

pub(crate) fn cuGraphLaunch(call: &Call, graph: CUgraphExec, stream: CUstream) -> Answer {
    let driver = call.driver()?;
    let executable = Executable::find(driver, graph)?;
    match capture::lane(driver, stream, call.per_thread)? {
        Lane::Gpu(stream, _) => executable.launch(driver, stream),
        Lane::Graph(recorder) => {
            recorder.add_graph(driver, executable.source, &executable.shapes())
        }
    }
}
pub(crate) use cuGraphLaunch as cuGraphLaunch_ptsz;

pub(crate) fn cuGraphUpload(call: &Call, graph: CUgraphExec, stream: CUstream) -> Answer {
    let driver = call.driver()?;
    let executable = Executable::find(driver, graph)?;
    driver.stream(stream, call.per_thread)?;
    executable.upload(driver)
}
pub(crate) use cuGraphUpload as cuGraphUpload_ptsz;
