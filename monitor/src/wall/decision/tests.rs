use proptest::prelude::*;

use super::super::Reason;
use super::*;

const fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib)
}

fn wanted(limit: u64) -> Wanted {
    Wanted { limit: mib(limit), margin: mib(512), total: mib(80_000), ..Wanted::default() }
}

fn read(hard: Option<u64>, used: u64) -> Option<GroupMemory> {
    let limits = Limits { soft: Bytes::ZERO, hard: hard.map(mib) };
    Some(GroupMemory { limits, used: mib(used) })
}

#[test]
fn size_has_margins_for_processes_and_one_more_up_to_the_gpu() {
    for (limit, held, total, expected) in [
        (1000, &[][..], 80_000, 1512),
        (1000, &[Some(600)], 80_000, 2024),
        (1000, &[Some(600), Some(2000), Some(512)], 80_000, 2280),
        // Of no more than the process has; of all of it where that is not known.
        (1000, &[Some(256)], 80_000, 1768),
        (1000, &[Some(256), Some(0), None], 80_000, 2088),
        (79_800, &[], 80_000, 80_000),
        (100_000, &[], 80_000, 80_000),
        (1000, &[], 0, 1512),
        (1000, &[None; 1000], 80_000, 80_000),
    ] {
        let held: Vec<_> = held.iter().map(|held| held.map(mib)).collect();
        let kept = kept_margins(mib(512), &held);
        let wanted = Wanted { kept, total: mib(total), ..wanted(limit) };
        assert_eq!(wanted.size(), mib(expected), "{limit} {held:?} {total}");
    }
}

#[test]
fn margin_is_configured_or_that_of_the_largest_context_within_bounds() {
    for (configured, context, expected) in [
        (None, 0, 512),
        (None, 700, 700),
        // A container can make NVML show any size.
        (None, 30_000, 1024),
        (Some(0), 700, 0),
        (Some(2000), 700, 2000),
    ] {
        let margin = margin(configured.map(mib), mib(context));
        assert_eq!(margin, mib(expected), "{configured:?} {context}");
    }
}

#[test]
fn many_processes_get_at_most_a_third_more_than_one() {
    for context in [64, 256, 800] {
        let mut held: Vec<Option<Bytes>> = Vec::new();
        loop {
            let kept = kept_margins(mib(512), &held);
            let size = Wanted { kept, ..wanted(1000) }.size();
            let used: Bytes = held.iter().flatten().copied().sum();
            assert!(size.0 * 3 <= mib(1000 + 2 * 512).0 * 4, "{context} {size:?}");
            if used + mib(context) > size {
                break;
            }
            held.push(Some(mib(context)));
        }
    }
}

/// What is known, the limit and the use that were read; then the limit that is set, and what is
/// reported.
#[test]
fn lower_of_our_limit_and_anothers_applies() {
    let ours = |set| Known { set: Some(mib(set).0), ..Known::default() };
    let both = |set, other| Known { other: Some(mib(other).0), ..ours(set) };
    let setting = |set, to| Known { setting: Some(mib(to).0), ..ours(set) };
    let new = Known::default;
    let begun = Known { setting: Some(mib(1512).0), ..new() };
    for (known, hard, used, set, change) in [
        (new(), None, 0, Some(1512), None),
        (new(), Some(1512), 0, None, None),
        (new(), Some(1000), 0, None, Some(Change::Lower(mib(1000)))),
        (new(), Some(9000), 0, Some(1512), Some(Change::Higher(mib(9000)))),
        // The monitor was killed before it set the limit, or after.
        (begun.clone(), None, 0, Some(1512), None),
        (begun, Some(1512), 0, None, None),
        (setting(4000, 1512), Some(4000), 0, Some(1512), None),
        (ours(1512), Some(1512), 0, None, None),
        (ours(1512), None, 0, Some(1512), Some(Change::Removed)),
        (ours(1512), Some(700), 0, None, Some(Change::Lower(mib(700)))),
        (ours(1512), Some(2000), 0, Some(1512), Some(Change::Higher(mib(2000)))),
        // A resize, up and down; the use holds the limit up.
        (ours(1000), Some(1000), 0, Some(1512), None),
        (ours(4000), Some(4000), 0, Some(1512), None),
        (ours(4000), Some(4000), 3000, Some(3000), None),
        (ours(3000), Some(3000), 2000, Some(2000), None),
        (ours(2000), Some(2000), 1000, Some(1512), None),
        // Another program's lower limit stays, also after a resize of ours.
        (both(700, 700), Some(700), 0, None, None),
        (both(1000, 1200), Some(1000), 0, Some(1200), None),
        (both(1000, 9000), Some(1000), 0, Some(1512), None),
        (both(700, 700), Some(700), 900, None, None),
        (both(700, 700), None, 0, Some(1512), Some(Change::Removed)),
        // It sets the same one again after it was replaced.
        (both(1512, 2000), Some(2000), 0, Some(1512), Some(Change::Higher(mib(2000)))),
    ] {
        let mut after = known.clone();
        let (to, found) = decide(&wanted(1000), read(hard, used), &mut after);
        let context = format!("{known:?}, read {hard:?} MiB, {used} MiB used");
        assert_eq!((to.and_then(|to| to.hard), found), (set.map(mib), change), "{context}");
        assert_eq!(to.map_or(Bytes::ZERO, |to| to.soft), Bytes::ZERO, "{context}");
    }
}

