//! Model checker of the turn protocol: explores every order of the steps of two gates and a
//! monitor, with exits at each step.
//!
//! * Safety: there are never two turns at once. A revoked turn ends with what its thread had
//!   already read or had budget for.
//! * Liveness: from every state, a waiting container can come to launch without the help of a time
//!   limit, as long as it and the monitor live; with the help of the reader's own limit if the
//!   monitor does not. As the states are finite, it will, if all programs that can continue do.
//!
//! To show that the check finds errors, protocols with one mutation each are checked, too; each
//! must be detected.

mod model;

use std::collections::HashMap;

use model::{Kind, Mutation, State, Thread};

struct Graph {
    states: Vec<State>,
    steps: Vec<(u32, u32, Kind)>,
    fault: Option<(&'static str, Vec<State>)>,
}

fn explore(mutation: Mutation) -> Graph {
    let mut numbers = HashMap::from([(State::initial(), 0_u32)]);
    let mut graph = Graph { states: vec![State::initial()], steps: Vec::new(), fault: None };
    let mut parents = vec![0_u32];
    let mut out = Vec::new();
    let mut at = 0;
    while at < graph.states.len() {
        let state = graph.states[at];
        let from = u32::try_from(at).expect("few states");
        assert!(at < 3_000_000, "too many states");
        if let Some(why) = state.fault() {
            let mut path = vec![state];
            let mut step = from;
            while step != 0 {
                step = parents[step as usize];
                path.push(graph.states[step as usize]);
            }
            path.reverse();
            graph.fault = Some((why, path));
            return graph;
        }
        out.clear();
        state.next(mutation, &mut out);
        for (kind, next) in out.drain(..) {
            let number = *numbers.entry(next).or_insert_with(|| {
                graph.states.push(next);
                parents.push(from);
                u32::try_from(graph.states.len() - 1).expect("few states")
            });
            graph.steps.push((from, number, kind));
        }
        at += 1;
    }
    graph
}

impl Graph {
    /// Returns a state in which `container` waits and from which steps of these kinds never let it
    /// launch.
    fn hung(&self, container: usize, monitor: bool) -> Option<&State> {
        let may = |kind: Kind| match kind {
            Kind::Fair | Kind::Launch(_) => true,
            Kind::Late => !monitor,
            Kind::Failure | Kind::Arbitrary => false,
        };
        let mut before: Vec<Vec<u32>> = vec![Vec::new(); self.states.len()];
        let mut free = vec![false; self.states.len()];
        let mut queue = Vec::new();
        for &(from, to, kind) in self.steps.iter().filter(|step| may(step.2)) {
            before[to as usize].push(from);
            if kind == Kind::Launch(container) && !std::mem::replace(&mut free[from as usize], true)
            {
                queue.push(from);
            }
        }
        while let Some(state) = queue.pop() {
            for &from in &before[state as usize] {
                if !std::mem::replace(&mut free[from as usize], true) {
                    queue.push(from);
                }
            }
        }
        let waits = |state: &State| {
            let thread = state.containers[container].thread;
            state.monitor_lives() == monitor && !matches!(thread, Thread::Exited | Thread::Idle)
        };
        self.states
            .iter()
            .zip(free)
            .find(|(state, free)| !free && waits(state))
            .map(|found| found.0)
    }

    /// Returns the first violation, if there is one.
    fn outcome(&self) -> Result<(), String> {
        if let Some((why, path)) = &self.fault {
            return Err(format!("{why}, after {} steps: {:#?}", path.len(), path.last()));
        }
        for container in 0..2 {
            for monitor in [true, false] {
                if let Some(state) = self.hung(container, monitor) {
                    return Err(format!(
                        "{container} waits for ever (monitor lives: {monitor}): {state:#?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

#[test]
fn no_container_hangs_and_none_runs_out_of_turn() {
    let graph = explore(Mutation::None);
    println!("{} states, {} steps", graph.states.len(), graph.steps.len());
    if let Err(why) = graph.outcome() {
        panic!("{why}");
    }
    assert!(graph.states.len() > 10_000, "the model is too small to show anything");
}

#[test]
fn each_mutated_protocol_is_detected() {
    for mutation in [
        Mutation::NoPollAfterRequest,
        Mutation::NotifiesBeforeReport,
        Mutation::GateBeforeTurn,
        Mutation::SleepsWithoutCheck,
        Mutation::NoWake,
        Mutation::DrainWithoutEnd,
        Mutation::StaleHeartbeatUnnoticed,
        Mutation::NoAdoption,
        Mutation::NoNewGrant,
        Mutation::BackgroundGrantUnnotified,
        Mutation::BackgroundStays,
    ] {
        let graph = explore(mutation);
        let outcome = graph.outcome();
        println!(
            "{mutation:?}: {} states, {}",
            graph.states.len(),
            outcome.as_ref().err().map_or("nothing found", |why| why.lines().next().unwrap_or(""))
        );
        assert!(outcome.is_err(), "{mutation:?} was not detected");
    }
}
