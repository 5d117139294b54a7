//! The share of the GPU's time that a container computed within the last second, for people.
//!
//! Turns are what can be measured: while one container has the GPU, what its processes report is
//! what it computed. While work of several runs at the same time, the GPU gives each a slice now
//! and then, and the times between their events include those of the others. Then what they were
//! charged is all that is known: an estimate. While gates are open nothing is known.

use cgpu_proto::notes::Measured;
use cgpu_proto::units::Nanos;

use super::Card;
use super::last_second::LastSecond;
use super::policy::WHOLE;
use super::refill::part;
use super::tenants::Tenant;
use super::turns::Phase;
use crate::message::Sharing;

/// Work beside others' turns for less than this part of the last second is neglected.
const NEGLIGIBLE: u64 = 100;

impl Card {
    /// Takes down how the GPU was shared in the time since the last step.
    pub(super) fn note_sharing(&mut self, from: Nanos, to: Nanos) {
        if self.sharing == Sharing::Contended {
            self.metered.add(to, to - from);
        }
    }

    /// What a container has computed within the last second; none while that is not metered.
    pub(super) fn measured(&self, now: Nanos, tenant: &Tenant) -> Option<Measured> {
        let time = now - LastSecond::since(now);
        let contended = self.sharing == Sharing::Contended;
        let unseen = if contended { now - self.now } else { Nanos::ZERO };
        let negligible = Nanos(time.0 / NEGLIGIBLE);
        if time == Nanos::ZERO || self.metered.sum(now) + unseen + negligible < time {
            return None;
        }
        let running = self.turn.as_ref().filter(|turn| {
            turn.holder == tenant.id && turn.start < now && !matches!(turn.phase, Phase::Vacant { .. })
        });
        let exact = self.beside.sum(now) + tenant.books.unclear.sum(now) <= negligible;
        let used = if exact {
            // It goes on as it uses to since it was looked at.
            let since = running.map_or(now, |turn| turn.start.max(tenant.looked));
            tenant.books.reports.sum(now) + Nanos((now - since).0 * tenant.duty() / 1000)
        } else {
            tenant.books.charges.sum(now) + running.map_or(Nanos::ZERO, |turn| turn.held(now) - turn.charged)
        };
        let share = u32::try_from(part(WHOLE, used.min(time).0, time.0).0).unwrap_or(u32::MAX);
        Some(Measured { share, exact })
    }
}