#[test]
fn soft_limit_is_the_hard_one_under_mps() {
    let mut known = Known { set: Some(mib(1512).0), ..Known::default() };
    let mps = Wanted { has_mps: true, ..wanted(1000) };
    let (to, change) = decide(&mps, read(Some(1512), 0), &mut known);
    assert_eq!(to, Some(Limits { soft: mib(1512), hard: Some(mib(1512)) }));
    assert_eq!(change, None);
    // And 0 again without.
    let soft = GroupMemory { limits: to.unwrap(), used: Bytes::ZERO };
    let (to, _) = decide(&wanted(1000), Some(soft), &mut known);
    assert_eq!(to, Some(Limits { soft: Bytes::ZERO, hard: Some(mib(1512)) }));
}

/// The driver, which keeps its own list, answers as without a limit.
#[test]
fn limit_that_the_driver_forgets_is_not_another_programs_change() {
    for (is_listed, is_not_persistent, expected) in [
        (true, true, Change::Forgotten),
        (true, false, Change::Removed),
        (false, true, Change::Removed),
    ] {
        let mut known = Known { set: Some(mib(1512).0), is_listed, ..Known::default() };
        let wanted = Wanted { is_not_persistent, ..wanted(1000) };
        let (to, change) = decide(&wanted, None, &mut known);
        assert_eq!((to.and_then(|to| to.hard), change), (Some(mib(1512)), Some(expected)));
        assert_eq!(known.changes().is_some(), expected == Change::Removed);
    }
}

#[test]
fn excess_is_unexplained_where_all_processes_have_the_shim() {
    let (bound, loaded) = (Shim::Bound, Shim::Loaded);
    for (excess, allowance, shims, expected) in [
        (900, 512, &[bound, bound][..], true),
        (900, 512, &[bound, loaded], false),
        (900, 512, &[Shim::Unknown], false),
        (900, 512, &[], false),
        // Contexts and code that are not accounted yet.
        (512, 512, &[bound], false),
        (255, 0, &[bound], false),
        (256, 0, &[bound], true),
    ] {
        let found = is_unexplained(mib(excess), mib(allowance), shims.iter().copied());
        assert_eq!(found, expected, "{excess} {allowance} {shims:?}");
    }
}

#[test]
fn limit_that_the_driver_has_rounded_is_our_own() {
    let mut known = Known { setting: Some(mib(1512).0), ..Known::default() };
    let rounded = Bytes(mib(1512).0 - 4096);
    assert!(known.read_back(mib(1512), Some(rounded)));
    let memory = GroupMemory {
        limits: Limits { soft: Bytes::ZERO, hard: Some(rounded) },
        used: Bytes::ZERO,
    };
    assert_eq!(decide(&wanted(1000), Some(memory), &mut known), (None, None));
    assert!(!known.read_back(mib(1512), Some(mib(1500))));
    assert!(!known.read_back(mib(1512), Some(mib(1513))));
    assert!(!known.read_back(mib(1512), None));
}

