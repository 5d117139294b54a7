use super::*;

const GPU: Uuid = Uuid([7; 16]);
const A: TenantId = TenantId(1);
const BOTH: Rules = Rules {
    end_unshimmed: true,
    over_limit: OverLimit {
        action: Action::End,
        margin: Bytes(100),
        grace: Nanos::from_millis(3_000),
    },
};

fn seen(pid: u32, owner: Option<TenantId>, shim: Shim, memory: u64) -> ObservedProcess {
    ObservedProcess {
        id: ProcessId { pid, start_time: 1 },
        comm: "p".into(),
        owner,
        shim,
        memory: Some(Bytes(memory)),
        spared: false,
    }
}

fn observation(second: u64, seen: Vec<ObservedProcess>, limit: u64) -> GpuObservation {
    let limits = [(A, Bytes(limit))].into_iter().filter(|(_, limit)| limit.0 > 0).collect();
    GpuObservation {
        at: Nanos::from_millis(1000 * second),
        gpu: GPU,
        seen,
        limits,
        fresh: BTreeSet::new(),
        unsure: BTreeSet::new(),
        charged: BTreeMap::new(),
    }
}

/// Takes observations of these seconds; returns the findings and signals.
fn observe_all(
    watcher: &mut Watcher,
    rules: Rules,
    observations: impl IntoIterator<Item = (u64, Vec<ObservedProcess>, u64)>,
) -> Vec<(u64, String)> {
    let mut events = Vec::new();
    for (second, seen, limit) in observations {
        for event in watcher.take(&observation(second, seen, limit), rules) {
            events.push(match event {
                Event::Found(finding) => {
                    (second, format!("found {} {}", finding.id.pid, finding.cause.name()))
                }
                Event::End(order) => {
                    (second, format!("{:?} {} {}", order.signal, order.id.pid, order.cause.name()))
                }
            });
        }
    }
    events
}

/// Takes observations of a process of the container, which holds what `held` says.
fn observe_one(
    watcher: &mut Watcher,
    seconds: std::ops::Range<u64>,
    held: impl Fn(u64) -> u64,
    limit: impl Fn(u64) -> u64,
) -> Vec<(u64, String)> {
    let seen = |at| vec![seen(1, Some(A), Shim::Bound, held(at))];
    observe_all(watcher, BOTH, seconds.map(|at| (at, seen(at), limit(at))))
}

fn texts(events: &[(u64, String)]) -> Vec<(u64, &str)> {
    events.iter().map(|(at, what)| (*at, what.as_str())).collect()
}

#[test]
fn unshimmed_process_is_reported_once_then_terminated_and_killed() {
    let mut watcher = Watcher::default();
    let events = observe_all(
        &mut watcher,
        BOTH,
        (0..26).map(|at| (at, vec![seen(5, Some(A), Shim::Absent, 9)], 0)),
    );
    assert_eq!(
        texts(&events),
        [
            (1, "found 5 unshimmed"),
            (3, "Term 5 unshimmed"),
            (13, "Kill 5 unshimmed"),
            (23, "Kill 5 unshimmed")
        ]
    );
    assert_eq!(watcher.findings().count(), 1);
    assert_eq!(watcher.found().collect::<Vec<_>>(), [(Cause::Unshimmed, Some(A), 1)]);
}

#[test]
fn process_that_must_not_be_ended_is_only_reported() {
    let spared = ObservedProcess { spared: true, ..seen(5, Some(A), Shim::Absent, 5000) };
    let (unshimmed, over_limit) = ((1, "found 5 unshimmed"), (1, "found 5 over_limit"));
    for (case, rules, process, limit, expected) in [
        (
            "no rule",
            Rules::default(),
            seen(5, Some(A), Shim::Absent, 900),
            9,
            &[unshimmed, over_limit][..],
        ),
        ("host process", BOTH, seen(5, None, Shim::Unknown, 9), 1, &[unshimmed]),
        ("unknown shim", BOTH, seen(5, Some(A), Shim::Unknown, 9), 0, &[unshimmed]),
        ("disowned GPU", BOTH, spared, 1000, &[unshimmed, over_limit]),
        ("over its limit at start", BOTH, seen(5, Some(A), Shim::Bound, 5000), 500, &[over_limit]),
    ] {
        let mut watcher = Watcher::default();
        let observations = (0..30).map(|at| (at, vec![process.clone()], limit));
        let events = observe_all(&mut watcher, rules, observations);
        assert_eq!(texts(&events), expected, "{case}");
    }
}

