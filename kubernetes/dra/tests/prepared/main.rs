//! Prepared claims under kills, failures of power and full disks, against a model.

mod harness;
mod stores;

use std::collections::BTreeSet;
use std::path::Path;

use cgpu_kubernetes_dra::prepared::PreparedClaims;
use cgpu_kubernetes_dra::store::{Folders, Kind, Store};
use proptest::prelude::*;

use crate::harness::{Harness, Operation, cdi, claim, pool};
use crate::stores::{Fault, Faulty, MemoryStore};

fn operation() -> impl Strategy<Value = Operation> {
    let fault = prop_oneof![
        3 => Just(None),
        1 => (0..40_usize).prop_map(|step| Some(Fault::Kill(step))),
        1 => (0..40_usize).prop_map(|step| Some(Fault::Fail(step))),
    ];
    prop_oneof![
        5 => (0..6_usize, 0..4_usize, fault.clone())
            .prop_map(|(claim, variant, fault)| Operation::Prepare { claim, variant, fault }),
        4 => (0..6_usize, fault.clone())
            .prop_map(|(claim, fault)| Operation::Unprepare { claim, fault }),
        3 => (0..6_usize, 0..4_usize, fault)
            .prop_map(|(claim, size, fault)| Operation::Resize { claim, size, fault }),
        1 => any::<bool>().prop_map(|reboot| Operation::Restart { reboot }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_doubled_or_oversold(
        operations in proptest::collection::vec(operation(), 1..80),
        reboots in any::<bool>(),
    ) {
        let mut harness = Harness::new(reboots);
        for operation in operations {
            harness.run(&operation);
        }
    }
}

/// Kills a call at each of its steps, until one is not reached. After each, all is as before or as
/// after the call, and the call succeeds when it is repeated.
fn kill_at_every_step(
    operation: impl Fn(Option<Fault>) -> Operation,
    before: &[Operation],
) -> usize {
    for reboots in [false, true] {
        for step in 0.. {
            let mut harness = Harness::new(reboots);
            before.iter().for_each(|operation| harness.run(operation));
            let was_killed = harness.run_killed(&operation(Some(Fault::Kill(step))));
            harness.run(&operation(None));
            if !was_killed && reboots {
                return step;
            }
            if !was_killed {
                break;
            }
        }
    }
    unreachable!("the loop ends by returning")
}

#[test]
fn prepare_killed_at_any_step_is_repeated() {
    let other = Operation::Prepare { claim: 1, variant: 0, fault: None };
    let steps =
        kill_at_every_step(|fault| Operation::Prepare { claim: 0, variant: 3, fault }, &[other]);
    // A record, limits of two shares, a specification: each is staged and published in two steps.
    assert!(steps >= 16, "{steps}");
}

#[test]
fn unprepare_killed_at_any_step_is_repeated() {
    let before =
        [0, 1].map(|claim| Operation::Prepare { claim, variant: 3 * (1 - claim), fault: None });
    let steps = kill_at_every_step(|fault| Operation::Unprepare { claim: 0, fault }, &before);
    assert!(steps >= 8, "{steps}");
}

#[test]
fn resize_killed_at_any_step_is_repeated() {
    let before = [
        Operation::Prepare { claim: 0, variant: 3, fault: None },
        Operation::Resize { claim: 0, size: 1, fault: None },
    ];
    let steps = kill_at_every_step(|fault| Operation::Resize { claim: 0, size: 2, fault }, &before);
    // A record and limits of two shares.
    assert!(steps >= 12, "{steps}");
}

/// The record is removed, but the removal is not on the disk when the process is killed.
#[test]
fn removal_before_a_kill_is_durable_after_the_next_start() {
    let mut harness = Harness::new(false);
    harness.run(&Operation::Prepare { claim: 0, variant: 2, fault: None });
    assert!(harness.run_killed(&Operation::Unprepare { claim: 0, fault: Some(Fault::Kill(5)) }));
    harness.run(&Operation::Restart { reboot: true });
}

fn folders(root: &Path) -> Folders {
    Folders::lock(&root.join("claims"), &root.join("shares"), &root.join("cdi")).unwrap()
}

/// The files of a node, by folder.
fn files(root: &Path) -> BTreeSet<String> {
    let names = |folder: &str| {
        let entries = std::fs::read_dir(root.join(folder)).unwrap();
        let name = move |name: std::ffi::OsString| format!("{folder}/{}", name.to_str().unwrap());
        entries.map(|entry| entry.unwrap().file_name()).map(name).collect::<Vec<_>>()
    };
    ["claims", "shares", "cdi"].into_iter().flat_map(names).collect()
}

#[test]
fn files_of_a_killed_prepare_are_completed_or_removed() {
    let (one, all) = (claim(0, 3), pool());
    let complete: BTreeSet<String> =
        ["claims/.lock", "claims/u0.json", "shares/u0-0", "shares/u0-1", "cdi/cgpu-dra-u0.json"]
            .map(str::to_owned)
            .into();
    let none: BTreeSet<String> = ["claims/.lock".to_owned()].into();
    for unprepares in [false, true] {
        for step in 0.. {
            let root = tempfile::tempdir().unwrap();
            if unprepares {
                let opened = PreparedClaims::open(folders(root.path()), cdi()).unwrap();
                opened.prepare(&one, &all, &[]).unwrap();
                assert_eq!(files(root.path()), complete);
            }
            let faulty = Faulty::new(folders(root.path()));
            let opened = PreparedClaims::open(faulty, cdi()).unwrap();
            opened.store().set(Some(Fault::Kill(step)));
            let done =
                if unprepares { opened.unprepare("u0") } else { opened.prepare(&one, &all, &[]) };
            let was_killed = opened.store().was_hit();
            assert_eq!(done.is_err(), was_killed);
            drop(opened);
            let opened = PreparedClaims::open(folders(root.path()), cdi()).unwrap();
            let found = files(root.path());
            assert!(found == complete || found == none, "step {step}: {found:?}");
            if unprepares {
                opened.unprepare("u0").unwrap();
            } else {
                opened.prepare(&one, &all, &[]).unwrap();
            }
            assert_eq!(
                files(root.path()),
                if unprepares { none.clone() } else { complete.clone() }
            );
            if !was_killed {
                assert!(step > 4, "{step}");
                break;
            }
        }
    }
}

#[test]
fn prepared_claim_is_prepared_again_without_a_write() {
    let root = tempfile::tempdir().unwrap();
    let opened = PreparedClaims::open(folders(root.path()), cdi()).unwrap();
    let (one, other, all) = (claim(0, 3), claim(1, 0), pool());
    opened.prepare(&one, &all, &[]).unwrap();
    // No file can be written.
    for path in ["claims/u0.new", "claims/u1.new", "shares/u0-0.new", "cdi/cgpu-dra-u0.new"] {
        std::fs::create_dir(root.path().join(path)).unwrap();
    }
    opened.prepare(&one, &all, &[]).unwrap();
    assert!(opened.prepare(&other, &all, &[]).is_err());
    assert_eq!(opened.ledger().claims().count(), 1);
    opened.unprepare("u0").unwrap();
}

#[test]
fn record_of_another_release_stops_the_start() {
    let root = tempfile::tempdir().unwrap();
    let opened = PreparedClaims::open(folders(root.path()), cdi()).unwrap();
    opened.prepare(&claim(0, 0), &pool(), &[]).unwrap();
    drop(opened);
    let path = root.path().join("claims/u0.json");
    let text = std::fs::read_to_string(&path).unwrap();
    for (text, part) in [
        (text.replacen("\"version\":1", "\"version\":9", 1), "record u0: it has version 9"),
        (String::new(), "record u0: it is invalid"),
    ] {
        std::fs::write(&path, text).unwrap();
        let refusal = PreparedClaims::open(folders(root.path()), cdi()).err().unwrap().to_string();
        assert!(refusal.contains(part), "{refusal}");
    }
    // What was prepared is as it was.
    assert!(root.path().join("shares/u0-0").exists());
}

/// The remedy for a record that is not understood is to remove it.
#[test]
fn files_without_a_record_are_removed_by_a_start() {
    let root = tempfile::tempdir().unwrap();
    let opened = PreparedClaims::open(folders(root.path()), cdi()).unwrap();
    for at in [0, 1] {
        opened.prepare(&claim(at, 0), &pool(), &[]).unwrap();
    }
    drop(opened);
    std::fs::remove_file(root.path().join("claims/u0.json")).unwrap();
    drop(PreparedClaims::open(folders(root.path()), cdi()).unwrap());
    let left = ["claims/.lock", "claims/u1.json", "shares/u1-0", "cdi/cgpu-dra-u1.json"];
    assert_eq!(files(root.path()), left.map(str::to_owned).into());
}

/// 64 pods start at once.
#[test]
fn concurrent_claims_fill_a_gpu_once() {
    let root = tempfile::tempdir().unwrap();
    let opened = PreparedClaims::open(folders(root.path()), cdi()).unwrap();
    let all = pool();
    let done: Vec<bool> = std::thread::scope(|scope| {
        let (opened, all) = (&opened, &all);
        let call = |at| scope.spawn(move || opened.prepare(&claim(at, 0), all, &[]).is_ok());
        let calls: Vec<_> = (0..64).map(call).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    // Each takes 4 GiB of 15104 MiB.
    assert_eq!(done.iter().filter(|done| **done).count(), 3);
    assert_eq!(opened.store().names(Kind::Record).unwrap().len(), 3);
    assert_eq!(files(root.path()).len(), 1 + 3 * 3);
    for at in 0..64 {
        opened.unprepare(&format!("u{at}")).unwrap();
    }
    assert_eq!(files(root.path()).len(), 1);
}

#[test]
fn thousand_cycles_leave_nothing() {
    let store = MemoryStore::default();
    let opened = PreparedClaims::open(store.clone(), cdi()).unwrap();
    for at in 0..1000 {
        opened.prepare(&claim(at, 3), &pool(), &[]).unwrap();
        opened.unprepare(&format!("u{at}")).unwrap();
    }
    assert_eq!(opened.ledger().claims().count(), 0);
    assert_eq!(store.count(), 0);
}
