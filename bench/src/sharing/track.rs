//! A tenant's completed work over time, from the reports of its processes.

use anyhow::{Context, Result};
use serde_json::Value;

/// The track of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Track {
    /// Seconds between two entries of `done`.
    pub(crate) step: f64,
    /// Kernels completed by all processes at 0, 1, 2... steps from the start.
    pub(crate) done: Vec<u64>,
    /// Seconds from the start to the end of each batch with a wait.
    pub(crate) ends: Vec<f64>,
    /// Seconds that each of these batches took.
    pub(crate) latencies: Vec<f64>,
    /// CPU seconds of all processes' own threads, without waits for the GPU.
    pub(crate) cpu: f64,
}

impl Track {
    /// Reads the report of one process.
    pub(crate) fn read(step: f64, report: &Value) -> Result<Self> {
        let list = |key: &str| {
            report[key]
                .as_array()
                .with_context(|| format!("a worker's answer has no list '{key}': {report}"))
        };
        let floats =
            |key| Ok::<_, anyhow::Error>(list(key)?.iter().filter_map(Value::as_f64).collect());
        Ok(Self {
            step,
            done: list("done")?.iter().filter_map(Value::as_u64).collect(),
            ends: floats("ends")?,
            latencies: floats("latencies")?,
            cpu: report["cpu"].as_f64().context("a worker's answer has no 'cpu'")?,
        })
    }

    /// Returns the sum of both.
    pub(crate) fn with(mut self, other: &Self) -> Self {
        if self.done.is_empty() {
            return other.clone();
        }
        self.done.iter_mut().zip(&other.done).for_each(|(sum, more)| *sum += more);
        self.ends.extend(&other.ends);
        self.latencies.extend(&other.latencies);
        self.cpu += other.cpu;
        self
    }

    /// Returns the covered time in seconds.
    pub(crate) fn length(&self) -> f64 {
        self.step * self.done.len().saturating_sub(1) as f64
    }

    /// Returns the kernels completed between two times, which are clamped to the run.
    pub(crate) fn between(&self, from: f64, to: f64) -> f64 {
        let at = |time: f64| {
            let step = (time / self.step).round().max(0.0) as usize;
            self.done.get(step).or(self.done.last()).copied().unwrap_or(0)
        };
        at(to).saturating_sub(at(from)) as f64
    }

    /// Returns the kernels per second between two times.
    pub(crate) fn rate(&self, from: f64, to: f64) -> f64 {
        self.between(from, to) / (to - from)
    }

    /// Returns the batches per second between the first end after `from` and the last one.
    pub(crate) fn batch_rate(&self, from: f64) -> Option<f64> {
        let ends: Vec<f64> = self.ends.iter().copied().filter(|end| *end >= from).collect();
        let (first, last) = (ends.first()?, ends.last()?);
        (last > first).then(|| (ends.len() - 1) as f64 / (last - first))
    }

    /// Returns the times at which it continued after a pause of more than `pause` seconds: the
    /// starts of its turns.
    pub(crate) fn resumptions(&self, pause: f64) -> Vec<f64> {
        let least = (pause / self.step).ceil() as usize;
        let mut moments = Vec::new();
        let mut still_since = 0;
        for (place, pair) in self.done.windows(2).enumerate() {
            if pair[0] != pair[1] {
                if place - still_since >= least {
                    moments.push((place + 1) as f64 * self.step);
                }
                still_since = place + 1;
            }
        }
        moments
    }

    /// Returns a quantile of the batches' latencies in seconds.
    pub(crate) fn quantile(&self, part: f64) -> Option<f64> {
        let mut sorted = self.latencies.clone();
        sorted.sort_by(f64::total_cmp);
        let place = (sorted.len() as f64 * part).ceil() as usize;
        sorted.get(place.max(1) - 1).copied()
    }
}

/// Returns the boundaries of whole cycles of turns from `from` on: between two of them each tenant
/// has a whole number of turns. Without turns they are the start and end of the run.
pub(crate) fn cycles(tracks: &[Track], batches_us: &[u32], from: f64) -> Vec<f64> {
    // The tenant with the shortest batches shows its turns best.
    let Some((track, batch)) = tracks.iter().zip(batches_us).rev().min_by_key(|(_, batch)| **batch)
    else {
        return Vec::new();
    };
    let pause = 1.5e-6 * f64::from(*batch) + 0.001;
    let moments: Vec<f64> =
        track.resumptions(pause).into_iter().filter(|moment| *moment >= from).collect();
    if moments.len() < 2 { vec![from, track.length()] } else { moments }
}