#[test]
fn one_observation_reports_nothing() {
    let mut watcher = Watcher::default();
    // Its slot is verified in every second observation.
    let shim = |at| if at % 2 == 0 { Shim::Absent } else { Shim::Bound };
    let events = observe_all(
        &mut watcher,
        BOTH,
        (0..30).map(|at| (at, vec![seen(5, Some(A), shim(at), 9)], 0)),
    );
    assert_eq!(texts(&events), []);
    assert_eq!(watcher.findings().count(), 0);
}

#[test]
fn observations_that_come_together_count_once() {
    let mut watcher = Watcher::default();
    for at in [0, 1, 100, 499] {
        let observation = GpuObservation {
            at: Nanos::from_millis(at),
            ..observation(0, vec![seen(5, Some(A), Shim::Absent, 9)], 0)
        };
        assert_eq!(watcher.take(&observation, BOTH), []);
    }
    assert_eq!(watcher.findings().count(), 0);
    assert_eq!(
        watcher.take(&observation(1, vec![seen(5, Some(A), Shim::Absent, 9)], 0), BOTH).len(),
        1
    );
}

#[test]
fn later_process_with_the_same_pid_is_another_process() {
    let mut watcher = Watcher::default();
    let process = |at: u64| ObservedProcess {
        id: ProcessId { pid: 5, start_time: at / 3 },
        ..seen(5, Some(A), Shim::Absent, 9)
    };
    let events = observe_all(&mut watcher, BOTH, (0..9).map(|at| (at, vec![process(at)], 0)));
    assert_eq!(
        texts(&events),
        [(1, "found 5 unshimmed"), (4, "found 5 unshimmed"), (7, "found 5 unshimmed")]
    );
}

#[test]
fn largest_process_of_a_container_over_its_limit_is_reported() {
    let mut watcher = Watcher::default();
    let all = |big| {
        vec![
            seen(1, Some(A), Shim::Bound, 400),
            seen(2, Some(A), Shim::Bound, big),
            seen(3, None, Shim::Unknown, 9000),
        ]
    };
    let observations =
        (0..3).map(|at| (at, all(500), 1000)).chain((3..9).map(|at| (at, all(801), 1000)));
    let events = observe_all(&mut watcher, BOTH, observations);
    assert_eq!(
        texts(&events),
        [(1, "found 3 unshimmed"), (4, "found 2 over_limit"), (6, "Term 2 over_limit")]
    );
}

/// One process whose memory changes, in a container with a limit of 1000 and a margin of 100.
#[test]
fn process_is_ended_only_while_it_is_beyond_the_margin() {
    let start = (2, "found 1 over_limit");
    let within: fn(u64) -> u64 = |at| if at == 0 { 1000 } else { 1100 };
    for (case, seconds, held, expected) in [
        ("within the margin", 20, within, &[start][..]),
        (
            "the delay counts from the margin, not from the limit",
            16,
            |at| if at == 0 { 900 } else { 1050 + 100 * u64::from(at >= 10) },
            &[start, (13, "Term 1 over_limit")],
        ),
        (
            "back within the margin from second 5, beyond it from second 30: not killed",
            36,
            |at| match at {
                0 => 900,
                1..=4 | 30.. => 1200,
                _ => 1050,
            },
            &[start, (4, "Term 1 over_limit"), (33, "Term 1 over_limit")],
        ),
        (
            "one quiet observation of four does not start the grace period anew",
            20,
            |at| match at {
                0 => 900,
                at if at % 4 == 0 => 1050,
                _ => 1200,
            },
            &[start, (6, "Term 1 over_limit"), (17, "Kill 1 over_limit")],
        ),
    ] {
        let events = observe_one(&mut Watcher::default(), 0..seconds, held, |_| 1000);
        assert_eq!(texts(&events), expected, "{case}");
    }
}

#[test]
fn lowered_limit_does_not_end_existing_processes() {
    let mut watcher = Watcher::default();
    let limit = |at| if at < 3 { 1000 } else { 500 };
    let events = observe_one(&mut watcher, 0..20, |_| 900, limit);
    assert_eq!(texts(&events), [(4, "found 1 over_limit")]);
    // It may not hold more than it was ever allowed. Once within its limit again, it may not exceed
    // that.
    let events = observe_one(&mut watcher, 20..24, |_| 1200, limit);
    assert_eq!(texts(&events), [(23, "Term 1 over_limit")]);
    let mut watcher = Watcher::default();
    let held = |at| if (5..8).contains(&at) { 400 } else { 900 };
    let events = observe_one(&mut watcher, 0..13, held, limit);
    assert_eq!(
        texts(&events),
        [(4, "found 1 over_limit"), (9, "found 1 over_limit"), (11, "Term 1 over_limit")]
    );
}

