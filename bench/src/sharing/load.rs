//! The tenants of an experiment, and what they do on the GPU.

use std::fmt::Write;

/// In which shapes a process launches: grid, block and shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shapes {
    /// The one that fills the GPU.
    One,
    /// So many, drawn.
    Drawn(u32),
    /// Always new ones.
    New,
}

/// How a process keeps the GPU busy; the options of the program `load`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Microseconds of a kernel, on average.
    pub(crate) us: u32,
    /// The shape of their lengths' lognormal distribution; 0: all alike.
    pub(crate) spread: f32,
    /// It never ends.
    pub(crate) persistent: bool,
    /// Kernels of a batch.
    pub(crate) batch: u32,
    /// Batches on their way before the program waits for the oldest; 0: it waits for each.
    pub(crate) ahead: u32,
    /// Microseconds of host work after each batch.
    pub(crate) gap_us: u32,
    pub(crate) streams: u32,
    pub(crate) threads: u32,
    /// A batch is one launch of a graph.
    pub(crate) graph: bool,
    /// Bytes that go to the GPU and back with each batch.
    pub(crate) copy: u32,
    /// Percent of the GPU that a token bucket of its own allows it; 0: it has none.
    pub(crate) bucket: u32,
    pub(crate) shapes: Shapes,
    /// Kernels, drawn: half take their time, half take it for each wave of the grid; 0: one of `us`.
    pub(crate) functions: u32,
    /// Runs of so many launches take `us` and 5 ms in turn; 0: all take `us`.
    pub(crate) alternating: u32,
    /// What is drawn.
    pub(crate) seed: u32,
}

impl Load {
    /// Kernels of this length without a pause, some 2 ms of them on their way twice over.
    pub(crate) const fn saturating(us: u32) -> Self {
        let (batch, ahead) = (if us < 2000 { 2000 / us } else { 1 }, 2);
        Self {
            us,
            spread: 0.0,
            persistent: false,
            batch,
            ahead,
            gap_us: 0,
            streams: 1,
            threads: 1,
            graph: false,
            copy: 0,
            bucket: 0,
            shapes: Shapes::One,
            functions: 0,
            alternating: 0,
            seed: 1,
        }
    }

    /// Batches that are waited for, one after the other, with host work between them.
    pub(crate) const fn requests(batch: u32, us: u32, gap_us: u32) -> Self {
        Self { batch, ahead: 0, gap_us, ..Self::saturating(us) }
    }

    /// One kernel that never ends.
    pub(crate) const fn persistent() -> Self {
        Self { persistent: true, ahead: 0, ..Self::requests(1, 1, 0) }
    }

    /// Microseconds of a batch.
    pub(crate) const fn batch_us(&self) -> u32 {
        self.us * self.batch
    }

    /// The arguments of `load`.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut text = format!(
            "--us {} --batch {} --ahead {} --gap-us {} --streams {} --threads {}",
            self.us, self.batch, self.ahead, self.gap_us, self.streams, self.threads
        );
        // Writing to a string cannot fail.
        if self.copy > 0 {
            let _ = write!(text, " --copy {}", self.copy);
        }
        if self.bucket > 0 {
            let _ = write!(text, " --bucket {}", self.bucket);
        }
        if self.graph {
            text += " --graph";
        }
        let shapes = match self.shapes {
            Shapes::One => None,
            Shapes::Drawn(count) => Some(count),
            Shapes::New => Some(0),
        };
        if let Some(shapes) = shapes {
            let _ = write!(text, " --shapes {shapes} --seed {}", self.seed);
        }
        if self.functions > 0 {
            let _ = write!(text, " --functions {}", self.functions);
        }
        if self.alternating > 0 {
            let _ = write!(text, " --kernel alternating_{}us_5ms_{}", self.us, self.alternating);
        }
        if self.persistent {
            text += " --kernel persistent";
        } else if self.spread > 0.0 {
            let _ = write!(text, " --kernel lognormal_{}us_{}", self.us, self.spread);
        }
        text.split(' ').map(str::to_owned).collect()
    }
}

/// A container of an experiment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Party {
    pub(crate) load: Load,
    pub(crate) processes: usize,
    pub(crate) weight: u32,
    /// Percent of the GPU, for policy 3.
    pub(crate) percent: Option<u32>,
    pub(crate) high_priority: bool,
}

impl Party {
    /// One process, weight 1.
    pub(crate) const fn of(load: Load) -> Self {
        Self { load, processes: 1, weight: 1, percent: None, high_priority: false }
    }

    pub(crate) const fn weighing(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    pub(crate) const fn capped(self, percent: u32) -> Self {
        Self { percent: Some(percent), ..self }
    }

    pub(crate) const fn urgent(self) -> Self {
        Self { high_priority: true, ..self }
    }
}
