//! The state of the program, as plain data.

use std::cmp::Ordering;
use std::time::Duration;

use cgpu_client::device_id::DeviceId;
use cgpu_client::message::{ContainerStatus, GpuStatus, GpuTurns, ShareStatus, Status};

use super::history::{History, RowKey};
use crate::table;

/// One sample of what the monitor reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) status: Status,
    /// Empty if the monitor does not report turns.
    pub(crate) turns: Vec<GpuTurns>,
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) sample: Sample,
    pub(crate) history: History,
    pub(crate) interval: Duration,
    pub(crate) mode: Mode,
    pub(crate) order: Order,
    /// Whether the largest value comes first.
    pub(crate) descending: bool,
    /// Shows only containers with this text in id or name, and only this GPU.
    pub(crate) filter: String,
    pub(crate) gpu: Option<DeviceId>,
    pub(crate) selected: Option<RowKey>,
    /// While paused, samples are dropped.
    pub(crate) paused: bool,
    /// The outcome of the last write.
    pub(crate) note: Option<Note>,
    /// Why there are no new samples.
    pub(crate) lost: Option<String>,
}

/// A message in the last line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    Done(String),
    Refused(String),
}

/// What the next key does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    Table,
    Filter,
    Policy {
        gpu: DeviceId,
        choice: u32,
    },
    Weight {
        row: RowKey,
        text: String,
    },
    Confirm(Write),
    Help,
}

/// A node of the control tree, its new value, and the effect in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) path: String,
    pub(crate) value: String,
    pub(crate) meaning: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    #[default]
    Id,
    Gpu,
    Set,
    Measured,
    Memory,
    Time,
}

impl Order {
    pub(crate) const ALL: [Self; 6] =
        [Self::Id, Self::Gpu, Self::Set, Self::Measured, Self::Memory, Self::Time];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Gpu => "gpu",
            Self::Set => "set",
            Self::Measured => "got",
            Self::Memory => "memory",
            Self::Time => "time",
        }
    }

    pub(crate) fn next(self) -> Self {
        let at = Self::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// Returns whether the largest value comes first by default.
    pub(crate) const fn descends(self) -> bool {
        !matches!(self, Self::Id | Self::Gpu)
    }

    fn compare(self, one: &Row<'_>, other: &Row<'_>) -> Ordering {
        let key = |row: &Row<'_>| match self {
            Self::Id | Self::Gpu => 0.0,
            Self::Set => row.share.share_set,
            Self::Measured => row.share.share_second.unwrap_or(-1.0),
            Self::Time => row.share.gpu_time_ms,
            Self::Memory => 0.0,
        };
        let first = match self {
            Self::Gpu => one.share.gpu.cmp(&other.share.gpu),
            Self::Memory => one.used().cmp(&other.used()),
            _ => key(one).total_cmp(&key(other)),
        };
        first
            .then_with(|| one.container.id.cmp(&other.container.id))
            .then(one.share.gpu.cmp(&other.share.gpu))
    }
}

/// A container on a GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    /// Its index among all containers, which selects its letter and colour.
    pub(crate) number: usize,
    pub(crate) container: &'a ContainerStatus,
    pub(crate) share: &'a ShareStatus,
}

impl Row<'_> {
    /// Returns the bytes that it uses on the GPU.
    pub(crate) fn used(&self) -> u64 {
        self.share.used.saturating_add(self.share.implicit).saturating_add(self.share.orphan)
    }

    pub(crate) fn key(&self) -> RowKey {
        (self.container.id.clone(), self.share.gpu)
    }
}

/// Returns the letter of a container: A to Z, a to z, then `*`.
pub(crate) fn letter(number: usize) -> char {
    ('A'..='Z').chain('a'..='z').nth(number).unwrap_or('*')
}

impl Model {
    pub(crate) fn new(sample: Sample, interval: Duration) -> Self {
        let mut model = Self {
            sample: Sample::default(),
            history: History::default(),
            interval,
            mode: Mode::default(),
            order: Order::default(),
            descending: false,
            filter: String::new(),
            gpu: None,
            selected: None,
            paused: false,
            note: None,
            lost: None,
        };
        model.apply(sample);
        model
    }

    /// Applies a sample, unless paused.
    pub(crate) fn apply(&mut self, sample: Sample) {
        self.lost = None;
        if self.paused {
            return;
        }
        self.history.push(&sample.status);
        self.sample = sample;
        if self.gpu.is_some_and(|gpu| self.gpu(gpu).is_none()) {
            self.gpu = None;
        }
    }

    pub(crate) fn gpu(&self, index: DeviceId) -> Option<&GpuStatus> {
        self.sample.status.gpus.iter().find(|gpu| gpu.index == index)
    }

    /// Returns the GPUs that are shown.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = &GpuStatus> {
        self.sample
            .status
            .gpus
            .iter()
            .filter(|gpu| self.gpu.is_none_or(|chosen| chosen == gpu.index))
    }

    /// Returns the rows that are shown, sorted.
    pub(crate) fn rows(&self) -> Vec<Row<'_>> {
        let wanted = self.filter.to_lowercase();
        let containers = self.sample.status.containers.iter().enumerate();
        let mut rows: Vec<Row<'_>> = containers
            .filter(|(_, container)| {
                [&container.id, &container.name]
                    .iter()
                    .any(|text| text.to_lowercase().contains(&wanted))
            })
            .flat_map(|(number, container)| {
                container.gpus.iter().map(move |share| Row { number, container, share })
            })
            .filter(|row| self.gpu.is_none_or(|gpu| gpu == row.share.gpu))
            .collect();
        rows.sort_by(|one, other| self.order.compare(one, other));
        if self.descending {
            rows.reverse();
        }
        rows
    }

    /// Returns the index of the selected row; the first one if the selected one is gone.
    pub(crate) fn selection(&self, rows: &[Row<'_>]) -> Option<usize> {
        let chosen = self.selected.as_ref().and_then(|(id, gpu)| {
            rows.iter().position(|row| row.container.id == *id && row.share.gpu == *gpu)
        });
        chosen.or((!rows.is_empty()).then_some(0))
    }

    /// Returns the index of a container by its id.
    pub(crate) fn number(&self, id: &str) -> Option<usize> {
        self.sample.status.containers.iter().position(|container| container.id == id)
    }
}

pub(crate) fn warnings(model: &Model) -> Vec<String> {
    table::warnings(&model.sample.status)
}