#[test]
fn process_that_got_no_sigterm_gets_no_sigkill() {
    let mut watcher = Watcher::default();
    let mut events = Vec::new();
    for at in 0..16 {
        for event in
            watcher.take(&observation(at, vec![seen(5, Some(A), Shim::Absent, 9)], 0), BOTH)
        {
            if let Event::End(order) = event {
                events.push((at, order.signal));
                watcher.refused(&order);
            }
        }
    }
    assert_eq!(
        events,
        [(3, Signal::Term), (7, Signal::Term), (11, Signal::Term), (15, Signal::Term)]
    );
}

#[test]
fn order_carries_what_its_container_may_hold() {
    let mut watcher = Watcher::default();
    let held = |at| if at == 0 { 900 } else { 1200 };
    let observations =
        (0..5).map(|at| observation(at, vec![seen(1, Some(A), Shim::Bound, held(at))], 1000));
    let events: Vec<Event> =
        observations.flat_map(|observation| watcher.take(&observation, BOTH)).collect();
    let bounds: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::End(order) => Some(order.bound),
            Event::Found(_) => None,
        })
        .collect();
    assert_eq!(
        bounds,
        [Some(Bound { allowed: Bytes(1000), margin: Bytes(100), charged: Bytes::ZERO })]
    );
}

#[test]
fn process_on_several_gpus_is_reported_once() {
    let mut watcher = Watcher::default();
    let mut events = 0;
    for at in 0..5 {
        for gpu in [GPU, Uuid([8; 16])] {
            let observation = GpuObservation {
                gpu,
                ..observation(at, vec![seen(5, Some(A), Shim::Absent, 9)], 0)
            };
            events += watcher.take(&observation, Rules::default()).len();
        }
    }
    assert_eq!((events, watcher.findings().count()), (1, 2));
    watcher.forget(Some(GPU));
    assert_eq!(watcher.findings().count(), 1);
    watcher.dismiss(A);
    assert_eq!((watcher.findings().count(), watcher.found().count()), (0, 0));
}

#[test]
fn findings_are_transferred_to_a_successor() {
    use std::path::Path;
    let mut before = Watcher::default();
    let observations = |seconds: std::ops::Range<u64>| {
        seconds.map(|at| {
            (at, vec![seen(5, Some(A), Shim::Absent, 900), seen(6, None, Shim::Unknown, 1)], 500)
        })
    };
    let events = observe_all(&mut before, BOTH, observations(0..5));
    assert_eq!(
        texts(&events),
        [
            (1, "found 5 unshimmed"),
            (1, "found 6 unshimmed"),
            (1, "found 5 over_limit"),
            (3, "Term 5 unshimmed")
        ]
    );
    let order = Order {
        gpu: GPU,
        id: ProcessId { pid: 5, start_time: 1 },
        comm: "p".into(),
        owner: A,
        cause: Cause::Unshimmed,
        bound: None,
        signal: Signal::Term,
    };
    before.done(order, "a".into(), Nanos(7));
    let directory = Path::new("/a");
    let state = before.transfer(|owner| (owner == A).then_some(directory));
    let text = serde_json::to_string(&state).unwrap();
    let state: WatcherState = serde_json::from_str(&text).unwrap();

    // The successor numbers the container anew. Nothing is reported twice, no process gets a second
    // SIGTERM, and what was over the limit before may stay.
    let other = TenantId(9);
    let mut after = Watcher::default();
    after.restore(state.clone(), |dir| (dir == directory).then_some(other));
    assert_eq!(after.findings().count(), 3);
    assert_eq!(after.found().count(), 3);
    assert_eq!(after.ends().collect::<Vec<_>>(), [(Cause::Unshimmed, other, 1)]);
    assert_eq!(after.ended().map(|ended| ended.container.as_str()).collect::<Vec<_>>(), ["a"]);
    let limits: BTreeMap<_, _> = [(other, Bytes(500))].into();
    let mut events = Vec::new();
    for second in 5..15 {
        let seen = vec![seen(5, Some(other), Shim::Absent, 900), seen(6, None, Shim::Unknown, 1)];
        let observation = GpuObservation {
            at: Nanos::from_millis(1000 * second),
            gpu: GPU,
            seen,
            limits: limits.clone(),
            fresh: BTreeSet::new(),
            unsure: BTreeSet::new(),
            charged: BTreeMap::new(),
        };
        for event in after.take(&observation, BOTH) {
            let Event::End(order) = event else { panic!("found anew: {event:?}") };
            events.push((second, order.signal, order.owner, order.cause));
        }
    }
    assert_eq!(events, [(13, Signal::Kill, other, Cause::Unshimmed)]);

    // Of a removed container only the record of ended processes is left.
    let mut after = Watcher::default();
    after.restore(state, |_| None);
    assert_eq!((after.findings().count(), after.found().count(), after.ends().count()), (1, 1, 0));
    assert_eq!(after.ended().count(), 1);
    assert_eq!(serde_json::from_str::<WatcherState>("{}").unwrap(), WatcherState::default());
}

