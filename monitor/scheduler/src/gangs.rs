//! Gang turns: a container that computes on several GPUs has its turns on all of them at the same
//! time.
//!
//! Its kernels may wait for each other across GPUs, not only those of NCCL. With turns at different
//! times each turn would be spent waiting, or end in a drain that does not end. So its turn on the
//! first GPU that it uses *summons* it on the others: there it is next as soon as it wants the GPU,
//! and pre-empts the holder like a member that returns. Only the first GPU summons, so two
//! containers on the same GPUs never pre-empt each other this way.
//!
//! Credit is unchanged: a container gets only its share of each GPU. Without credit on one of them
//! it runs beside the others there (`docs/internals/turns.md`, section 5), and every wait for it is
//! bounded. So gangs improve utilization; the absence of deadlocks does not depend on them.

use super::gpu::Gpu;
use super::step::TenantId;

/// Returns the container that is summoned on each of these GPUs.
#[must_use]
pub fn summons(gpus: &[&Gpu]) -> Vec<Option<TenantId>> {
    let mut summoned = vec![None; gpus.len()];
    for (at, gpu) in gpus.iter().enumerate() {
        let Some(holder) = gpu.holder() else { continue };
        if gpus[..at].iter().any(|first| first.is_used_by(holder)) {
            continue;
        }
        for (other, place) in gpus.iter().zip(&mut summoned).skip(at + 1) {
            if place.is_none() && other.is_used_by(holder) {
                *place = Some(holder);
            }
        }
    }
    summoned
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{busy, give_turn, idle, ms};
    use crate::policy::Policy;

    const FIRST: TenantId = TenantId(0);
    const SECOND: TenantId = TenantId(1);

    /// Makes a GPU on which two containers compute, and one of them has the turn.
    fn held_by(holder: usize) -> Gpu {
        let mut gpu = busy(Policy::Preemptive, &[1, 1]);
        give_turn(&mut gpu, holder, ms(6));
        gpu
    }

    #[test]
    fn holder_of_its_first_gpu_is_summoned_on_its_others() {
        let gpus = [held_by(0), held_by(1), held_by(1)];
        assert_eq!(summons(&gpus.each_ref()), [None, Some(FIRST), Some(FIRST)]);
    }

    #[test]
    fn container_that_does_not_compute_on_a_gpu_is_not_summoned_there() {
        let unused = idle(Policy::Preemptive, &[1, 1]);
        let gpus = [held_by(1), unused, held_by(0)];
        assert_eq!(summons(&gpus.each_ref()), [None, None, Some(SECOND)]);
    }

    #[test]
    fn summons_of_the_first_gpu_comes_before_a_later_one() {
        let mut first = held_by(0);
        // The second container has not computed here recently, so its first GPU is the next one.
        (first.queue[1].active, first.queue[1].waiting) = (Default::default(), false);
        let gpus = [first, held_by(1), held_by(1)];
        assert_eq!(summons(&gpus.each_ref()), [None, Some(FIRST), Some(FIRST)]);
    }

    #[test]
    fn gpu_without_a_turn_summons_no_container() {
        let gpus = [busy(Policy::Preemptive, &[1, 1]), held_by(0)];
        assert_eq!(summons(&gpus.each_ref()), [None, None]);
    }
}
