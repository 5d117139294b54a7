//! What the web page shows of the last hour: a sample of each GPU and of each container's share
//! every [`INTERVAL`]. Memory is bounded, however many containers come and go.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use cgpu_client::device_id::DeviceId;
use cgpu_client::message::{ContainerStatus, GpuStatus, ShareStatus, Status};
use serde::Serialize;

/// Interval between two samples.
pub const INTERVAL: Duration = Duration::from_secs(10);
/// Samples that are kept: an hour.
pub const MAX_SAMPLES: usize = 360;
/// Shares of which samples are kept; a container has one for each of its GPUs.
pub const MAX_SHARES: usize = 512;
/// GPUs of which samples are kept. Containers can name GPUs that do not exist.
pub const MAX_GPUS: usize = 64;
/// Longest name that is kept, in characters.
const MAX_NAME: usize = 128;

/// Samples of the last hour.
#[derive(Debug, Default)]
pub struct History {
    /// Times of the samples, in seconds since 1970.
    times: VecDeque<u64>,
    gpus: BTreeMap<String, Series<DeviceId, GpuSample>>,
    /// By the container's id and the GPU's UUID.
    shares: BTreeMap<(String, String), Series<ShareLabels, ShareSample>>,
    /// Samples that were not kept for lack of room.
    dropped: u64,
}

/// The samples of one thing; the last belongs to the last time.
#[derive(Debug)]
struct Series<L, S> {
    labels: L,
    /// None: the thing was not there.
    samples: VecDeque<Option<S>>,
}

