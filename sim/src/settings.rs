//! The settings of a machine: the `CGPU_SIM_*` variables, and the model's figures.
//!
//! The process that creates the segment decides: the figures are stored there, and later clients
//! use those.

use std::path::PathBuf;

use cgpu_shm::units::{Bytes, Nanos};

use crate::error::Error;
use crate::gpu::GpuSpec;
use crate::timeline::{ClockRate, Wall};

/// Conversion of a figure to and from a word of the segment.
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

impl Word for Wall {
    fn word(self) -> u64 {
        Self::word(self)
    }
    fn of(word: u64) -> Self {
        Self::of(word)
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
    /// Cost of switching contexts (`CGPU_SIM_SWITCH_US`).
    switch: Nanos = Nanos::from_micros(100),
    /// How long a context without work keeps the GPU while others wait (`CGPU_SIM_IDLE_US`).
    idle: Nanos = Nanos::ZERO,
    /// Default length of a kernel (`CGPU_SIM_KERNEL_US`).
    kernel: Nanos = Nanos::from_micros(20),
    /// 1: contexts of a GPU do not take turns but compute concurrently (`CGPU_SIM_MPS`).
    mps: u64 = 0,
    /// NUMA node of the first GPU's memory, as on hosts with coherent GPUs; each further GPU has
    /// the next node. 0: GPUs' memory is no node (`CGPU_SIM_NUMA_NODE`).
    numa_node: u64 = 0,
    /// 1: NVML reports host PIDs to every caller, as drivers without the open kernel modules do
    /// (`CGPU_SIM_HOST_PIDS`).
    host_pids: u64 = 0,
    /// Spread of kernel lengths: the standard deviation of their logarithm, in millionths
    /// (`CGPU_SIM_NOISE`, percent).
    noise: u64 = 0,
    /// How much longer a kernel takes while others compute concurrently, in millionths
    /// (`CGPU_SIM_CORUN`, percent).
    corun: u64 = 0,
    /// From an enqueuing call to the earliest start on the GPU.
    launch_latency: Nanos = Nanos::from_micros(6),
    /// Minimum host time of a kernel launch.
    launch_cost: Nanos = Nanos(2_500),
    /// Host time per node of a graph launch.
    node_cost: Nanos = Nanos(1),
    /// Minimum host time of any other enqueuing call.
    call_cost: Nanos = Nanos(1_000),
    /// From an end on the GPU until the host can see it.
    visibility: Nanos = Nanos::from_micros(3),
    /// GPU time of an event record.
    event_cost: Nanos = Nanos(1_000),
    /// Grid of event timestamps.
    event_grid: Nanos = Nanos(500),
    /// GPU time of a stream memory write.
    write_cost: Nanos = Nanos(500),
    /// Copies between host and GPU: time before the first byte.
    copy_latency: Nanos = Nanos::from_micros(8),
    /// Copies between host and GPU: bytes per microsecond, each direction.
    copy_rate: u64 = 12_000,
    /// Copies and fills within the GPU: bytes per microsecond.
    local_rate: u64 = 250_000,
    /// Commands that a stream holds before a launch blocks; at most [`Figures::MAX_DEPTH`].
    queue_depth: u64 = Self::MAX_DEPTH,
    /// From a process's death until its contexts and memory are gone.
    death_delay: Nanos = Nanos::from_millis(50),
    /// Host time of loading a function's code.
    load_cost: Nanos = Nanos::from_micros(50),
    /// Memory of a function's code.
    code_size: Bytes = Bytes(64 << 10),
    /// Memory of a context.
    context_memory: Bytes = Bytes::from_mib(256),
    /// Minimum growth of a memory pool, if the GPU has as much.
    pool_chunk: Bytes = Bytes::from_mib(32),
    /// Window of NVML's utilisation (`CGPU_SIM_WINDOW_MS`).
    window: Nanos = Nanos(166_666_667),
    /// Time of an NVML query of the kernel driver.
    query: Nanos = Nanos::from_micros(50),
    /// Time of an NVML read of a sample buffer: utilisation, clocks, power.
    sampling: Nanos = Nanos::from_millis(1),
    /// Host time of an `nvmlInit` while NVML is not initialised (`CGPU_SIM_NVML_INIT_MS`).
    attaching: Nanos = Nanos::from_millis(10),
    /// Initial rate of the GPUs' clocks relative to the host's (`CGPU_SIM_CLOCK_PPM`).
    clock_rate: ClockRate = ClockRate(0),
    /// What limits the memory of control groups (`CGPU_SIM_WALL`).
    wall: Wall = Wall::Missing,
    /// 1: the driver keeps its state while no client uses the GPUs (`CGPU_SIM_PERSISTENCE`).
    persistence: u64 = 1,
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
    /// The GPUs (`CGPU_SIM_GPUS`), in order. `None`: those of the segment, or one A10.
    pub gpus: Option<Vec<GpuSpec>>,
    /// Real time per device time, in thousandths (`CGPU_SIM_TIME_SCALE`): 10000 is ten times slower
    /// than real time.
    pub time_scale_milli: u64,
    /// The figures of the model.
    pub figures: Figures,
}

impl Settings {
    /// Reads the variables of the process.
    ///
    /// # Errors
    /// [`Error::Settings`] naming the variable, what was expected and what it was.
    pub fn from_environment() -> Result<Self, Error> {
        Self::read(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Reads variables from `get`. `CGPU_SIM_STATE` defaults to the state that a container runtime
    /// has provided, else to `/dev/shm/cgpu-sim-<uid>`.
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
        let switch = |name, default| match get(name).as_deref() {
            None => Ok(default),
            Some("0") => Ok(0),
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
            mps: switch("CGPU_SIM_MPS", 0)?,
            numa_node: match get("CGPU_SIM_NUMA_NODE") {
                None => figures.numa_node,
                Some(text) => numa_node(&text)?,
            },
            host_pids: switch("CGPU_SIM_HOST_PIDS", 0)?,
            noise: millionths("CGPU_SIM_NOISE", 100.0)?,
            corun: millionths("CGPU_SIM_CORUN", 1_000.0)?,
            clock_rate: match get("CGPU_SIM_CLOCK_PPM") {
                None => figures.clock_rate,
                Some(text) => clock_rate(&text)?,
            },
            wall: match get("CGPU_SIM_WALL").as_deref() {
                None => figures.wall,
                Some("dmem") => Wall::Dmem,
                Some("misc") => Wall::Misc,
                Some(text) => {
                    return Err(Error::Settings(format!(
                        "CGPU_SIM_WALL={text}: expected dmem or misc"
                    )));
                }
            },
            persistence: switch("CGPU_SIM_PERSISTENCE", figures.persistence)?,
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
            time_scale_milli: match get("CGPU_SIM_TIME_SCALE") {
                None => 1_000,
                Some(text) => time_scale(&text)?,
            },
            figures,
        })
    }
}

/// Where a container runtime links the state of the GPUs that it provides, so that containers need
/// no variable.
const PROVIDED_STATE: &str = "/run/cgpu/simulated";

fn default_state() -> PathBuf {
    // Resolved, because files beside the state are found by its real name.
    if let Ok(provided) = std::fs::canonicalize(PROVIDED_STATE) {
        return provided;
    }
    // SAFETY: getuid has no preconditions and always succeeds.
    let uid = unsafe { libc::getuid() };
    format!("/dev/shm/cgpu-sim-{uid}").into()
}

/// Parses `CGPU_SIM_SEED`.
pub(crate) fn seed(text: &str) -> Result<u64, Error> {
    text.parse()
        .map_err(|_| Error::Settings(format!("CGPU_SIM_SEED={text}: expected a whole number")))
}

fn numa_node(text: &str) -> Result<u64, Error> {
    match text.parse() {
        Ok(node @ 0..=1_000) => Ok(node),
        _ => Err(Error::Settings(format!(
            "CGPU_SIM_NUMA_NODE={text}: expected a node from 1 to 1000, or 0 for none"
        ))),
    }
}

fn clock_rate(text: &str) -> Result<ClockRate, Error> {
    ClockRate::parse_ppm(text).ok_or_else(|| {
        Error::Settings(format!(
            "CGPU_SIM_CLOCK_PPM={text}: expected parts per million from -500 to 500, \
             negative for a slow clock"
        ))
    })
}

fn time_scale(text: &str) -> Result<u64, Error> {
    match text.parse::<f64>() {
        // In this range the product is a positive number far below 2^53.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Ok(factor) if (0.001..=10_000.0).contains(&factor) => Ok((factor * 1_000.0).round() as u64),
        _ => Err(Error::Settings(format!(
            "CGPU_SIM_TIME_SCALE={text}: expected a factor from 0.001 to 10000, \
             10 being ten times slower than real time"
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
    fn unset_variables_mean_defaults() {
        let settings = read(&[("CGPU_SIM_GPUS", "")]).unwrap();
        assert_eq!(settings.gpus, None);
        assert_eq!(settings.figures, Figures::default());
        assert_eq!(settings.time_scale_milli, 1_000);
        assert!(settings.state.starts_with("/dev/shm"));
    }

    #[test]
    fn set_variables_override_defaults() {
        let settings = read(&[
            ("CGPU_SIM_STATE", "/tmp/x"),
            ("CGPU_SIM_SWITCH_US", "40"),
            ("CGPU_SIM_SLICE_US", "2000"),
            ("CGPU_SIM_IDLE_US", "20"),
            ("CGPU_SIM_KERNEL_US", "60"),
            ("CGPU_SIM_WINDOW_MS", "1000"),
            ("CGPU_SIM_NVML_INIT_MS", "0"),
            ("CGPU_SIM_MPS", "1"),
            ("CGPU_SIM_NUMA_NODE", "2"),
            ("CGPU_SIM_NOISE", "1.5"),
            ("CGPU_SIM_CORUN", "10"),
            ("CGPU_SIM_CLOCK_PPM", "-12.5"),
            ("CGPU_SIM_WALL", "misc"),
            ("CGPU_SIM_PERSISTENCE", "0"),
            ("CGPU_SIM_SEED", "42"),
            ("CGPU_SIM_TIME_SCALE", "2.5"),
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
        assert_eq!(settings.figures.numa_node, 2);
        assert_eq!(settings.figures.window, Nanos::from_millis(1_000));
        assert_eq!(settings.figures.clock_rate, ClockRate(-12_500));
        assert_eq!(settings.figures.attaching, Nanos::ZERO);
        assert_eq!((settings.figures.wall, settings.figures.persistence), (Wall::Misc, 0));
        assert_eq!(settings.figures.seed, 42);
        assert_eq!(settings.time_scale_milli, 2_500);
    }

    #[test]
    fn invalid_variable_is_refused_by_name() {
        for (name, value) in [
            ("CGPU_SIM_SWITCH_US", "fast"),
            ("CGPU_SIM_SLICE_US", "0"),
            ("CGPU_SIM_IDLE_US", "-1"),
            ("CGPU_SIM_KERNEL_US", "-1"),
            ("CGPU_SIM_WINDOW_MS", "0"),
            ("CGPU_SIM_NVML_INIT_MS", "60001"),
            ("CGPU_SIM_MPS", "yes"),
            ("CGPU_SIM_NUMA_NODE", "-1"),
            ("CGPU_SIM_HOST_PIDS", "2"),
            ("CGPU_SIM_NOISE", "-1"),
            ("CGPU_SIM_CORUN", "lots"),
            ("CGPU_SIM_CLOCK_PPM", "501"),
            ("CGPU_SIM_WALL", "yes"),
            ("CGPU_SIM_PERSISTENCE", "2"),
            ("CGPU_SIM_SEED", "-1"),
            ("CGPU_SIM_TIME_SCALE", "0"),
            ("CGPU_SIM_TIME_SCALE", "NaN"),
            ("CGPU_SIM_GPUS", "A10:x"),
        ] {
            let error = read(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
