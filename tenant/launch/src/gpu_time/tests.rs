//! Several lanes whose work alternates.

use super::*;
use crate::cost::Contention;

mod drift;
mod synchronized;

const CONTEXT: ContextKey = ContextKey(1);
const KERNEL: Nanos = Nanos::from_micros(60);
const BEGIN: Nanos = Nanos::from_millis(1000);

/// Most average error of the prediction, in microseconds: five kernels, where a batch has ten and
/// each stream one or two batches.
const OFF: u64 = 300;

fn kernel() -> Kernel {
    Kernel::new(1, [1; 3], [32, 1, 1])
}

/// A GPU that runs one kernel of each stream in turn.
#[derive(Default)]
struct Gpu {
    /// Kernels and markers of each stream, in order; a marker is an event.
    streams: Vec<std::collections::VecDeque<Option<Event>>>,
    events: Vec<Option<Nanos>>,
    free: Nanos,
    next: usize,
}

impl Gpu {
    fn run_until(&mut self, now: Nanos) {
        let lanes = self.streams.len();
        let mut idle = 0;
        while idle < lanes && self.free + KERNEL <= now {
            let stream = &mut self.streams[self.next];
            let ran = stream.pop_front();
            match ran {
                Some(None) => self.free = self.free + KERNEL,
                Some(Some(event)) => self.events[event.0] = Some(self.free),
                None => {}
            }
            idle = if ran.is_some() { 0 } else { idle + 1 };
            // Markers take no turn.
            if !matches!(ran, Some(Some(_))) {
                self.next = (self.next + 1) % lanes;
            }
        }
        // Markers at the front are reached.
        for stream in &mut self.streams {
            while let Some(Some(event)) = stream.front().copied() {
                self.events[event.0] = Some(self.free);
                stream.pop_front();
            }
        }
    }

    fn left(&self, now: Nanos) -> Nanos {
        let kernels = self.streams.iter().flatten().filter(|it| it.is_none()).count() as u64;
        Nanos(kernels * KERNEL.0) - (now - self.free)
    }
}

/// Eight streams get batches in turn, as the gate admits them. Predictions and charges stay near
/// the truth.
#[test]
fn remaining_work_of_several_lanes_is_predicted() {
    for lanes in [1, 2, 3, 8] {
        let (mut gpu_time, mut gpu) = (GpuTime::new(), Gpu { free: BEGIN, ..Gpu::default() });
        gpu.streams.resize_with(lanes, Default::default);
        let key = |stream: usize| LaneKey {
            thread: ThreadKey(1),
            context: CONTEXT,
            stream: Stream { handle: 16 * (1 + stream), per_thread: false },
        };
        for took in [1, KERNEL.0] {
            let mut estimate = CostEstimate::default();
            estimate.add(kernel(), Nanos(gpu_time.expect(kernel()).cost.into()), 1);
            gpu_time.costs.learn(&estimate, Nanos(took), Contention::Alone);
        }
        let (mut now, mut launched) = (BEGIN, 0_u64);
        let mut off = Vec::new();
        for visit in 0..4000_usize {
            gpu.run_until(now);
            for lane in 0..lanes {
                loop {
                    let id = gpu_time.lane(key(lane), now).expect("a lane").id;
                    let base = gpu_time.clock.base(CONTEXT);
                    let Some(batch) = gpu_time.find(id).and_then(|lane| lane.batches.front())
                    else {
                        break;
                    };
                    let Some(at) = gpu.events[batch.end.0] else { break };
                    let due = EndedBatch {
                        context: CONTEXT,
                        lane: id,
                        number: batch.number,
                        start: batch.start,
                        end: batch.end,
                        base,
                        must_query: true,
                    };
                    let since = |event: Event| {
                        gpu.events[event.0].map(|from| at.0.cast_signed() - from.0.cast_signed())
                    };
                    let length = match batch.start {
                        Start::Event(event) => since(event),
                        _ => None,
                    };
                    let timing = Timing { since_base: base.and_then(since), length };
                    gpu_time.measure(&due, timing, at).expect("it was due");
                }
            }
            let predicted = gpu_time.work().own_remaining(0, now);
            let left = gpu.left(now);
            if visit > 200 {
                off.push(predicted.0.abs_diff(left.0) / 1000);
            }
            // A chunk for one of the streams, and a marker behind it; another stream every third
            // time.
            if left < Nanos::from_micros(900) {
                let stream = visit / 3 % lanes;
                let id = gpu_time.lane(key(stream), now).expect("a lane").id;
                let event = |gpu: &mut Gpu| {
                    gpu.events.push(None);
                    Event(gpu.events.len() - 1)
                };
                if gpu_time.find(id).is_some_and(|lane| lane.is_idle()) {
                    let start = event(&mut gpu);
                    gpu.streams[stream].push_back(Some(start));
                    gpu_time.find(id).expect("it").open.start = Start::Event(start);
                } else if let Some(lane) =
                    gpu_time.find(id).filter(|lane| lane.open.estimate.is_empty())
                {
                    lane.open.start = Start::Previous;
                }
                let expected = gpu_time.expect(kernel());
                gpu_time.charge(Some(id), kernel(), expected, 10, now);
                launched += 10;
                (0..10).for_each(|_| gpu.streams[stream].push_back(None));
                let end = event(&mut gpu);
                gpu.streams[stream].push_back(Some(end));
                if let Some(marker) = gpu_time.plan_marker(id) {
                    let placement = MarkerPlacement {
                        at: now,
                        contention: Contention::Alone,
                        dry: false,
                        backlog: false,
                    };
                    gpu_time.close_batch(id, &marker, end, false, placement);
                }
            }
            now = now + Nanos::from_micros(97);
        }
        let worst = *off.iter().max().expect("visits");
        let mean = off.iter().sum::<u64>() / off.len() as u64;
        let cost = gpu_time.expect(kernel()).cost;
        println!(
            "{lanes} lanes: {mean} us off on average, {worst} at worst; a kernel counts as \
             {cost} ns, {launched} launched"
        );
        assert!(
            mean < OFF && worst < 2 * OFF,
            "{lanes} lanes: {mean} us off on average, {worst} at worst"
        );
        assert!((50_000..75_000).contains(&cost), "{lanes} lanes: {cost}");
    }
}