/// How a share is called.
#[derive(Debug)]
struct ShareLabels {
    name: String,
    gpu: DeviceId,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct GpuSample {
    memory_used: Option<u64>,
    power_mw: Option<u32>,
    utilization: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct ShareSample {
    memory_used: u64,
    /// In percent.
    share_second: Option<f32>,
    utilization: Option<u8>,
}

impl<L, S: Copy> Series<L, S> {
    fn new(labels: L) -> Self {
        Self { labels, samples: VecDeque::with_capacity(MAX_SAMPLES) }
    }

    fn push(&mut self, sample: Option<S>) {
        if self.samples.len() == MAX_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    fn is_empty(&self) -> bool {
        self.samples.iter().all(Option::is_none)
    }

    /// Returns how many samples ago the thing was there last.
    fn age(&self) -> usize {
        self.samples.iter().rev().take_while(|sample| sample.is_none()).count()
    }

    /// Returns a figure at each of so many times.
    fn column<T>(&self, times: usize, of: impl Fn(S) -> Option<T>) -> Vec<Option<T>> {
        let before = times.saturating_sub(self.samples.len());
        let samples = self.samples.iter().map(|sample| sample.and_then(&of));
        std::iter::repeat_with(|| None).take(before).chain(samples).collect()
    }
}

/// Adds a sample to each series, and makes new ones while there is room. One that has not been
/// there for longest gives way. Returns how many samples found no room.
fn add<K: Ord + Clone, L, S: Copy>(
    all: &mut BTreeMap<K, Series<L, S>>,
    mut samples: BTreeMap<K, (L, S)>,
    room: usize,
) -> u64 {
    for (key, series) in all.iter_mut() {
        let sample = samples.remove(key).map(|(labels, sample)| {
            series.labels = labels;
            sample
        });
        series.push(sample);
    }
    all.retain(|_, series| !series.is_empty());
    let mut dropped = 0;
    for (key, (labels, sample)) in samples {
        if all.len() >= room {
            let oldest = all.iter().max_by_key(|(_, series)| series.age());
            match oldest.filter(|(_, series)| series.age() > 0).map(|(key, _)| key.clone()) {
                Some(oldest) => drop(all.remove(&oldest)),
                None => {
                    dropped += 1;
                    continue;
                }
            }
        }
        let mut series = Series::new(labels);
        series.push(Some(sample));
        all.insert(key, series);
    }
    dropped
}

impl History {
    /// Adds a sample that was taken at this time, in seconds since 1970.
    pub fn add(&mut self, time: u64, status: &Status) {
        if self.times.len() == MAX_SAMPLES {
            self.times.pop_front();
        }
        self.times.push_back(time);
        let gpus = status.gpus.iter();
        let gpus = gpus.map(|gpu| (gpu.uuid.clone(), (gpu.index, gpu_sample(gpu)))).collect();
        let shares = status.containers.iter().flat_map(|container| {
            container.gpus.iter().map(|share| {
                let labels = ShareLabels { name: name(container), gpu: share.gpu };
                let key = (container.id.clone(), share.uuid.clone());
                (key, (labels, share_sample(share)))
            })
        });
        self.dropped += add(&mut self.gpus, gpus, MAX_GPUS);
        self.dropped += add(&mut self.shares, shares.collect(), MAX_SHARES);
    }

    /// Returns the samples by columns, as JSON.
    #[must_use]
    pub fn json(&self) -> Option<String> {
        let times = self.times.len();
        let mut containers: Vec<ContainerColumns<'_>> = Vec::new();
        for ((id, uuid), series) in &self.shares {
            let columns = ShareColumns {
                gpu: series.labels.gpu,
                uuid,
                memory_used: series.column(times, |sample| Some(sample.memory_used)),
                share_second: series.column(times, |sample| sample.share_second),
                utilization: series.column(times, |sample| sample.utilization),
            };
            match containers.last_mut().filter(|last| last.id == id) {
                Some(container) => container.gpus.push(columns),
                None => containers.push(ContainerColumns {
                    id,
                    name: &series.labels.name,
                    gpus: vec![columns],
                }),
            }
        }
        let gpus = self.gpus.iter().map(|(uuid, series)| GpuColumns {
            index: series.labels,
            uuid,
            memory_used: series.column(times, |sample| sample.memory_used),
            power_mw: series.column(times, |sample| sample.power_mw),
            utilization: series.column(times, |sample| sample.utilization),
        });
        let columns = Columns {
            interval_s: INTERVAL.as_secs(),
            times: &self.times,
            gpus: gpus.collect(),
            containers,
            dropped: self.dropped,
        };
        serde_json::to_string(&columns).ok()
    }
}

/// The history by columns. Each column has a figure, or null, for each of `times`.
#[derive(Serialize)]
struct Columns<'a> {
    interval_s: u64,
    times: &'a VecDeque<u64>,
    gpus: Vec<GpuColumns<'a>>,
    containers: Vec<ContainerColumns<'a>>,
    dropped: u64,
}

#[derive(Serialize)]
struct GpuColumns<'a> {
    index: DeviceId,
    uuid: &'a str,
    memory_used: Vec<Option<u64>>,
    power_mw: Vec<Option<u32>>,
    utilization: Vec<Option<u8>>,
}

#[derive(Serialize)]
struct ContainerColumns<'a> {
    id: &'a str,
    name: &'a str,
    gpus: Vec<ShareColumns<'a>>,
}

#[derive(Serialize)]
struct ShareColumns<'a> {
    gpu: DeviceId,
    uuid: &'a str,
    memory_used: Vec<Option<u64>>,
    share_second: Vec<Option<f32>>,
    utilization: Vec<Option<u8>>,
}

fn name(container: &ContainerStatus) -> String {
    container.name.chars().take(MAX_NAME).collect()
}

fn gpu_sample(gpu: &GpuStatus) -> GpuSample {
    GpuSample {
        memory_used: gpu.memory_used,
        power_mw: gpu.board.power_mw,
        utilization: percent(gpu.utilization),
    }
}

fn share_sample(share: &ShareStatus) -> ShareSample {
    // Tenths of a percent are more than it is exact.
    #[allow(clippy::cast_possible_truncation)]
    let rounded = |share: f64| ((share * 10.0).round() / 10.0) as f32;
    ShareSample {
        memory_used: share.used.saturating_add(share.implicit).saturating_add(share.orphan),
        share_second: share.share_second.map(rounded),
        utilization: percent(share.utilization),
    }
}

