use super::*;

const STREAM: Stream = Stream { handle: 0, per_thread: false };

fn kernel(function: usize) -> Kernel {
    Kernel::new(function, [1; 3], [32, 1, 1])
}

fn with_budget(budget: u32) -> Thread {
    let thread = Thread::default();
    thread.register(1, ThreadKey(1));
    let activity = thread.activity(Nanos(1000));
    thread.set_budget(Nanos(1000), activity, Gpu::new(0).expect("a GPU"), 7, 60, budget);
    thread.remember(kernel(1).function(), STREAM, LaneId::default(), &[60; SIZES]);
    thread
}

#[test]
fn budget_is_spent_to_the_end_and_no_further() {
    let thread = with_budget(200);
    assert_eq!((0..10).filter(|_| thread.spend(7, kernel(1), STREAM)).count(), 3);
    let mut counted = Vec::new();
    thread.take(|fast| {
        counted.push((fast.kernel, fast.launches));
        60
    });
    assert_eq!(counted, [(kernel(1), 3)]);
    thread.take(|_| unreachable!("all was taken"));
}

#[test]
fn budget_covers_only_its_gate_word_stream_and_kernel() {
    let thread = with_budget(200);
    assert!(!thread.spend(8, kernel(1), STREAM));
    assert!(!thread.spend(7, kernel(2), STREAM));
    assert!(!thread.spend(7, kernel(1), Stream { per_thread: true, ..STREAM }));
    assert!(!thread.spend(7, kernel(1), Stream { handle: 0x1000, ..STREAM }));
    assert!(thread.spend(7, kernel(1), STREAM));
    thread.revoke_budget();
    assert!(!thread.spend(7, kernel(1), STREAM));
    assert!(!thread.spend(0, kernel(1), STREAM), "a gate that was never written");
}

/// An unmeasured size costs more than any budget.
#[test]
fn sizes_of_a_function_have_costs_of_their_own() {
    let thread = with_budget(1000);
    let sized = |threads| Kernel::new(1, [threads, 1, 1], [1; 3]);
    let mut prices = [u32::MAX; SIZES];
    (prices[0], prices[10], prices[31]) = (10, 100, 400);
    thread.remember(sized(1).function(), STREAM, LaneId::default(), &prices);
    for (threads, passes) in [
        (1, true),
        (2, false),
        (1024, true),
        (2047, true),
        (2048, false),
        (u32::MAX, true),
        (1 << 31, false),
    ] {
        assert_eq!(thread.spend(7, sized(threads), STREAM), passes, "{threads} threads");
    }
    let mut taken = Vec::new();
    thread.take(|fast| {
        taken.push((fast.kernel, fast.launches));
        50
    });
    assert_eq!(taken, [(sized(1), 1), (sized(1024), 2), (sized(u32::MAX), 1)]);
    assert!(thread.spend(7, sized(1 << 31), STREAM), "it costs less now");
    assert!(!thread.spend(7, sized(2), STREAM));
}

/// Handles as in real programs: aligned, and not random.
#[test]
fn fifty_functions_have_entries() {
    for (first, apart) in
        [(0x5555_5600_0000, 64), (0x7f00_0000_1000, 4096), (1, 1), (0x5555_5600_0000, 0x120)]
    {
        let thread = with_budget(u32::MAX - 100);
        let kernels: Vec<Kernel> = (0..50).map(|place| kernel(first + place * apart)).collect();
        for kernel in &kernels {
            thread.remember(kernel.function(), STREAM, LaneId::default(), &[60; SIZES]);
        }
        let passed = kernels.iter().filter(|kernel| thread.spend(7, **kernel, STREAM)).count();
        assert!(passed >= 40, "{first:#x}, {apart} apart: {passed} of 50");
        let mut order = Vec::new();
        thread.take(|fast| {
            order.push(fast.kernel);
            60
        });
        assert!(
            order.iter().eq(kernels.iter().filter(|kernel| order.contains(kernel))),
            "as launched"
        );
    }
}

#[test]
fn thread_in_a_forked_child_has_no_budget() {
    let thread = with_budget(200);
    assert!(thread.spend(7, kernel(1), STREAM));
    assert_eq!(thread.key(2), None);
    thread.register(2, ThreadKey(1));
    assert!(!thread.spend(7, kernel(1), STREAM));
    thread.take(|_| unreachable!("it was the parent's"));
}

#[test]
fn thread_with_gaps_gets_a_smaller_budget() {
    let gpu = Gpu::new(0).expect("a GPU");
    let thread = with_budget(200_000);
    let mut now = Nanos(1000);
    for _ in 0..20 {
        // One launch of 60 us in 600.
        now = now + Nanos(600_000);
        thread.budget.set(thread.initial_budget.get().saturating_sub(60_000));
        let activity = thread.activity(now);
        assert!(activity.ran_dry);
        thread.set_budget(now, activity, gpu, 7, 60_000, 0);
    }
    let activity = thread.activity(now + Nanos(600_000));
    assert!(activity.is_sparse());
    assert!(activity.budget(Nanos(250_000)) < Nanos(30_000));
}
