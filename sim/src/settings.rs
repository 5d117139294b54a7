//! How the machine is set up: the `CGPU_SIM_*` variables, and the model's figures.
//!
//! Whoever makes the segment decides: the figures lie in it, and later clients take them from there.

use std::path::PathBuf;

use cgpu_shm::units::{Bytes, Nanos};

use crate::error::Error;
use crate::gpu::GpuSpec;
use crate::timeline::ClockRate;

/// A figure as a word of the segment.
trait Word: Copy {
    fn word(self) -> u64;
    fn of(word: u64) -> Self;
}

macro_rules! words {
    ($($name:ident)*) => {$(
        impl Word for $name {
            fn word(self) -> u64 {
                self.0
            }
            fn of(word: u64) -> Self {
                Self(word)
            }
        }
    )*};
}
words!(Nanos Bytes);

impl Word for ClockRate {
    fn word(self) -> u64 {
        self.0.cast_unsigned()
    }
    fn of(word: u64) -> Self {
        Self(word.cast_signed())
    }
}

impl Word for u64 {
    fn word(self) -> u64 {
        self
    }
    fn of(word: u64) -> Self {
        word
    }
}

macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $default:expr,)*) => {
        /// Figures of the model. `docs/internals/simulator.md` gives each one's source.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Figures {
            $($(#[$doc])* pub $name: $type,)*
        }

        impl Default for Figures {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl Figures {
            pub(crate) const COUNT: usize = [$(stringify!($name)),*].len();

            pub(crate) fn words(&self) -> [u64; Self::COUNT] {
                [$(self.$name.word()),*]
            }

            pub(crate) fn of_words([$($name),*]: [u64; Self::COUNT]) -> Self {
                Self { $($name: Word::of($name),)* }
            }
        }
    };
}

figures! {
    /// Time slice of a context while others have work (`CGPU_SIM_SLICE_US`).
    slice: Nanos = Nanos::from_micros(1_024),
    /// Cost of changing the context that computes (`CGPU_SIM_SWITCH_US`).
    switch: Nanos = Nanos::from_micros(100),
    /// How long a context without work keeps the GPU while others wait (`CGPU_SIM_IDLE_US`).
    idle: Nanos = Nanos::ZERO,
    /// Length of a kernel whose name says none (`CGPU_SIM_KERNEL_US`).
    kernel: Nanos = Nanos::from_micros(20),
    /// 1: the contexts of a GPU take no turns but compute beside each other (`CGPU_SIM_MPS`).
    mps: u64 = 0,
    /// 1: NVML names processes as the host does, whoever asks, as drivers without the open kernel modules do (`CGPU_SIM_HOST_PIDS`).
    host_pids: u64 = 0,
    /// Spread of kernels' lengths: the standard deviation of their logarithm, in millionths (`CGPU_SIM_NOISE`, percent).
    noise: u64 = 0,
    /// How much longer a kernel takes while others compute beside it, in millionths (`CGPU_SIM_CORUN`, percent).
    corun: u64 = 0,
    /// From an enqueuing call to the earliest start on the GPU.
    launch_latency: Nanos = Nanos::from_micros(6),
    /// Host time that a kernel launch takes at least.
    launch_cost: Nanos = Nanos(2_500),
    /// Host time that each node adds to a graph's launch.
    node_cost: Nanos = Nanos(1),
    /// Host time that any other enqueuing call takes at least.
    call_cost: Nanos = Nanos(1_000),
    /// From an end on the GPU until the host can see it.
    visibility: Nanos = Nanos::from_micros(3),
    /// Time on the GPU that an event record takes.
    event_cost: Nanos = Nanos(1_000),
    /// Grid of event timestamps.
    event_grid: Nanos = Nanos(500),
    /// Time on the GPU that a stream memory write takes.
    write_cost: Nanos = Nanos(500),
    /// Copies between host and GPU: time before the first byte.
    copy_latency: Nanos = Nanos::from_micros(8),
    /// Copies between host and GPU: bytes per microsecond, each direction.
    copy_rate: u64 = 12_000,
    /// Copies and fills within the GPU: bytes per microsecond.
    local_rate: u64 = 250_000,
    /// Commands that one stream holds before a launch blocks; at most [`Figures::MAX_DEPTH`].
    queue_depth: u64 = Self::MAX_DEPTH,
    /// From a process's death until its contexts and memory are gone.
    death_delay: Nanos = Nanos::from_millis(50),
    /// Host time that bringing a function's code onto the GPU takes.
    load_cost: Nanos = Nanos::from_micros(50),
    /// Memory of a function's code.
    code_size: Bytes = Bytes(64 << 10),
    /// What a context costs.
    context_memory: Bytes = Bytes::from_mib(256),
    /// What a memory pool takes of the GPU at least, if there is as much.
    pool_chunk: Bytes = Bytes::from_mib(32),
    /// Window of NVML's utilisation (`CGPU_SIM_WINDOW_MS`).
    window: Nanos = Nanos(166_666_667),
    /// What it takes NVML to ask the GPU's driver for something that changes.
    query: Nanos = Nanos::from_micros(50),
    /// What it takes NVML to read a sample buffer: utilisation, clocks, power.
    sampling: Nanos = Nanos::from_millis(1),
    /// Host time of a start of NVML: an `nvmlInit` while the process has none (`CGPU_SIM_NVML_INIT_MS`).
    attaching: Nanos = Nanos::from_millis(10),
    /// How fast the GPUs' clocks run beside the host's, at first (`CGPU_SIM_CLOCK_PPM`).
    clock_rate: ClockRate = ClockRate(0),
    /// Seed of all draws (`CGPU_SIM_SEED`).
    seed: u64 = 0,
}

impl Figures {
    /// The deepest queue that the segment can hold.
    pub const MAX_DEPTH: u64 = 1_022;
}

/// Everything needed to open a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The segment file (`CGPU_SIM_STATE`).
    pub state: PathBuf,
    /// The GPUs (`CGPU_SIM_GPUS`), in order. `None`: whatever the segment holds, or one A10.
    pub gpus: Option<Vec<GpuSpec>>,
    /// Thousandths of real time per device time (`CGPU_SIM_DILATION`): 10000 is ten times slower than real.
    pub dilation_milli: u64,
    /// The model.
    pub figures: Figures,
}

