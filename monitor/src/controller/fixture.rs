//! A GPU with containers, for the unit tests of what the controller decides.

use cgpu_proto::units::Nanos;

use super::Card;
use super::policy::{Policy, Standing};
use super::refill::Candidate;
use super::tenants::{TenantId, Terms};
use super::tuning::Tuning;
use super::turns::{Phase, Turn};

/// When the tests begin.
pub(super) const NOW: Nanos = ms(10_000);

pub(super) const fn ms(time: u64) -> Nanos {
    Nanos::from_millis(time)
}

pub(super) const fn us(time: u64) -> Nanos {
    Nanos::from_micros(time)
}

/// A GPU with a container of each weight. Each has a process that has the GPU open. None has launched, waits or has credit.
pub(super) fn card(policy: Policy, weights: &[u32]) -> Card {
    let mut card = Card::new(Tuning::DEFAULT, policy);
    for (number, weight) in (0..).zip(weights) {
        card.admit(NOW, TenantId(number), Terms::weighing(*weight));
    }
    for tenant in &mut card.line {
        tenant.standing = Standing { created: true, open: true };
        tenant.balance = 0;
    }
    card.now = NOW;
    card
}

/// The same with fixed shares in percent. All containers compute and wait at their gates.
pub(super) fn fixed(percents: &[u32]) -> Card {
    let mut card = busy(Policy::Fixed { slots: 20 }, &vec![1; percents.len()]);
    for (tenant, percent) in card.line.iter_mut().zip(percents) {
        tenant.terms.percent = Some(*percent);
    }
    card
}

/// A GPU whose containers compute and wait at their gates.
pub(super) fn busy(policy: Policy, weights: &[u32]) -> Card {
    let mut card = card(policy, weights);
    for tenant in &mut card.line {
        tenant.active = NOW;
        tenant.waiting = true;
    }
    card
}

/// Gives a container a turn that began at [`NOW`]. It waits no longer.
pub(super) fn give_turn(card: &mut Card, number: usize, length: Nanos) {
    let tenant = &mut card.line[number];
    tenant.waiting = false;
    card.turn = Some(Turn {
        holder: tenant.id,
        word: 1 << 8 | 1,
        start: NOW,
        end: NOW + length,
        granted: length,
        handed: true,
        excluded: Nanos::ZERO,
        reported: Nanos::ZERO,
        charged: Nanos::ZERO,
        high: tenant.terms.high,
        phase: Phase::Running,
    });
}

/// Lets high priority gain all of its allowance.
pub(super) fn fill_allowance(card: &mut Card) {
    card.keep_allowance(NOW - ms(1000), NOW);
    assert!(card.may_preempt());
}

/// The containers as the choice of the next turn sees them.
pub(super) fn candidates(card: &Card) -> Vec<Candidate> {
    card.line.iter().map(|tenant| card.candidate(NOW, tenant)).collect()
}