/// Groups whole cycles into windows, each the shortest that is at least `length`.
pub(crate) fn windows(cycles: &[f64], length: f64) -> Vec<(f64, f64)> {
    let mut all = Vec::new();
    let Some(mut from) = cycles.first().copied() else { return all };
    for moment in cycles {
        // Tolerance for rounding of steps.
        if moment - from >= length - 1e-9 {
            all.push((from, *moment));
            from = *moment;
        }
    }
    all
}

/// Returns each tenant's part of the work between two times; `lengths` are those of the kernels.
pub(crate) fn shares(tracks: &[Track], lengths: &[u32], from: f64, to: f64) -> Vec<f64> {
    let work: Vec<f64> = tracks
        .iter()
        .zip(lengths)
        .map(|(track, length)| track.between(from, to) * f64::from(*length))
        .collect();
    let all: f64 = work.iter().sum();
    work.iter().map(|work| work / all).collect()
}

/// Returns the largest relative error of a share in percent.
pub(crate) fn error_pct(shares: &[f64], set: &[f64]) -> f64 {
    shares.iter().zip(set).map(|(share, set)| 100.0 * (share - set).abs() / set).fold(0.0, f64::max)
}

/// Returns the weights as fractions of their sum.
pub(crate) fn parts(weights: &[u32]) -> Vec<f64> {
    let all: u32 = weights.iter().sum();
    weights.iter().map(|weight| f64::from(*weight) / f64::from(all)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn track(done: &[u64]) -> Track {
        Track { step: 0.5, done: done.to_vec(), ..Track::default() }
    }

    #[test]
    fn shares_are_parts_of_the_work_not_of_the_launches() {
        let tracks = [track(&[0, 100, 200]), track(&[0, 1, 2])];
        assert_eq!(shares(&tracks, &[10, 1000], 0.0, 1.0), [0.5, 0.5]);
        assert_eq!(error_pct(&[0.5, 0.5], &parts(&[1, 3])), 100.0);
    }

    #[test]
    fn times_outside_of_a_run_are_clamped() {
        let track = track(&[5, 10, 20]);
        assert_eq!(track.between(0.5, 9.0), 10.0);
        assert_eq!(track.rate(0.0, 1.0), 15.0);
        assert_eq!(track.length(), 1.0);
    }

    #[test]
    fn turns_begin_where_work_continues_after_a_pause() {
        // Turns of two steps, pauses of three. The first pause cannot be recognised.
        let track = track(&[0, 1, 2, 2, 2, 2, 3, 4, 4, 4, 4, 5, 6]);
        assert_eq!(track.resumptions(1.5), [3.0, 5.5]);
        assert_eq!(track.resumptions(2.0), [0.0; 0]);
        let other = super::tests::track(&[0, 0, 0, 9, 18, 27, 27, 27, 36, 45, 54, 54, 54]);
        let both = [other, track];
        assert_eq!(cycles(&both, &[1000, 500], 1.0), [3.0, 5.5]);
        assert_eq!(cycles(&both, &[1000, 500], 4.0), [4.0, 6.0]);
    }

    #[test]
    fn windows_are_whole_cycles() {
        assert_eq!(windows(&[1.0, 1.4, 1.8, 2.2, 2.6, 3.0], 0.5), [(1.0, 1.8), (1.8, 2.6)]);
        assert_eq!(windows(&[], 1.0), []);
    }

    #[test]
    fn batches_are_counted_from_end_to_end() {
        let track = Track {
            ends: vec![0.1, 0.6, 1.1, 1.6],
            latencies: vec![0.4, 0.1, 0.3, 0.2],
            ..Track::default()
        };
        assert_eq!(track.batch_rate(0.5), Some(2.0));
        assert_eq!(track.batch_rate(1.5), None);
        assert_eq!((track.quantile(0.5), track.quantile(0.99)), (Some(0.2), Some(0.4)));
    }
}
