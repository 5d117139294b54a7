//! The history that a screen can show.

use std::collections::{BTreeMap, VecDeque};

use cgpu_client::device_id::DeviceId;
use cgpu_client::message::Status;

/// Maximum number of samples: the columns of the widest screen.
const MAX_SAMPLES: usize = 512;

/// Values of successive samples, from 0 to 1; `None` where the value was unknown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series(VecDeque<Option<f64>>);

impl Series {
    fn push(&mut self, value: Option<f64>) {
        if self.0.len() == MAX_SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back(value.map(|value| value.clamp(0.0, 1.0)));
    }

    /// Returns the last `count` values, oldest first.
    pub(crate) fn last(&self, count: usize) -> impl Iterator<Item = Option<f64>> {
        self.0.iter().skip(self.0.len().saturating_sub(count)).copied()
    }
}

/// Time and memory of one GPU, or of one container on one GPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Track {
    pub(crate) time: Series,
    pub(crate) memory: Series,
}

/// A container on a GPU.
pub(crate) type RowKey = (String, DeviceId);

#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    gpus: BTreeMap<DeviceId, Track>,
    containers: BTreeMap<RowKey, Track>,
}

impl History {
    /// Adds a sample, and drops GPUs and containers that are gone.
    pub(crate) fn push(&mut self, status: &Status) {
        let mut gpus = std::mem::take(&mut self.gpus);
        for gpu in &status.gpus {
            let mut track = gpus.remove(&gpu.index).unwrap_or_default();
            track.time.push(gpu.utilization.map(|percent| f64::from(percent) / 100.0));
            track.memory.push(gpu.memory_used.and_then(|used| part(used, gpu.memory_total)));
            self.gpus.insert(gpu.index, track);
        }
        let mut containers = std::mem::take(&mut self.containers);
        for container in &status.containers {
            for share in &container.gpus {
                let key = (container.id.clone(), share.gpu);
                let mut track = containers.remove(&key).unwrap_or_default();
                let whole = status.gpus.iter().find(|gpu| gpu.index == share.gpu);
                let whole = whole.map_or(0, |gpu| gpu.memory_total);
                let used = share.used.saturating_add(share.implicit).saturating_add(share.orphan);
                track.time.push(share.share_second.map(|percent| percent / 100.0));
                track.memory.push(part(used, if share.limit == 0 { whole } else { share.limit }));
                self.containers.insert(key, track);
            }
        }
    }

    pub(crate) fn gpu(&self, index: DeviceId) -> Option<&Track> {
        self.gpus.get(&index)
    }

    pub(crate) fn container(&self, key: &RowKey) -> Option<&Track> {
        self.containers.get(key)
    }
}

/// Returns `part` as a fraction of `whole`.
#[allow(clippy::cast_precision_loss)] // a bar
fn part(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cgpu_client::message::{ContainerStatus, ShareStatus};

    fn status(id: &str, percent: Option<f64>) -> Status {
        let share =
            ShareStatus { limit: 4, used: 1, share_second: percent, ..ShareStatus::default() };
        let container =
            ContainerStatus { id: id.into(), gpus: vec![share], ..ContainerStatus::default() };
        Status { containers: vec![container], ..Status::default() }
    }

    #[test]
    fn track_is_dropped_with_its_container() {
        let mut history = History::default();
        history.push(&status("a", Some(50.0)));
        history.push(&status("a", None));
        let track = history.container(&("a".into(), 0.into())).unwrap();
        assert_eq!(track.time.last(9).collect::<Vec<_>>(), [Some(0.5), None]);
        assert_eq!(track.memory.last(1).collect::<Vec<_>>(), [Some(0.25)]);
        history.push(&status("b", None));
        assert!(history.container(&("a".into(), 0.into())).is_none());
    }

    #[test]
    fn series_keeps_only_the_latest_samples() {
        let mut series = Series::default();
        (0..MAX_SAMPLES + 9).for_each(|_| series.push(Some(7.0)));
        assert_eq!(series.last(usize::MAX).count(), MAX_SAMPLES);
        assert_eq!(series.last(1).next(), Some(Some(1.0)));
    }
}
