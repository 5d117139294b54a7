//! Validates what a container reports.
//!
//! A container can write anything into its region. Possible values are accepted; an impossible one
//! counts as invalid and is read as 0 (`docs/internals/turns.md`, section 7).

use cgpu_shm::units::{Nanos, SlotIndex};

/// The report of a live process for one GPU, as read from its cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantReport {
    /// Its slot.
    pub slot: SlotIndex,
    /// Generation of the slot's owner.
    pub generation: u64,
    /// The turn word that it applied last.
    pub turn: u64,
    /// Number of threads at the gate.
    pub waiting: u64,
    /// Last launch on the slow path, or arrival at the gate.
    pub active: u64,
    /// Measured GPU time.
    pub busy: u64,
    /// Estimated work in flight.
    pub inflight: u64,
    /// When that is predicted to have run.
    pub ends: u64,
    /// GPU time used in the turn `turn`.
    pub spent: u64,
    /// End of its last measured work.
    pub last: u64,
}

/// The accepted values of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub(super) slot: SlotIndex,
    generation: u64,
    busy: u64,
    read: Nanos,
    pub(super) turn: u64,
    pub(super) waiting: bool,
    pub(super) active: Nanos,
    /// Zero when nothing is in flight.
    pub(super) ends: Nanos,
    pub(super) spent: Nanos,
    pub(super) last: Nanos,
    pub(super) fingerprint: u64,
}

/// Longest accepted work in flight, and growth beyond the time that passed: an hour.
const MAX_INFLIGHT: u64 = 3_600_000_000_000;
const MAX_THREADS: u64 = 65_536;
/// Clocks are the same, but a field may be read slightly after the time.
const CLOCK_SKEW: u64 = 1_000_000;

/// Returns the accepted process, the growth of its GPU time, and the number of invalid values.
pub(super) fn validate(
    report: &TenantReport,
    before: Option<&Process>,
    now: Nanos,
) -> (Process, Nanos, u64) {
    let mut invalid = 0;
    let mut check = |value: u64, possible: bool| {
        if possible {
            value
        } else {
            invalid += 1;
            0
        }
    };
    let soon = now.0.saturating_add(CLOCK_SKEW);
    let active = check(report.active, report.active <= soon);
    let last = check(report.last, report.last <= soon);
    let waiting = check(report.waiting, report.waiting <= MAX_THREADS);
    let inflight = check(report.inflight, report.inflight <= MAX_INFLIGHT);
    let ends =
        check(report.ends, inflight == 0 || report.ends <= now.0.saturating_add(MAX_INFLIGHT));
    let spent = check(report.spent, report.spent <= MAX_INFLIGHT.saturating_mul(10));
    let known = before
        .filter(|before| before.slot == report.slot && before.generation == report.generation);
    let growth = match known {
        // Time from before the first observation of a process does not count.
        None => 0,
        Some(before) => {
            let growth = report.busy.wrapping_sub(before.busy);
            let most = now.0.saturating_sub(before.read.0).saturating_add(MAX_INFLIGHT);
            check(growth, growth <= most)
        }
    };
    let fingerprint = [
        report.turn,
        report.waiting,
        report.active,
        report.busy,
        report.inflight,
        report.ends,
        report.spent,
        report.last,
    ]
    .iter()
    .fold(report.generation, |fingerprint, &word| {
        fingerprint.rotate_left(7).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ word
    });
    let process = Process {
        slot: report.slot,
        generation: report.generation,
        busy: report.busy,
        read: now,
        turn: report.turn,
        waiting: waiting > 0,
        active: Nanos(active.min(now.0)),
        ends: if inflight == 0 { Nanos::ZERO } else { Nanos(ends) },
        spent: Nanos(spent),
        last: Nanos(last.min(now.0)),
        fingerprint,
    };
    (process, Nanos(growth), invalid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Nanos = Nanos::from_millis(100_000);

    fn valid_report() -> TenantReport {
        TenantReport {
            slot: SlotIndex(3),
            generation: 1,
            turn: 0x101,
            waiting: 1,
            active: NOW.0 - 1000,
            busy: 5_000_000,
            inflight: 400_000,
            ends: NOW.0 + 300_000,
            spent: 4_000_000,
            last: NOW.0 - 2000,
        }
    }

    #[test]
    fn possible_report_is_accepted() {
        let (first, growth, invalid) = validate(&valid_report(), None, NOW);
        assert_eq!((growth, invalid), (Nanos::ZERO, 0));
        let later = TenantReport { busy: 5_500_000, ..valid_report() };
        let (process, growth, invalid) =
            validate(&later, Some(&first), NOW + Nanos::from_millis(1));
        assert_eq!((growth, invalid), (Nanos(500_000), 0));
        assert!(process.waiting);
        assert_ne!(process.fingerprint, first.fingerprint);
    }

    #[test]
    fn impossible_value_is_invalid() {
        let (before, ..) = validate(&valid_report(), None, NOW);
        for (name, report) in [
            ("time runs backwards", TenantReport { busy: 4_999_999, ..valid_report() }),
            ("more time than there was", TenantReport { busy: u64::MAX / 2, ..valid_report() }),
            (
                "a launch in the future",
                TenantReport { active: NOW.0 + 2_000_000, ..valid_report() },
            ),
            ("an end in the future", TenantReport { last: u64::MAX, ..valid_report() }),
            (
                "two hours in flight",
                TenantReport { inflight: 7_200_000_000_000, ends: NOW.0, ..valid_report() },
            ),
            ("two hours ahead", TenantReport { ends: NOW.0 + 7_200_000_000_000, ..valid_report() }),
            ("a million threads", TenantReport { waiting: 1_000_000, ..valid_report() }),
        ] {
            let (_, growth, invalid) = validate(&report, Some(&before), NOW);
            assert_eq!((growth, invalid), (Nanos::ZERO, 1), "{name}");
        }
    }

    #[test]
    fn another_user_of_the_slot_starts_anew() {
        let (before, ..) = validate(&valid_report(), None, NOW);
        let (_, growth, invalid) = validate(
            &TenantReport { generation: 2, busy: 7, ..valid_report() },
            Some(&before),
            NOW,
        );
        assert_eq!((growth, invalid), (Nanos::ZERO, 0));
    }

    proptest! {
        #[test]
        fn accepted_report_is_possible(numbers in any::<[u64; 9]>(), now in 0..u64::MAX) {
            let [turn, waiting, active, busy, inflight, ends, spent, last, generation] = numbers;
            let report = TenantReport {
                slot: SlotIndex(0), generation, turn, waiting, active, busy, inflight, ends, spent,
                last,
            };
            let now = Nanos(now);
            let (process, ..) = validate(&report, None, now);
            prop_assert!(process.active <= now && process.last <= now);
            prop_assert!(process.ends <= now + Nanos(MAX_INFLIGHT));
        }
    }
}