impl Settings {
    /// Reads the variables of the process.
    ///
    /// # Errors
    /// [`Error::Settings`] naming the variable, what was expected and what came.
    pub fn from_environment() -> Result<Self, Error> {
        Self::read(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Reads variables from `get`. `CGPU_SIM_STATE` unset: what a container runtime has brought, else `/dev/shm/cgpu-sim-<uid>`; `CGPU_SIM_GPUS` unset: whatever
    /// is there.
    ///
    /// # Errors
    /// As [`Settings::from_environment`].
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let get = |name| get(name).filter(|value| !value.is_empty());
        let micros = |name, least, default: Nanos| match get(name) {
            None => Ok(default),
            Some(text) => match text.parse::<u64>() {
                Ok(micros) if (least..=3_600_000_000).contains(&micros) => {
                    Ok(Nanos::from_micros(micros))
                }
                _ => Err(Error::Settings(format!(
                    "{name}={text}: expected whole microseconds from {least} to 3600000000"
                ))),
            },
        };
        let millis = |name, least, default: Nanos| match get(name) {
            None => Ok(default),
            Some(text) => match text.parse::<u64>() {
                Ok(millis) if (least..=60_000).contains(&millis) => Ok(Nanos::from_millis(millis)),
                _ => Err(Error::Settings(format!(
                    "{name}={text}: expected whole milliseconds from {least} to 60000"
                ))),
            },
        };
        let millionths = |name, most: f64| match get(name) {
            None => Ok(0),
            Some(text) => match text.parse::<f64>() {
                // In this range the product is a whole number far below 2^53.
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                Ok(percent) if (0.0..=most).contains(&percent) => {
                    Ok((percent * 10_000.0).round() as u64)
                }
                _ => Err(Error::Settings(format!(
                    "{name}={text}: expected percent from 0 to {most}"
                ))),
            },
        };
        let switch = |name| match get(name).as_deref() {
            None | Some("0") => Ok(0),
            Some("1") => Ok(1),
            Some(text) => Err(Error::Settings(format!("{name}={text}: expected 0 or 1"))),
        };
        let figures = Figures::default();
        let figures = Figures {
            switch: micros("CGPU_SIM_SWITCH_US", 0, figures.switch)?,
            slice: micros("CGPU_SIM_SLICE_US", 1, figures.slice)?,
            idle: micros("CGPU_SIM_IDLE_US", 0, figures.idle)?,
            kernel: micros("CGPU_SIM_KERNEL_US", 1, figures.kernel)?,
            window: millis("CGPU_SIM_WINDOW_MS", 1, figures.window)?,
            attaching: millis("CGPU_SIM_NVML_INIT_MS", 0, figures.attaching)?,
            mps: switch("CGPU_SIM_MPS")?,
            host_pids: switch("CGPU_SIM_HOST_PIDS")?,
            noise: millionths("CGPU_SIM_NOISE", 100.0)?,
            corun: millionths("CGPU_SIM_CORUN", 1_000.0)?,
            clock_rate: match get("CGPU_SIM_CLOCK_PPM") {
                None => figures.clock_rate,
                Some(text) => clock_rate(&text)?,
            },
            seed: match get("CGPU_SIM_SEED") {
                None => figures.seed,
                Some(text) => seed(&text)?,
            },
            ..figures
        };
        Ok(Self {
            state: match get("CGPU_SIM_STATE") {
                Some(path) => path.into(),
                None => default_state(),
            },
            gpus: get("CGPU_SIM_GPUS").map(|list| GpuSpec::parse_list(&list)).transpose()?,
            dilation_milli: match get("CGPU_SIM_DILATION") {
                None => 1_000,
                Some(text) => dilation(&text)?,
            },
            figures,
        })
    }
}

/// Where a container runtime links the state of the GPUs that it has brought: its containers need no variable to find them.
const BROUGHT: &str = "/run/cgpu/simulated";

fn default_state() -> PathBuf {
    // What lies beside the state is found by its real name.
    if let Ok(brought) = std::fs::canonicalize(BROUGHT) {
        return brought;
    }
    // SAFETY: getuid has no preconditions and always succeeds.
    let uid = unsafe { libc::getuid() };
    format!("/dev/shm/cgpu-sim-{uid}").into()
}

/// Reads `CGPU_SIM_SEED`.
pub(crate) fn seed(text: &str) -> Result<u64, Error> {
    text.parse()
        .map_err(|_| Error::Settings(format!("CGPU_SIM_SEED={text}: expected a whole number")))
}

fn clock_rate(text: &str) -> Result<ClockRate, Error> {
    ClockRate::parse_ppm(text).ok_or_else(|| {
        Error::Settings(format!(
            "CGPU_SIM_CLOCK_PPM={text}: expected parts per million from -500 to 500, negative for a slow clock"
        ))
    })
}

fn dilation(text: &str) -> Result<u64, Error> {
    match text.parse::<f64>() {
        // In this range the product is a positive number far below 2^53.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Ok(factor) if (0.001..=10_000.0).contains(&factor) => Ok((factor * 1_000.0).round() as u64),
        _ => Err(Error::Settings(format!(
            "CGPU_SIM_DILATION={text}: expected a factor from 0.001 to 10000, 10 being ten times slower than real time"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, Error> {
        Settings::read(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn unset_variables_give_the_defaults() {
        let settings = read(&[("CGPU_SIM_GPUS", "")]).unwrap();
        assert_eq!(settings.gpus, None);
        assert_eq!(settings.figures, Figures::default());
        assert_eq!(settings.dilation_milli, 1_000);
        assert!(settings.state.starts_with("/dev/shm"));
    }

    #[test]
    fn set_variables_are_taken() {
        let settings = read(&[
            ("CGPU_SIM_STATE", "/tmp/x"),
            ("CGPU_SIM_SWITCH_US", "40"),
            ("CGPU_SIM_SLICE_US", "2000"),
            ("CGPU_SIM_IDLE_US", "20"),
            ("CGPU_SIM_KERNEL_US", "60"),
            ("CGPU_SIM_WINDOW_MS", "1000"),
            ("CGPU_SIM_NVML_INIT_MS", "0"),
            ("CGPU_SIM_MPS", "1"),
            ("CGPU_SIM_NOISE", "1.5"),
            ("CGPU_SIM_CORUN", "10"),
            ("CGPU_SIM_CLOCK_PPM", "-12.5"),
            ("CGPU_SIM_SEED", "42"),
            ("CGPU_SIM_DILATION", "2.5"),
        ])
        .unwrap();
        assert_eq!(settings.state, PathBuf::from("/tmp/x"));
        assert_eq!(settings.figures.switch, Nanos::from_micros(40));
        assert_eq!(settings.figures.slice, Nanos::from_micros(2_000));
        assert_eq!(settings.figures.idle, Nanos::from_micros(20));
        assert_eq!(settings.figures.kernel, Nanos::from_micros(60));
        assert_eq!(
            (settings.figures.mps, settings.figures.noise, settings.figures.corun),
            (1, 15_000, 100_000)
        );
        assert_eq!(settings.figures.window, Nanos::from_millis(1_000));
        assert_eq!(settings.figures.clock_rate, ClockRate(-12_500));
        assert_eq!(settings.figures.attaching, Nanos::ZERO);
        assert_eq!(settings.figures.seed, 42);
        assert_eq!(settings.dilation_milli, 2_500);
    }

    #[test]
    fn what_cannot_be_understood_is_refused_by_name() {
        for (name, value) in [
            ("CGPU_SIM_SWITCH_US", "fast"),
            ("CGPU_SIM_SLICE_US", "0"),
            ("CGPU_SIM_IDLE_US", "-1"),
            ("CGPU_SIM_KERNEL_US", "-1"),
            ("CGPU_SIM_WINDOW_MS", "0"),
            ("CGPU_SIM_NVML_INIT_MS", "60001"),
            ("CGPU_SIM_MPS", "yes"),
            ("CGPU_SIM_HOST_PIDS", "2"),
            ("CGPU_SIM_NOISE", "-1"),
            ("CGPU_SIM_CORUN", "lots"),
            ("CGPU_SIM_CLOCK_PPM", "501"),
            ("CGPU_SIM_SEED", "-1"),
            ("CGPU_SIM_DILATION", "0"),
            ("CGPU_SIM_DILATION", "NaN"),
            ("CGPU_SIM_GPUS", "A10:x"),
        ] {
            let error = read(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