fn without_cause(event: Event) -> String {
    match event {
        Event::Found(finding) => format!("found {}", finding.id.pid),
        Event::End(order) => format!("{:?} {}", order.signal, order.id.pid),
    }
}

/// Observations of a monitor that has just started: it does not know the container's process before
/// second `found_at`, though that holds 900 all the time. Its search ends at `searched_at`.
fn observe_late(
    watcher: &mut Watcher,
    found_at: u64,
    searched_at: u64,
    observations: u64,
) -> Vec<(u64, String)> {
    let mut events = Vec::new();
    for second in 0..observations {
        let owner = (second >= found_at).then_some(A);
        let mut observation = observation(second, vec![seen(5, owner, Shim::Bound, 900)], 9);
        observation.unsure.extend((second < searched_at).then_some(A));
        let taken = watcher.take(&observation, BOTH);
        events.extend(taken.into_iter().map(|event| (second, without_cause(event))));
    }
    events
}

#[test]
fn container_over_its_limit_at_start_keeps_that_even_if_found_later() {
    let mut watcher = Watcher::default();
    assert_eq!(texts(&observe_late(&mut watcher, 3, 3, 30)), [(4, "found 5")]);
    assert_eq!(watcher.allowed[&(GPU, A)], Bytes(900));
}

#[test]
fn search_for_a_containers_processes_times_out() {
    let mut watcher = Watcher::default();
    let events = observe_late(&mut watcher, 12, 100, 30);
    assert_eq!(texts(&events), [(13, "found 5"), (15, "Term 5"), (25, "Kill 5")]);
    assert!(watcher.unsure.is_empty());
}

/// Returns the containers that are blocked in each second, and the events.
fn blocks(
    action: Action,
    held: impl Fn(u64) -> u64,
    fresh: bool,
) -> (Vec<u64>, Vec<(u64, String)>) {
    let rules = Rules { over_limit: OverLimit { action, ..BOTH.over_limit }, ..BOTH };
    let (mut watcher, mut blocked, mut events) = (Watcher::default(), Vec::new(), Vec::new());
    for second in 0..20 {
        let mut seen = observation(second, vec![seen(5, Some(A), Shim::Bound, held(second))], 1000);
        seen.fresh.extend(fresh.then_some(A));
        let taken = watcher.take(&seen, rules);
        events.extend(taken.into_iter().map(|event| (second, without_cause(event))));
        blocked.extend(watcher.blocked(rules).contains(&A).then_some(second));
    }
    (blocked, events)
}

#[test]
fn container_beyond_limit_and_margin_is_blocked_while_it_is() {
    let held = |at| if (4..9).contains(&at) { 1101 } else { 1100 };
    for (action, blocked) in [
        (Action::Report, vec![]),
        (Action::Block, vec![5, 6, 7, 8]),
        (Action::End, vec![5, 6, 7, 8]),
    ] {
        let held = |at| if at == 0 { 0 } else { held(at) };
        assert_eq!(blocks(action, held, false).0, blocked, "{action:?}");
    }
    let (_, events) = blocks(Action::Block, |at| 9000 * u64::from(at > 0), false);
    assert_eq!(texts(&events), [(2, "found 5")], "no process is ended");
}

/// A program can fill a GPU before the first observation of its container.
#[test]
fn container_that_arrived_with_its_limit_never_had_more() {
    let (blocked, _) = blocks(Action::Block, |_| 9000, false);
    assert_eq!(blocked, [0; 0], "it was there before the monitor");
    let (blocked, events) = blocks(Action::End, |_| 9000, true);
    assert_eq!(blocked.first(), Some(&1));
    assert_eq!(texts(&events), [(1, "found 5"), (3, "Term 5"), (13, "Kill 5")]);
}

