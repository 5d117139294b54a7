//! Errors that the GPUs have reported, with the time of each error's last report.

use std::collections::BTreeMap;

use cgpu_client::health::{GpuError, GpuHealth, Health};
use cgpu_inventory::health::{HealthCheck, Report};
use cgpu_shm::units::Nanos;

/// Most errors that are remembered for a GPU; some two hundred different ones exist.
const MAX_REMEMBERED: usize = 64;

/// Last time of each error, by GPU and number (XID).
#[derive(Clone, Debug, Default)]
pub(super) struct Reports {
    /// Whether a thread listens for errors.
    pub(super) listening: bool,
    last: BTreeMap<Option<u32>, BTreeMap<u64, Nanos>>,
}

impl Reports {
    pub(super) fn add(&mut self, report: Report, now: Nanos) {
        let errors = self.last.entry(report.gpu).or_default();
        errors.insert(report.xid, now);
        if errors.len() > MAX_REMEMBERED
            && let Some(oldest) = errors.iter().min_by_key(|(_, at)| **at).map(|(xid, _)| *xid)
        {
            errors.remove(&oldest);
        }
    }

    /// Returns the errors of a GPU, with those that NVML attributes to no GPU.
    fn of(&self, gpu: u32, now: Nanos) -> Vec<GpuError> {
        let mut errors: BTreeMap<u64, Nanos> = BTreeMap::new();
        for (xid, at) in [None, Some(gpu)].iter().filter_map(|gpu| self.last.get(gpu)).flatten() {
            let last = errors.entry(*xid).or_insert(*at);
            *last = (*last).max(*at);
        }
        let error = |(xid, at): (u64, Nanos)| GpuError { xid, ago_ms: (now - at).0 / 1_000_000 };
        errors.into_iter().map(error).collect()
    }

    /// Returns the health of all GPUs, as they answered at time `at`.
    pub(super) fn health(&self, health_checks: &[HealthCheck], at: Nanos, now: Nanos) -> Health {
        let gpu = |health_check: &HealthCheck| GpuHealth {
            index: health_check.index,
            answers: health_check.answers,
            needs_reset: health_check.needs_reset,
            errors: self.of(health_check.index, now),
        };
        Health {
            gpus: health_checks.iter().map(gpu).collect(),
            age_ms: (now - at).0 / 1_000_000,
            listening: self.listening,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Nanos {
        Nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn each_error_has_its_last_time_and_unattributed_ones_count_for_all() {
        let mut reports = Reports { listening: true, ..Reports::default() };
        reports.add(Report { gpu: Some(1), xid: 48 }, at(10));
        reports.add(Report { gpu: Some(1), xid: 31 }, at(11));
        reports.add(Report { gpu: Some(1), xid: 48 }, at(12));
        reports.add(Report { gpu: None, xid: 0 }, at(13));
        let health_check = |index| HealthCheck { index, answers: index == 1, needs_reset: false };
        let health = reports.health(&[health_check(0), health_check(1)], at(14), at(15));
        let error = |xid, ago_ms| GpuError { xid, ago_ms };
        assert_eq!(health.gpus[0].errors, [error(0, 2000)]);
        assert_eq!(health.gpus[1].errors, [error(0, 2000), error(31, 4000), error(48, 3000)]);
        assert!(health.listening && health.age_ms == 1000 && !health.gpus[0].answers);
        let line = serde_json::to_string(&health).unwrap();
        assert_eq!(serde_json::from_str::<Health>(&line).unwrap(), health, "{line}");
    }

    #[test]
    fn only_the_last_errors_are_remembered() {
        let mut reports = Reports::default();
        for xid in 0..1000 {
            reports.add(Report { gpu: Some(0), xid }, at(xid));
        }
        let errors = reports.of(0, at(1000));
        assert_eq!((errors.len(), errors[0].xid), (MAX_REMEMBERED, 1000 - MAX_REMEMBERED as u64));
    }
}
