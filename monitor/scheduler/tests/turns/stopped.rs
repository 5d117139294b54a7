//! A container that stops its processes (SIGSTOP, or the freezer of its control group), and
//! continues them.

use cgpu_scheduler::policy::Policy;
use cgpu_scheduler::tuning::Tuning;

use crate::harness::{Container, Harness, SECOND};
use crate::process::{Load, MS, US};
use crate::{FAIR, Parts, SATURATING, WEIGHTED};

/// Computes 480 us, and rests 300.
const BURSTS: &[Load] = &[Load::bursts(60, 8, 300)];
const TWO: &[Load] = &[Load::saturating(60); 2];
const LONG: &[Load] = &[Load::saturating(3000); 4];
const SIXTEEN: &[Load] = &[Load::saturating(60); 16];
/// Its host is the bottleneck.
const EAGER: &[Load] = &[Load::host_bound(20, 33)];

/// When a container stops its processes, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stops {
    Never,
    /// After so much time running.
    After(u64, u64),
    /// So long after the start of a turn of its own.
    InTurn(u64, u64),
    /// When one waits at the gate.
    Waiting(u64),
    /// One of them, when it has work in flight.
    OneLaunched(u64),
}

/// What a container that stops knows of its turns.
#[derive(Default)]
struct Watch {
    turn: u64,
    since: u64,
    until: u64,
}

impl Watch {
    /// Stops or continues the container's processes, as it is now.
    fn step(&mut self, now: u64, stops: Stops, container: &mut Container) {
        if self.turn != container.page.turn {
            (self.turn, self.since) = (container.page.turn, now);
        }
        let is_stopped = container.processes.iter().any(|process| process.stopped);
        if is_stopped {
            if now >= self.until {
                container.processes.iter_mut().for_each(|process| process.stopped = false);
                self.since = self.since.max(now);
            }
            return;
        }
        let is_own = self.turn & 0xff == 1;
        let is_waiting = container.processes.iter().any(|process| process.cell.waiting > 0);
        let time = match stops {
            Stops::Never => return,
            Stops::After(on, off) if now >= self.until + on => off,
            Stops::InTurn(after, off) if is_own && now >= self.since + after => off,
            Stops::Waiting(off) if is_waiting && !is_own && now >= self.until + 2 * MS => off,
            Stops::OneLaunched(off) => {
                let launched =
                    container.processes.iter_mut().find(|process| process.cell.inflight > 0);
                if let Some(process) = launched {
                    (process.stopped, self.until) = (true, now + off);
                }
                return;
            }
            _ => return,
        };
        self.until = now + time;
        container.processes.iter_mut().for_each(|process| process.stopped = true);
    }
}

/// Returns each container's part of the time, in percent. The first one stops its processes.
pub(crate) fn parts(
    policy: Policy,
    weights: &[u32],
    (load, neighbour): (&[Load], &[Load]),
    stops: Stops,
    seed: u64,
) -> Vec<f64> {
    const TIME: u64 = 5 * SECOND;
    let tenants: Vec<(u32, &[Load])> = weights
        .iter()
        .enumerate()
        .map(|(number, &weight)| (weight, if number == 0 { load } else { neighbour }))
        .collect();
    let mut harness = Harness::with(policy, &tenants, 1024 * US, 100 * US, Tuning::DEFAULT, seed);
    let processes = harness.containers.iter_mut().flat_map(|container| &mut container.processes);
    processes.for_each(|process| process.bounded = true);
    let mut watch = Watch::default();
    let mut before = Vec::new();
    while harness.now < SECOND + TIME {
        if before.is_empty() && harness.now >= SECOND {
            before = harness.ran();
        }
        harness.run_for(50 * US);
        watch.step(harness.now, stops, &mut harness.containers[0]);
    }
    let ran: Vec<u64> =
        harness.ran().iter().zip(before).map(|(after, before)| after - before).collect();
    ran.map_parts(TIME)
}

