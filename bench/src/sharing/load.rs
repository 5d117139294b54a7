//! The tenants of an experiment and their GPU work.

use std::fmt::Write;

/// Launch shapes of a process: grid, block and shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shapes {
    /// The shape that fills the GPU.
    One,
    /// This number of random shapes.
    Drawn(u32),
    /// A new shape for every launch.
    New,
}

/// GPU work of a process; the options of the program `load`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Mean length of a kernel in microseconds.
    pub(crate) us: u32,
    /// Shape parameter of the lognormal distribution of lengths; 0: all equal.
    pub(crate) spread: f32,
    /// An endless kernel.
    pub(crate) persistent: bool,
    /// Kernels in a batch.
    pub(crate) batch: u32,
    /// Maximum number of batches in flight; 0: the program waits for each batch.
    pub(crate) ahead: u32,
    /// Host time after each batch in microseconds.
    pub(crate) gap_us: u32,
    pub(crate) streams: u32,
    pub(crate) threads: u32,
    /// Whether a batch is one launch of a graph.
    pub(crate) graph: bool,
    /// Bytes copied to the GPU and back with each batch.
    pub(crate) copy: u32,
    /// Percentage of the GPU that the program's own token bucket allows; 0: no bucket.
    pub(crate) bucket: u32,
    pub(crate) shapes: Shapes,
    /// Number of random kernels: half take a fixed time, half the time for each wave of the grid;
    /// 0: one kernel of `us`.
    pub(crate) functions: u32,
    /// Alternate runs of this many launches take `us` and 5 ms; 0: all take `us`.
    pub(crate) alternating: u32,
    /// Seed of what is random.
    pub(crate) seed: u32,
}

impl Load {
    /// Creates a load of kernels without a pause, with two batches of about 2 ms in flight.
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

    /// Creates a load of batches that are waited for, with host work between them.
    pub(crate) const fn requests(batch: u32, us: u32, gap_us: u32) -> Self {
        Self { batch, ahead: 0, gap_us, ..Self::saturating(us) }
    }

    /// Creates a load of one endless kernel.
    pub(crate) const fn persistent() -> Self {
        Self { persistent: true, ahead: 0, ..Self::requests(1, 1, 0) }
    }

    /// Returns the length of a batch in microseconds.
    pub(crate) const fn batch_us(&self) -> u32 {
        self.us * self.batch
    }

    /// Returns the arguments of `load`.
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
pub(crate) struct TenantSpec {
    pub(crate) load: Load,
    pub(crate) processes: usize,
    pub(crate) weight: u32,
    /// Percentage of the GPU for policy 3.
    pub(crate) percent: Option<u32>,
    pub(crate) high_priority: bool,
}

impl TenantSpec {
    /// Creates a container with one process and weight 1.
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
