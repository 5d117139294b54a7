//! Work that the program has waited for, and streams whose host leaves gaps.

use super::*;

const THREAD: ThreadKey = ThreadKey(1);

fn key(thread: ThreadKey, stream: usize) -> LaneKey {
    LaneKey { thread, context: CONTEXT, stream: Stream { handle: 16 * stream, per_thread: false } }
}

fn us(micros: u64) -> Nanos {
    Nanos::from_micros(micros)
}

/// A kernel is known to take 60 us.
fn known() -> Settlement {
    let mut settlement = Settlement::new();
    for _ in 0..8 {
        let mut bill = Bill::default();
        bill.add(kernel(), Nanos(settlement.expect(kernel()).cost.into()), 1);
        settlement.costs.learn(&bill, KERNEL, Company::Alone);
    }
    settlement
}

/// Three launches into a lane at [`BEGIN`].
fn launch(settlement: &mut Settlement, key: LaneKey) -> LaneId {
    let id = settlement.lane(key, BEGIN).expect("a lane").id;
    let expected = settlement.expect(kernel());
    settlement.charge(Some(id), kernel(), expected, 3, BEGIN);
    id
}

fn is_idle(settlement: &mut Settlement, id: LaneId) -> bool {
    settlement.find(id).expect("the lane").is_idle()
}

#[test]
fn waited_for_work_is_settled_and_has_ended_by_then() {
    let mut settlement = known();
    let own = launch(&mut settlement, key(THREAD, 1));
    let others = [launch(&mut settlement, key(THREAD, 2)), launch(&mut settlement, key(ThreadKey(2), 1))];
    // It is expected to take 180 us.
    let now = BEGIN + us(100);
    settlement.settle_waited(|lane| *lane == key(THREAD, 1), now);
    assert!(is_idle(&mut settlement, own));
    assert!(!others.into_iter().any(|id| is_idle(&mut settlement, id)), "of them nothing is known");
    assert_eq!((settlement.last(), settlement.busy()), (now, us(100)));
}

#[test]
fn waited_for_work_that_was_short_ended_when_it_was_expected_to() {
    let mut settlement = known();
    launch(&mut settlement, key(THREAD, 1));
    settlement.settle_waited(|_| true, BEGIN + us(1_000));
    let took = settlement.busy();
    assert!((us(175)..us(190)).contains(&took), "{took}");
    assert_eq!(settlement.last(), BEGIN + took);
}

/// No marker may stand behind programmatic launches: what they take is learned from when they
/// ended.
#[test]
fn programmatic_launches_that_were_waited_for_teach_what_they_took() {
    let mut settlement = known();
    for _ in 0..20 {
        let id = launch(&mut settlement, key(THREAD, 1));
        let lane = settlement.find(id).expect("the lane");
        (lane.programmatic, lane.ended) = (true, Nanos::ZERO);
        settlement.settle_waited(|_| true, BEGIN + us(30));
    }
    let cost = settlement.expect(kernel()).cost;
    assert!((9_000..20_000).contains(&cost), "{cost}");
}

/// A batch of ten launches that took so long, whose marker found its stream dry or not.
fn batch(settlement: &mut Settlement, now: &mut Nanos, took: Nanos, dry: bool) {
    let id = settlement.lane(key(THREAD, 1), *now).expect("a lane").id;
    let expected = settlement.expect(kernel());
    settlement.find(id).expect("the lane").open.start = Start::Event(Event(1));
    settlement.charge(Some(id), kernel(), expected, 10, *now);
    let marker = settlement.plan(id).expect("a marker");
    *now = *now + took;
    let placed = Placed { at: *now, company: Company::Alone, dry, backlog: false };
    settlement.close(id, &marker, Event(2), false, placed);
    let due = settlement.due(CONTEXT, &[], |_| 0, *now).expect("it is over");
    let timing = Timing { since_base: None, length: Some(took.0.cast_signed()) };
    settlement.settle(&due, timing, *now).expect("it was due");
    *now = *now + us(1_000);
}

/// A marker that stands right behind a launch finds the stream busy, whatever gaps there were.
#[test]
fn gaps_of_a_host_are_not_learned_where_the_last_launch_still_runs() {
    let cost = |dry: &[bool]| {
        let (mut settlement, mut now) = (known(), BEGIN);
        // The GPU computes for 600 of 1,000 us.
        dry.iter().for_each(|dry| batch(&mut settlement, &mut now, us(1_000), *dry));
        settlement.expect(kernel()).cost
    };
    let known = cost(&[]);
    assert_eq!(cost(&[true, false, true, false]), known);
    // A kernel that takes longer from now on is learned all the same.
    assert!(cost(&[true, false, false, false]) > known + 5_000);
}

/// Two kernels that fill the GPU, of 60 us each, the second launched 40 us after the first. When
/// the first had ended, 10 us of the second were taken to have run.
#[test]
fn kernel_behind_one_that_fills_the_gpu_has_not_begun() {
    let (mut settlement, mut now) = (known(), BEGIN);
    for stream in 1..=2 {
        let id = settlement.lane(key(THREAD, stream), now).expect("a lane").id;
        let expected = settlement.expect(kernel());
        settlement.find(id).expect("the lane").open.start = Start::Event(Event(stream));
        settlement.charge(Some(id), kernel(), expected, 1, now);
        let marker = settlement.plan(id).expect("a marker");
        let placed = Placed { at: now, company: Company::Alone, dry: false, backlog: false };
        settlement.close(id, &marker, Event(10 + stream), false, placed);
        now = now + us(40);
    }
    now = BEGIN + KERNEL;
    let due = settlement.due(CONTEXT, &[], |_| 0, now).expect("the first is over");
    let timing = Timing { since_base: None, length: Some(KERNEL.0.cast_signed()) };
    settlement.settle(&due, timing, now).expect("it was due");
    let left = settlement.work().own_remaining(0, now);
    assert!((us(58)..us(63)).contains(&left), "{left}");
}
