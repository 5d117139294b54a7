use super::*;

const CARD: Uuid = Uuid([7; 16]);
const A: TenantId = TenantId(1);
const BOTH: Rules = Rules { end_unshimmed: true, end_over_limit: Some(Bytes(100)) };

fn seen(pid: u32, owner: Option<TenantId>, shim: Shim, memory: u64) -> Seen {
    Seen { name: Name { pid, born: 1 }, comm: "p".into(), owner, shim, memory: Some(Bytes(memory)) }
}

fn look(second: u64, seen: Vec<Seen>, limit: u64) -> Look {
    let limits = [(A, Bytes(limit))].into_iter().filter(|(_, limit)| limit.0 > 0).collect();
    Look { at: Nanos::from_millis(1000 * second), card: CARD, seen, limits }
}

/// Found, and signals, one a second from 0 on.
fn play(
    watch: &mut Watch,
    rules: Rules,
    looks: impl IntoIterator<Item = (u64, Vec<Seen>, u64)>,
) -> Vec<(u64, String)> {
    let mut told = Vec::new();
    for (second, seen, limit) in looks {
        for event in watch.take(&look(second, seen, limit), rules) {
            told.push(match event {
                Event::Found(finding) => {
                    (second, format!("found {} {}", finding.name.pid, finding.cause.name()))
                }
                Event::End(order) => {
                    (second, format!("{:?} {} {}", order.signal, order.name.pid, order.cause.name()))
                }
            });
        }
    }
    told
}

fn said(told: &[(u64, String)]) -> Vec<(u64, &str)> {
    told.iter().map(|(at, what)| (*at, what.as_str())).collect()
}

#[test]
fn a_containers_process_without_the_shim_is_found_once_asked_and_made_to_end() {
    let mut watch = Watch::default();
    let told = play(&mut watch, BOTH, (0..26).map(|at| (at, vec![seen(5, Some(A), Shim::Absent, 9)], 0)));
    assert_eq!(
        said(&told),
        [
            (1, "found 5 unshimmed"),
            (3, "Term 5 unshimmed"),
            (13, "Kill 5 unshimmed"),
            (23, "Kill 5 unshimmed")
        ]
    );
    assert_eq!(watch.findings().count(), 1);
    assert_eq!(watch.found().collect::<Vec<_>>(), [(Cause::Unshimmed, Some(A), 1)]);
}

#[test]
fn nobody_is_ended_unless_that_is_wanted() {
    let mut watch = Watch::default();
    let told = play(
        &mut watch,
        Rules::default(),
        (0..30).map(|at| (at, vec![seen(5, Some(A), Shim::Absent, 900)], 9)),
    );
    assert_eq!(said(&told), [(1, "found 5 unshimmed"), (1, "found 5 over_limit")]);
}

#[test]
fn the_hosts_own_processes_are_shown_and_never_ended() {
    let mut watch = Watch::default();
    let told = play(&mut watch, BOTH, (0..30).map(|at| (at, vec![seen(5, None, Shim::Unknown, 9)], 1)));
    assert_eq!(said(&told), [(1, "found 5 unshimmed")]);
}

#[test]
fn one_look_is_none() {
    let mut watch = Watch::default();
    // Its slot is proved between the looks.
    let shim = |at| if at % 2 == 0 { Shim::Absent } else { Shim::Bound };
    let told = play(&mut watch, BOTH, (0..30).map(|at| (at, vec![seen(5, Some(A), shim(at), 9)], 0)));
    assert_eq!(said(&told), []);
    assert_eq!(watch.findings().count(), 0);
}

#[test]
fn looks_that_come_together_are_one() {
    let mut watch = Watch::default();
    for at in [0, 1, 100, 499] {
        let look = Look { at: Nanos::from_millis(at), ..look(0, vec![seen(5, Some(A), Shim::Absent, 9)], 0) };
        assert_eq!(watch.take(&look, BOTH), []);
    }
    assert_eq!(watch.findings().count(), 0);
    assert_eq!(watch.take(&look(1, vec![seen(5, Some(A), Shim::Absent, 9)], 0), BOTH).len(), 1);
}

