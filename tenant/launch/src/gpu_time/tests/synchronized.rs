//! Synchronized work, and streams whose host leaves gaps.

use super::*;

const THREAD: ThreadKey = ThreadKey(1);

fn key(thread: ThreadKey, stream: usize) -> LaneKey {
    LaneKey { thread, context: CONTEXT, stream: Stream { handle: 16 * stream, per_thread: false } }
}

fn us(micros: u64) -> Nanos {
    Nanos::from_micros(micros)
}

fn known() -> GpuTime {
    let mut gpu_time = GpuTime::new();
    for _ in 0..8 {
        let mut estimate = CostEstimate::default();
        estimate.add(kernel(), Nanos(gpu_time.expect(kernel()).cost.into()), 1);
        gpu_time.costs.learn(&estimate, KERNEL, Contention::Alone);
    }
    gpu_time
}

fn launch(gpu_time: &mut GpuTime, key: LaneKey) -> LaneId {
    let id = gpu_time.lane(key, BEGIN).expect("a lane").id;
    let expected = gpu_time.expect(kernel());
    gpu_time.charge(Some(id), kernel(), expected, 3, BEGIN);
    id
}

fn is_idle(gpu_time: &mut GpuTime, id: LaneId) -> bool {
    gpu_time.find(id).expect("the lane").is_idle()
}

#[test]
fn synchronized_work_is_charged_and_has_ended_by_then() {
    let mut gpu_time = known();
    let own = launch(&mut gpu_time, key(THREAD, 1));
    let others =
        [launch(&mut gpu_time, key(THREAD, 2)), launch(&mut gpu_time, key(ThreadKey(2), 1))];
    // It is expected to take 180 us.
    let now = BEGIN + us(100);
    gpu_time.measure_synchronized(|lane| *lane == key(THREAD, 1), now);
    assert!(is_idle(&mut gpu_time, own));
    assert!(!others.into_iter().any(|id| is_idle(&mut gpu_time, id)), "of them nothing is known");
    assert_eq!((gpu_time.last(), gpu_time.busy()), (now, us(100)));
}

#[test]
fn short_synchronized_work_ended_when_it_was_expected_to() {
    let mut gpu_time = known();
    launch(&mut gpu_time, key(THREAD, 1));
    gpu_time.measure_synchronized(|_| true, BEGIN + us(1_000));
    let took = gpu_time.busy();
    assert!((us(175)..us(190)).contains(&took), "{took}");
    assert_eq!(gpu_time.last(), BEGIN + took);
}

/// No marker may follow programmatic launches: their cost is learned from their end.
#[test]
fn synchronized_programmatic_launches_are_measured() {
    let mut gpu_time = known();
    for _ in 0..20 {
        let id = launch(&mut gpu_time, key(THREAD, 1));
        let lane = gpu_time.find(id).expect("the lane");
        (lane.programmatic, lane.ended) = (true, Nanos::ZERO);
        gpu_time.measure_synchronized(|_| true, BEGIN + us(30));
    }
    let cost = gpu_time.expect(kernel()).cost;
    assert!((9_000..20_000).contains(&cost), "{cost}");
}

/// Runs a batch of ten launches that takes `took`, whose marker finds its stream dry or not.
fn batch(gpu_time: &mut GpuTime, now: &mut Nanos, took: Nanos, dry: bool) {
    let id = gpu_time.lane(key(THREAD, 1), *now).expect("a lane").id;
    let expected = gpu_time.expect(kernel());
    gpu_time.find(id).expect("the lane").open.start = Start::Event(Event(1));
    gpu_time.charge(Some(id), kernel(), expected, 10, *now);
    let marker = gpu_time.plan_marker(id).expect("a marker");
    *now = *now + took;
    let placement =
        MarkerPlacement { at: *now, contention: Contention::Alone, dry, backlog: false };
    gpu_time.close_batch(id, &marker, Event(2), false, placement);
    let due = gpu_time.next_ended(&[], |_, _| 0, *now).expect("it is over");
    let timing = Timing { since_base: None, length: Some(took.0.cast_signed()) };
    gpu_time.measure(&due, timing, *now).expect("it was due");
    *now = *now + us(1_000);
}

/// A marker right behind a launch finds the stream busy, whatever gaps there were.
#[test]
fn gaps_of_a_host_are_not_learned_where_the_last_launch_still_runs() {
    let cost = |dry: &[bool]| {
        let (mut gpu_time, mut now) = (known(), BEGIN);
        // The GPU computes for 600 of 1,000 us.
        dry.iter().for_each(|dry| batch(&mut gpu_time, &mut now, us(1_000), *dry));
        gpu_time.expect(kernel()).cost
    };
    let known = cost(&[]);
    assert_eq!(cost(&[true, false, true, false]), known);
    // A kernel that takes longer from now on is learned even so.
    assert!(cost(&[true, false, false, false]) > known + 5_000);
}

/// Two kernels of 60 us that fill the GPU, the second launched 40 us after the first. When the
/// first had ended, 10 us of the second once counted as run.
#[test]
fn kernel_behind_one_that_fills_the_gpu_has_not_begun() {
    let (mut gpu_time, mut now) = (known(), BEGIN);
    for stream in 1..=2 {
        let id = gpu_time.lane(key(THREAD, stream), now).expect("a lane").id;
        let expected = gpu_time.expect(kernel());
        gpu_time.find(id).expect("the lane").open.start = Start::Event(Event(stream));
        gpu_time.charge(Some(id), kernel(), expected, 1, now);
        let marker = gpu_time.plan_marker(id).expect("a marker");
        let placement =
            MarkerPlacement { at: now, contention: Contention::Alone, dry: false, backlog: false };
        gpu_time.close_batch(id, &marker, Event(10 + stream), false, placement);
        now = now + us(40);
    }
    now = BEGIN + KERNEL;
    let due = gpu_time.next_ended(&[], |_, _| 0, now).expect("the first is over");
    let timing = Timing { since_base: None, length: Some(KERNEL.0.cast_signed()) };
    gpu_time.measure(&due, timing, now).expect("it was due");
    let left = gpu_time.work().own_remaining(0, now);
    assert!((us(58)..us(63)).contains(&left), "{left}");
}
