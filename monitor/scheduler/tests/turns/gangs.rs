//! Containers on two GPUs: their turns on both come at the same time, and cost no container its
//! share.

use cgpu_scheduler::TenantId;
use cgpu_scheduler::gangs;
use cgpu_scheduler::tuning::Tuning;
use cgpu_shm::units::Nanos;

use crate::harness::{Harness, SECOND, share_error, utilisation};
use crate::process::{Load, MS, US};
use crate::{FAIR, SATURATING};

const IDLE: &[Load] = &[Load::saturating(60).during(u64::MAX - 1, u64::MAX)];

/// Two GPUs with the same containers. A container that is idle on one of them has no process there
/// that launches.
struct Pair {
    gpus: [Harness; 2],
    gangs: bool,
}

impl Pair {
    fn new(first: &[&[Load]], second: &[&[Load]], gangs: bool) -> Self {
        // Slices differ, or the GPUs would stay in step by themselves.
        let gpu = |loads: &[&'static [Load]], base, seed| -> Harness {
            let tenants: Vec<(u32, &[Load])> = loads.iter().map(|load| (1, *load)).collect();
            Harness::with(
                FAIR,
                &tenants,
                1024 * US,
                100 * US,
                Tuning::DEFAULT.with_base(base),
                seed,
            )
        };
        // The loads are constants.
        let stay = |loads: &[&[Load]]| -> Vec<&'static [Load]> {
            loads.iter().map(|load| if load[0].from == 0 { SATURATING } else { IDLE }).collect()
        };
        let (six, five) = (Nanos::from_millis(6), Nanos::from_millis(5));
        Self { gpus: [gpu(&stay(first), six, 1), gpu(&stay(second), five, 2)], gangs }
    }

    /// Returns how much of the time, in percent, one of these containers held both GPUs.
    fn together(&mut self, time: u64, holders_of: &[u64]) -> f64 {
        const STEP: u64 = 50 * US;
        let mut together = 0;
        for _ in 0..time / STEP {
            self.gpus.iter_mut().for_each(|gpu| gpu.run_for(STEP));
            let [first, second] = &self.gpus;
            let holders = [first.scheduler.holder(), second.scheduler.holder()];
            let summons = gangs::summons(&[&first.scheduler, &second.scheduler]);
            together += u64::from(
                holders[0] == holders[1]
                    && holders[0].is_some_and(|TenantId(id)| holders_of.contains(&id)),
            );
            if self.gangs {
                for (gpu, summoned) in self.gpus.iter_mut().zip(summons) {
                    gpu.summon(summoned);
                }
            }
        }
        together as f64 * 100.0 * STEP as f64 / time as f64
    }
}

#[test]
fn turns_on_two_gpus_come_at_the_same_time() {
    for (gangs, least, most) in [(false, 0.0, 80.0), (true, 88.0, 100.0)] {
        let mut pair = Pair::new(&[SATURATING; 2], &[SATURATING; 2], gangs);
        // They start at different times, and would stay so.
        pair.gpus[1].run_for(3 * MS);
        pair.gpus[0].run_for(3 * MS);
        pair.together(SECOND, &[0, 1]);
        let before = pair.gpus.iter().map(Harness::ran).collect::<Vec<_>>();
        let together = pair.together(10 * SECOND, &[0, 1]);
        println!("gangs {gangs}: together {together:.1} %");
        assert!((least..=most).contains(&together), "gangs {gangs}: {together:.1} %");
        for (gpu, before) in pair.gpus.iter().zip(before) {
            let ran: Vec<u64> =
                gpu.ran().iter().zip(before).map(|(after, before)| after - before).collect();
            assert!(share_error(&ran, &[1, 1]) <= 1.0, "{ran:?}");
            assert!(utilisation(&ran, 10 * SECOND) >= 96.0, "{ran:?}");
        }
    }
}

/// Two containers have both GPUs, a third only the second one: it keeps its share, and theirs there
/// is a third as well.
#[test]
fn container_of_one_gpu_loses_nothing_to_gangs() {
    let pair = |gangs| {
        let mut pair = Pair::new(&[SATURATING, SATURATING, IDLE], &[SATURATING; 3], gangs);
        pair.together(SECOND, &[0, 1]);
        pair
    };
    let apart = pair(false).together(10 * SECOND, &[0, 1]);
    let mut pair = pair(true);
    let before = pair.gpus.each_ref().map(Harness::ran);
    let together = pair.together(10 * SECOND, &[0, 1]);
    let ran = |number: usize| -> Vec<u64> {
        let after = pair.gpus[number].ran();
        after.iter().zip(&before[number]).map(|(after, before)| after - before).collect()
    };
    let (first, second) = (ran(0), ran(1));
    println!("together {together:.1} % (apart {apart:.1} %), first {first:?}, second {second:?}");
    assert!(together > apart + 5.0, "together {together:.1} %, without gangs {apart:.1} %");
    assert!(share_error(&first[..2], &[1, 1]) <= 1.0, "{first:?}");
    assert!(share_error(&second, &[1, 1, 1]) <= 3.0, "{second:?}");
    assert!(utilisation(&second, 10 * SECOND) >= 95.0, "{second:?}");
}

#[test]
fn only_the_first_gpu_of_a_container_summons() {
    let mut pair = Pair::new(&[SATURATING; 2], &[SATURATING; 2], true);
    for _ in 0..2000 {
        pair.together(MS, &[]);
        let [first, second] = &pair.gpus;
        let summons = gangs::summons(&[&first.scheduler, &second.scheduler]);
        assert_eq!(summons[0], None);
        assert_eq!(summons[1], first.scheduler.holder());
    }
}