#[test]
fn state_says_what_holds_the_limit() {
    let present =
        Present { hard: mib(1512), used: Some(mib(100)), groups: 1, ..Present::default() };
    let late = Present { is_late: true, ..present.clone() };
    let shared = Present { groups: 2, ..present.clone() };
    let of = |present: &Present, measured: Option<u64>, is_unshimmed| {
        let observed =
            Observed { measured: measured.map(mib), is_unshimmed, ..Observed::default() };
        state(&Wall::Set(present.clone()), observed).0
    };
    for (present, measured, is_unshimmed, expected) in [
        (&present, None, false, WallState::Driver),
        (&present, Some(900), false, WallState::Driver),
        (&present, Some(100), true, WallState::DriverExceptManaged),
        (&late, Some(900), false, WallState::Partial),
        (&late, Some(900), true, WallState::Partial),
        // What it held before is gone.
        (&late, Some(120), false, WallState::Driver),
        (&late, None, false, WallState::Driver),
        (&shared, Some(100), false, WallState::Partial),
    ] {
        assert_eq!(of(present, measured, is_unshimmed), expected, "{present:?} {measured:?}");
    }
    let observed = |measured| Observed { measured: Some(mib(measured)), ..Observed::default() };
    for (present, observed, expected) in [
        (&present, Observed { is_outside: true, ..observed(100) }, WallState::Partial),
        // A container whose registration was answered late is not known for one.
        (&present, Observed { uncharged_samples: 1, ..observed(900) }, WallState::Driver),
        (&present, Observed { uncharged_samples: 2, ..observed(900) }, WallState::Partial),
        (&present, Observed { uncharged_samples: 2, ..observed(100) }, WallState::Driver),
        // NVML has not been compared with its processes yet.
        (&late, Observed { is_new: true, ..observed(0) }, WallState::Partial),
        (&present, Observed { is_new: true, ..observed(0) }, WallState::Driver),
    ] {
        assert_eq!(state(&Wall::Set(present.clone()), observed).0, expected, "{observed:?}");
    }
    let (shim, reason) = state(&Wall::Absent(Reason::Mig), Observed::default());
    assert_eq!((shim, reason.unwrap().contains("MIG")), (WallState::Shim, true));
}

/// Another program's lower limit ends when it sets the size that is wanted.
#[test]
fn lower_limit_ends_with_the_wanted_size() {
    let wanted = wanted(1000);
    let read = |hard| {
        let limits = Limits { soft: Bytes::ZERO, hard: Some(hard) };
        Some(GroupMemory { limits, used: Bytes::ZERO })
    };
    let mut known = Known::default();
    assert!(known.read_back(wanted.size(), Some(wanted.size())));
    let (set, change) = decide(&wanted, read(mib(1)), &mut known);
    assert_eq!((set, change), (None, Some(Change::Lower(mib(1)))));
    let (set, change) = decide(&wanted, read(wanted.size()), &mut known);
    assert_eq!((set, change, known.set), (None, None, Some(wanted.size().0)));
}

/// What happens between two passes.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Another program sets a limit, in MiB and a page more, which is never the wanted size.
    Other(u64),
    /// It removes the limit.
    Remove,
    /// Our limit changes.
    Resize(u64),
    /// The use changes; the driver lets it grow to the limit only.
    Use(u64),
    /// The monitor is killed before it sets the limit, or after.
    Kill(bool),
    Pass,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (1_u64..5000).prop_map(Act::Other),
        Just(Act::Remove),
        (1_u64..5000).prop_map(Act::Resize),
        (0_u64..5000).prop_map(Act::Use),
        any::<bool>().prop_map(Act::Kill),
        Just(Act::Pass),
    ]
}

proptest! {
    #[test]
    fn after_each_pass_the_lower_limit_applies_and_only_others_acts_are_reported(
        acts in prop::collection::vec(act(), 1..40)
    ) {
        let mut known = Known::default();
        let mut hard: Option<Bytes> = None;
        // The last limit of the other program that counts.
        let mut other: Option<Bytes> = None;
        let (mut limit, mut used) = (1000, Bytes::ZERO);
        for act in acts {
            let mut acted = false;
            let mut killed = None;
            match act {
                Act::Other(to) => {
                    let to = mib(to) + Bytes(4096);
                    acted = hard != Some(to);
                    hard = Some(to);
                    if acted { other = hard; }
                }
                Act::Remove => {
                    acted = hard.is_some();
                    hard = None;
                    if acted { other = None; }
                }
                Act::Resize(to) => limit = to,
                Act::Use(to) => used = mib(to).min(hard.unwrap_or(mib(to)).max(used)),
                Act::Kill(before) => killed = Some(before),
                Act::Pass => {}
            }
            let wanted = wanted(limit);
            let memory = GroupMemory { limits: Limits { soft: Bytes::ZERO, hard }, used };
            let (set, change) = decide(&wanted, Some(memory), &mut known);
            prop_assert!(acted || change.is_none(), "{act:?} {change:?}");
            if let Some(to) = set {
                known.setting = to.hard.map(|hard| hard.0);
                if killed != Some(true) {
                    hard = to.hard;
                }
                if killed.is_none() {
                    prop_assert!(known.read_back(to.hard.unwrap(), hard));
                }
            }
            if killed.is_some() {
                continue;
            }
            let own = wanted.size().max(used);
            prop_assert_eq!(hard, Some(other.map_or(own, |other| other.min(own))));
        }
    }
}