#[test]
fn as_few_processes_are_ended_as_it_takes() {
    let mut watcher = Watcher::default();
    let all = |at: u64| {
        let held = |memory| if at == 0 { 0 } else { memory };
        vec![
            seen(1, Some(A), Shim::Bound, held(900)),
            seen(2, Some(A), Shim::Bound, held(2000)),
            seen(3, Some(A), Shim::Bound, held(1500)),
            seen(4, Some(TenantId(2)), Shim::Bound, 9000),
        ]
    };
    let observations = (0..6).map(|at| (at, all(at), 1000));
    let events = observe_all(&mut watcher, BOTH, observations);
    assert_eq!(
        texts(&events),
        [(2, "found 2 over_limit"), (4, "Term 2 over_limit"), (4, "Term 3 over_limit")]
    );
}

/// Two processes that take turns at holding most were never found twice in a row.
#[test]
fn processes_that_alternate_are_found_and_ended() {
    let mut watcher = Watcher::default();
    let all = |at: u64| {
        let held = |memory| if at == 0 { 0 } else { memory };
        vec![
            seen(1, Some(A), Shim::Bound, held(2000 + at % 2)),
            seen(2, Some(A), Shim::Bound, held(2001 - at % 2)),
        ]
    };
    let events = observe_all(&mut watcher, BOTH, (0..16).map(|at| (at, all(at), 1000)));
    assert_eq!(
        texts(&events),
        [
            (2, "found 2 over_limit"),
            (4, "Term 1 over_limit"),
            (4, "Term 2 over_limit"),
            (14, "Kill 1 over_limit"),
            (14, "Kill 2 over_limit")
        ]
    );
}

/// First launches load code in each process, which no call requests.
#[test]
fn each_further_process_adds_a_quarter_of_the_margin() {
    for (held, expected) in [
        (159, &[(2, "found 8 over_limit")][..]),
        (160, &[(2, "found 8 over_limit"), (4, "Term 8 over_limit")]),
    ] {
        let mut watcher = Watcher::default();
        let all = |at: u64| {
            let held = if at == 0 { 0 } else { held };
            (1..=8).map(|pid| seen(pid, Some(A), Shim::Bound, held)).collect()
        };
        let events = observe_all(&mut watcher, BOTH, (0..10).map(|at| (at, all(at), 1000)));
        assert_eq!(texts(&events), expected, "{held}");
    }
}

#[test]
fn successors_of_a_terminated_process_are_killed_at_once() {
    let mut watcher = Watcher::default();
    let mut signals = Vec::new();
    for at in 0..30_u32 {
        // Another process every 8 s.
        let process = seen(1 + at / 8, Some(A), Shim::Bound, if at == 0 { 0 } else { 1200 });
        for event in watcher.take(&observation(at.into(), vec![process], 1000), BOTH) {
            if let Event::End(order) = event {
                signals.push((at, order.signal, order.id.pid));
                watcher.done(order, "a".into(), Nanos::from_millis(1000 * u64::from(at)));
            }
        }
    }
    assert_eq!(
        signals,
        [(4, Signal::Term, 1), (8, Signal::Term, 2), (16, Signal::Kill, 3), (24, Signal::Kill, 4)]
    );
    assert_eq!(watcher.ends().collect::<Vec<_>>(), [(Cause::OverLimit, A, 4)]);
}

#[test]
fn what_the_driver_charges_a_group_counts_where_it_is_more_than_its_processes() {
    for (charged, expected) in [(0, None), (900, None), (1500, Some(1500))] {
        let mut watcher = Watcher::default();
        let seen = vec![seen(5, Some(A), Shim::Bound, 800)];
        let observation = GpuObservation {
            charged: BTreeMap::from([(A, Bytes(charged))]),
            fresh: BTreeSet::from([A]),
            ..observation(1, seen, 1000)
        };
        let mut found = None;
        for second in 1..4 {
            let at = Nanos::from_millis(1000 * second);
            for event in
                watcher.take(&GpuObservation { at, ..observation.clone() }, Rules::default())
            {
                let Event::Found(finding) = event else { panic!("{event:?}") };
                found = Some(finding.container_memory.0);
            }
        }
        assert_eq!(found, expected, "{charged}");
    }
}
