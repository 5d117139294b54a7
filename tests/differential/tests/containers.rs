//! A short form of the ten-minute run of `cargo xtask soak`.

use std::time::Duration;

use cgpu_differential::actor::built;
use cgpu_differential::containers::{AllocationKind, Filled, Filling, Racing, fill, race};
use cgpu_differential::model::MIB;
use cgpu_differential::run::{Files, folder};

/// Limit of each container. Six of them are nearly all that the GPU has.
const LIMIT_MIB: u64 = 3072;

fn files(folder: &std::path::Path) -> Files {
    let (dist, _) =
        built(&std::env::current_exe().expect("this program's file")).expect("built files");
    Files { dist, actor: env!("CARGO_BIN_EXE_cgpu-actor").into(), folder: folder.to_owned() }
}

#[test]
fn race_for_the_last_memory_stays_within_the_limit() {
    let folder = folder().expect("a folder");
    let plan = Racing { seed: 1, operations: 20_000, limit_mib: LIMIT_MIB, kills: 5 };
    let raced = race(&plan, &files(folder.path())).unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!((raced.overshoot, raced.leak), (0, 0), "{raced:?}");
    // The container was full repeatedly, and samples were taken meanwhile.
    assert!(
        raced.refused > 0 && raced.samples > 10 && raced.peak > LIMIT_MIB * MIB * 3 / 4,
        "{raced:?}"
    );
}

/// Fills one container for each kind of allocation, until all have been full repeatedly: mostly
/// within `seconds`.
fn filled(kinds: &[AllocationKind], seconds: u64) {
    // A busy machine takes longer.
    for seconds in [seconds, 60, 240] {
        let folder = folder().expect("a folder");
        let files = files(folder.path());
        let time = Duration::from_secs(seconds);
        let plan = Filling {
            kinds: kinds.to_vec(),
            seed: 1,
            time,
            limit_mib: LIMIT_MIB,
            kill_once_in: 300,
        };
        let filled = fill(&plan, &files).unwrap_or_else(|error| panic!("{error:#}"));
        // The peak is lower where neighbours make a context or a module look larger than it is.
        let full =
            |one: &Filled| one.refused > 0 && one.granted > 50 && one.peak > LIMIT_MIB * MIB / 2;
        eprintln!("{filled:#?}");
        if filled.iter().all(full) {
            return;
        }
    }
    panic!("not all were full, again and again");
}

#[test]
fn requested_memory_of_seven_kinds_stays_within_each_limit() {
    use AllocationKind::{Arrays, Exported, Linear, Mixed, Physical, Pitched, Pooled};
    filled(&[Linear, Pitched, Physical, Pooled, Arrays, Exported, Mixed], 12);
}

#[test]
fn implicit_and_held_memory_stays_within_each_limit() {
    use AllocationKind::{
        Contexts, Endpoints, External, Graphs, Green, Libraries, Modules, Multicast, Sparse,
    };
    let kinds =
        [Graphs, Modules, Libraries, Contexts, Green, Multicast, Endpoints, Sparse, External];
    assert_eq!(kinds.len() + 7, AllocationKind::ALL.len());
    // Binding memory to objects is slow: the simulator copies it to where others could have it.
    filled(&kinds, 25);
}
