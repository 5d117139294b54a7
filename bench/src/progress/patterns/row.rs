//! A pattern under one profile, and its figures.

use anyhow::{Context, Result};
use cgpu_scheduler::policy::Policy;

use super::super::bound::{max_min, sum};
use super::super::{Sharing, as_seconds};
use super::profile::Profile;
use super::runs::{Alone, Ran, run};

/// A pattern under one profile.
pub(super) struct Row<'a> {
    pub(super) alone: &'a Alone<'a>,
    bound: [f64; 2],
    ran: Vec<(&'static str, Sharing, Ran)>,
}

impl<'a> Row<'a> {
    pub(super) fn measure(
        alone: &'a Alone<'a>,
        profile: &Profile,
        sharings: &[(&'static str, Sharing)],
    ) -> Result<Self> {
        let ran = sharings.iter().map(|(name, sharing)| {
            let ran = run(alone.pattern, profile.model(), *sharing, true)
                .with_context(|| format!("{} under {name}", alone.pattern.name))?;
            Ok((*name, *sharing, ran))
        });
        let bound = max_min(alone.cycle(), profile.turns());
        Ok(Self { alone, bound, ran: ran.collect::<Result<_>>()? })
    }

    pub(super) fn under(&self, wanted: Sharing) -> &Ran {
        let found = self.ran.iter().find(|(_, sharing, _)| *sharing == wanted);
        found
            .map(|(.., ran)| ran)
            .unwrap_or_else(|| unreachable!("every row has policy 1 and native"))
    }

    /// Returns the runs under policy 1 and native slicing.
    pub(super) fn both(&self) -> [&Ran; 2] {
        [self.under(Some(Policy::Preemptive)), self.under(None)]
    }

    pub(super) fn sum_ratio(&self) -> f64 {
        let [ours, native] = self.both().map(|ran| sum(self.alone.progress(ran)));
        ours / native
    }

    pub(super) fn bound_ratio(&self) -> f64 {
        sum(self.alone.progress(self.both()[0])) / sum(self.bound)
    }

    pub(super) fn own_ratio(&self) -> f64 {
        let [ours, native] = self.both().map(|ran| self.alone.progress(ran)[0]);
        ours / native.min(self.alone.fair())
    }

    pub(super) fn latency_ratio(&self) -> f64 {
        let [ours, native] = self.both().map(|ran| ran.latency()[0]);
        ours / native
    }

    pub(super) fn line(&self) -> String {
        let sums = self.ran.iter().map(|(.., ran)| {
            let [own, other] = self.alone.progress(ran);
            format!("{own:5.2} +{other:5.2} ={:5.2} |", own + other)
        });
        let [own, other] = self.bound;
        let sums = sums.collect::<String>();
        let name = self.alone.pattern.name;
        format!("{name:<11} |{sums} bound {own:.2} + {other:.2} = {:.2}", own + other)
    }

    /// Describes the ratio of the tenants' reported time to the time that the GPU computed.
    pub(super) fn reports(&self) -> String {
        let under =
            self.ran.iter().filter(|(_, sharing, _)| sharing.is_some()).map(|(name, _, ran)| {
                let [own, other] = [ran.own, ran.other]
                    .map(|tenant| as_seconds(tenant.reported) / as_seconds(tenant.computed));
                format!("{name} {own:.2}, {other:.2}")
            });
        format!("reported over computed: {}", under.collect::<Vec<_>>().join("; "))
    }

    pub(super) fn latencies(&self) -> String {
        let [mean, p99] = self.alone.ran.latency();
        let under = self.ran.iter().map(|(name, _, ran)| {
            let [slower, slower_p99] = ran.latency();
            format!("{name} x{:.2} (p99 x{:.2})", slower / mean, slower_p99 / p99)
        });
        format!("latency alone {:.2} ms; {}", mean * 1e3, under.collect::<Vec<_>>().join(", "))
    }
}