#[test]
fn a_later_process_of_the_same_number_is_another_one() {
    let mut watch = Watch::default();
    let process = |at: u64| Seen { name: Name { pid: 5, born: at / 3 }, ..seen(5, Some(A), Shim::Absent, 9) };
    let told = play(&mut watch, BOTH, (0..9).map(|at| (at, vec![process(at)], 0)));
    assert_eq!(said(&told), [(1, "found 5 unshimmed"), (4, "found 5 unshimmed"), (7, "found 5 unshimmed")]);
}

#[test]
fn of_a_container_over_its_limit_the_one_that_holds_most_is_found() {
    let mut watch = Watch::default();
    let all = |big| {
        vec![
            seen(1, Some(A), Shim::Bound, 400),
            seen(2, Some(A), Shim::Bound, big),
            seen(3, None, Shim::Unknown, 9000),
        ]
    };
    let looks = (0..3).map(|at| (at, all(500), 1000)).chain((3..9).map(|at| (at, all(800), 1000)));
    let told = play(&mut watch, BOTH, looks);
    assert_eq!(said(&told), [(1, "found 3 unshimmed"), (4, "found 2 over_limit"), (6, "Term 2 over_limit")]);
}

#[test]
fn a_little_over_the_limit_is_found_and_not_ended() {
    let mut watch = Watch::default();
    let told = play(
        &mut watch,
        BOTH,
        (0..20).map(|at| (at, vec![seen(1, Some(A), Shim::Bound, if at == 0 { 1000 } else { 1100 })], 1000)),
    );
    assert_eq!(said(&told), [(2, "found 1 over_limit")]);
}

#[test]
fn who_is_over_a_lowered_limit_keeps_what_it_has() {
    let mut watch = Watch::default();
    let limit = |at| if at < 3 { 1000 } else { 500 };
    let told =
        play(&mut watch, BOTH, (0..20).map(|at| (at, vec![seen(1, Some(A), Shim::Bound, 900)], limit(at))));
    assert_eq!(said(&told), [(4, "found 1 over_limit")]);
    // More than it ever was allowed it may not have; and once within it, it may have no more than that.
    let told = play(&mut watch, BOTH, [(20, vec![seen(1, Some(A), Shim::Bound, 1200)], 500)]);
    assert_eq!(said(&told), [(20, "Term 1 over_limit")]);
    let mut watch = Watch::default();
    let held = |at| if (5..8).contains(&at) { 400 } else { 900 };
    let told = play(
        &mut watch,
        BOTH,
        (0..13).map(|at| (at, vec![seen(1, Some(A), Shim::Bound, held(at))], limit(at))),
    );
    assert_eq!(
        said(&told),
        [(4, "found 1 over_limit"), (9, "found 1 over_limit"), (11, "Term 1 over_limit")]
    );
}

#[test]
fn who_was_over_it_when_the_monitor_came_keeps_what_it_has() {
    let mut watch = Watch::default();
    let told = play(&mut watch, BOTH, (0..20).map(|at| (at, vec![seen(1, Some(A), Shim::Bound, 5000)], 500)));
    assert_eq!(said(&told), [(1, "found 1 over_limit")]);
}

#[test]
fn a_process_on_several_cards_is_told_of_once() {
    let mut watch = Watch::default();
    let mut told = 0;
    for at in 0..5 {
        for card in [CARD, Uuid([8; 16])] {
            let look = Look { card, ..look(at, vec![seen(5, Some(A), Shim::Absent, 9)], 0) };
            told += watch.take(&look, Rules::default()).len();
        }
    }
    assert_eq!((told, watch.findings().count()), (1, 2));
    watch.forget(Some(CARD));
    assert_eq!(watch.findings().count(), 1);
    watch.dismiss(A);
    assert_eq!((watch.findings().count(), watch.found().count()), (0, 0));
}