fn percent(utilization: Option<u32>) -> Option<u8> {
    utilization.map(|percent| u8::try_from(percent.min(100)).unwrap_or(100))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn container(id: &str, used: u64, share_second: Option<f64>) -> ContainerStatus {
        let share = ShareStatus {
            uuid: "GPU-1".into(),
            used,
            implicit: 24,
            share_second,
            ..ShareStatus::default()
        };
        let name = format!("name of {id}");
        ContainerStatus { id: id.into(), name, gpus: vec![share], ..ContainerStatus::default() }
    }

    fn status(containers: Vec<ContainerStatus>) -> Status {
        let gpu = GpuStatus { uuid: "GPU-1".into(), memory_used: Some(7), ..GpuStatus::default() };
        Status { gpus: vec![gpu], containers, ..Status::default() }
    }

    fn read(history: &History) -> Value {
        serde_json::from_str(&history.json().unwrap()).unwrap()
    }

    #[test]
    fn columns_have_a_figure_for_each_time() {
        let mut history = History::default();
        assert_eq!(read(&history)["times"], json!([]));
        history.add(100, &status(vec![container("a", 1000, Some(33.333))]));
        history.add(110, &status(vec![]));
        history.add(120, &status(vec![container("a", 2000, None), container("b", 0, None)]));
        let read = read(&history);
        assert_eq!(read["times"], json!([100, 110, 120]));
        assert_eq!(read["gpus"][0]["memory_used"], json!([7, 7, 7]));
        let [one, other] = [0, 1].map(|at| &read["containers"][at]);
        assert_eq!((&one["id"], &one["name"]), (&json!("a"), &json!("name of a")));
        assert_eq!(one["gpus"][0]["memory_used"], json!([1024, null, 2024]));
        let share = one["gpus"][0]["share_second"][0].as_f64().unwrap();
        assert!((share - 33.3).abs() < 1e-5, "{share}");
        assert_eq!(other["gpus"][0]["memory_used"], json!([null, null, 24]));
        assert_eq!(read["dropped"], 0);
    }

    #[test]
    fn samples_of_an_hour_are_kept_and_ended_containers_forgotten() {
        let mut history = History::default();
        history.add(0, &status(vec![container("gone", 1, None)]));
        for time in 1..MAX_SAMPLES as u64 {
            history.add(time, &status(vec![container("a", time, None)]));
        }
        assert_eq!(read(&history)["containers"].as_array().unwrap().len(), 2);
        history.add(MAX_SAMPLES as u64, &status(vec![container("a", 5, None)]));
        let read = read(&history);
        assert_eq!(read["containers"].as_array().unwrap().len(), 1, "{}", read["containers"]);
        let times = read["times"].as_array().unwrap();
        assert_eq!((times.len(), times[0].as_u64()), (MAX_SAMPLES, Some(1)));
        let column = read["containers"][0]["gpus"][0]["memory_used"].as_array().unwrap();
        assert_eq!((column.len(), column[MAX_SAMPLES - 1].as_u64()), (MAX_SAMPLES, Some(29)));
    }

    #[test]
    fn memory_is_bounded_however_many_containers_come() {
        let mut history = History::default();
        // New ones each time: those of before give way.
        for time in 0..5 {
            let ids = (0..300).map(|id| format!("{time}-{id}"));
            let all: Vec<_> = ids.map(|id| container(&id, 1, None)).collect();
            history.add(time, &status(all));
        }
        assert_eq!((history.shares.len(), history.dropped), (MAX_SHARES, 0));
        let now =
            |history: &History| history.shares.values().filter(|series| series.age() == 0).count();
        assert_eq!(now(&history), 300);
        // More at once than there is room for.
        let all: Vec<_> =
            (0..MAX_SHARES + 9).map(|id| container(&format!("x{id:05}"), 1, None)).collect();
        history.add(9, &status(all));
        assert_eq!((history.shares.len(), history.dropped), (MAX_SHARES, 9));
        let longest = container(&"i".repeat(20), 1, None);
        let named = ContainerStatus { name: "ä".repeat(60_000), ..longest };
        let mut history = History::default();
        history.add(0, &status(vec![named]));
        assert_eq!(history.shares.values().next().unwrap().labels.name.chars().count(), MAX_NAME);
        let gpus =
            (0..MAX_GPUS + 1).map(|at| GpuStatus { uuid: at.to_string(), ..GpuStatus::default() });
        history.add(1, &Status { gpus: gpus.collect(), ..Status::default() });
        assert_eq!((history.gpus.len(), history.dropped), (MAX_GPUS, 1));
    }
}