/// It is host-bound by its turns, so it shared those of its neighbour: the GPU's slices gave its
/// processes all of its share, and the neighbour paid for the switches. And each time it continued,
/// the neighbour's queue from before ran beside its turn, for which the neighbour was charged as
/// much as it, had no credit from rounds, and was taken to be idle.
#[test]
fn container_that_stops_its_processes_costs_its_neighbour_at_most_a_twentieth() {
    const SOFT: Policy = Policy::Soft;
    const AVERAGE: Policy = Policy::Average { slots: 2 };
    for (policy, weights, loads, stops) in [
        (FAIR, [1, 1], (TWO, SATURATING), Stops::Waiting(5 * MS)),
        (FAIR, [1, 1], (LONG, SATURATING), Stops::Waiting(30 * MS)),
        (FAIR, [1, 1], (SIXTEEN, SATURATING), Stops::InTurn(0, 8 * MS)),
        (WEIGHTED, [3, 1], (SIXTEEN, SATURATING), Stops::After(200 * US, MS)),
        (SOFT, [1, 1], (TWO, SATURATING), Stops::After(5 * MS, 20 * MS)),
        (SOFT, [1, 1], (SIXTEEN, SATURATING), Stops::OneLaunched(5 * MS)),
        // Each time it continued, its neighbour paid 2 ms, as much as it may have in flight.
        (AVERAGE, [1, 1], (SATURATING, BURSTS), Stops::InTurn(200 * US, 30 * MS)),
        (AVERAGE, [1, 1], (SATURATING, BURSTS), Stops::OneLaunched(30 * MS)),
        // It counted as one that rests once it shared turns, and was not judged by them.
        (FAIR, [1, 1], (SIXTEEN, EAGER), Stops::After(MS, MS)),
        (WEIGHTED, [1, 1], (SIXTEEN, EAGER), Stops::Waiting(MS)),
    ] {
        let kept = |seed| {
            let part = |stops| parts(policy, &weights, loads, stops, seed)[1];
            part(stops) / part(Stops::Never)
        };
        let kept = kept(1).min(kept(2));
        let case = format!("{policy:?} {weights:?}, {} processes, {stops:?}", loads.0.len());
        println!("{case}: {kept:.3}");
        assert!(kept >= 0.95, "{case}: its neighbour keeps {kept:.3}");
    }
}

/// Beside a container that never stops it may do more than that: it computes while the processes of
/// the other one wait for their next turn. That is no share of its own.
#[test]
fn neighbour_of_a_container_that_stops_its_processes_keeps_its_share_of_what_it_does_alone() {
    for (weights, loads, stops) in [
        ([3, 1], (LONG, BURSTS), Stops::InTurn(3 * MS, 30 * MS)),
        ([3, 1], (LONG, BURSTS), Stops::After(5 * MS, 30 * MS)),
        ([1, 3], (SIXTEEN, EAGER), Stops::After(MS, 30 * MS)),
        ([1, 3], (SIXTEEN, EAGER), Stops::OneLaunched(30 * MS)),
        ([1, 1], (SIXTEEN, EAGER), Stops::InTurn(MS, 2 * MS)),
    ] {
        let part =
            |policy, load, stops, seed| parts(policy, &weights, (load, loads.1), stops, seed)[1];
        let alone = part(WEIGHTED, &[], Stops::Never, 1);
        let share = f64::from(weights[1]) / f64::from(weights[0] + weights[1]);
        let native = part(Policy::Native, loads.0, Stops::Never, 1);
        for seed in [1, 2] {
            let never = part(WEIGHTED, loads.0, Stops::Never, seed);
            let stopped = part(WEIGHTED, loads.0, stops, seed);
            let case = format!("{weights:?}, {} processes, {stops:?}", loads.0.len());
            println!(
                "{case}: {stopped:.1} %; {never:.1} beside one that never stops, {:.1} of what \
                 it does alone, native {native:.1}",
                share * alone
            );
            assert!(stopped >= 0.95 * never.min(share * alone), "{case}: {stopped:.1} %");
            assert!(stopped > native, "{case}: native slicing gives {native:.1} %");
        }
    }
}
