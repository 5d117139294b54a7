//! The settings of a container: a limit for each GPU, from the `limits` file or else from
//! variables.
//!
//! `docs/settings.md` is the table for users. Everything here is a pure function of what was read.
//! A value that cannot be parsed is a [`Refusal`], never a guess, because a missing limit is the
//! worst outcome.

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::print_stdout,
        clippy::print_stderr
    )
)]

mod amounts;
#[cfg(any(test, feature = "doubles"))]
pub mod declared;
mod devices;
mod environment;
pub mod file;
mod gpus;
mod log;
mod refusal;
mod value;

use std::path::PathBuf;

use cgpu_shm::layout::GPUS;
use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;

pub use cgpu_shm::reason::Reason;

pub use self::environment::{Environment, System};
pub use self::gpus::{Found, GpuInfo, Inventory};
pub use self::log::{Log, LogLevel};
pub use self::refusal::Refusal;
pub use self::value::misspelling;

use self::amounts::{Amounts, Measure, mib, whole};
use self::devices::{GpuList, Visible, unordered};
use self::value::{Value, Variable};

/// Outcome of the variables for the GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No limit.
    Off(Reason),
    /// Limits.
    On(Settings),
}

/// What a container may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The visible GPUs with a limit, in the order of the list; others are native.
    pub gpus: Vec<GpuLimit>,
    /// The container's name, if one was set.
    pub name: Option<String>,
    /// Weight, 1 to 25; 1 by default.
    pub weight: u32,
    /// Percent of a GPU for policy 3, 1 to 100, if set.
    pub core_percentage: Option<u32>,
    /// Whether the container has high priority.
    pub high_priority: bool,
}

/// A GPU and its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuLimit {
    /// The GPU.
    pub uuid: Uuid,
    /// Its memory.
    pub total: Bytes,
    /// Bytes of it that the container may use; zero: not limited.
    pub limit: Bytes,
    /// Its index in the list of GPUs.
    pub ordinal: u32,
}

/// The variables, as they are set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variables {
    container: Option<Value>,
    device: Option<Value>,
    unit: Option<Value>,
    visible: Option<Value>,
    sliced: Option<Value>,
    weight: Option<Value>,
    core_percentage: Option<Value>,
    high_priority: Option<Value>,
    disable: Option<Value>,
    directory: Option<Value>,
    keep_deep_bind: Option<Value>,
    log_level: Option<Value>,
    log_file: Option<Value>,
}

impl Variables {
    /// Reads all variables.
    #[must_use]
    pub fn read(environment: &dyn Environment) -> Self {
        let read = |variable: Variable| variable.read(environment);
        Self {
            container: read(Variable::MemContainer),
            device: read(Variable::MemDev),
            unit: read(Variable::MemUnit),
            visible: read(Variable::NvidiaVisible).filter(|value| !value.raw().is_empty()),
            sliced: read(Variable::AliyunVisible),
            weight: read(Variable::Weight),
            core_percentage: read(Variable::CorePercentage),
            high_priority: read(Variable::HighPriority),
            disable: read(Variable::Disable),
            directory: read(Variable::Directory),
            keep_deep_bind: read(Variable::KeepDeepBind),
            log_level: read(Variable::LogLevel),
            log_file: read(Variable::LogFile),
        }
    }

    /// Returns whether a limit was requested, or expressly none.
    #[must_use]
    pub fn request_memory(&self) -> bool {
        self.container.is_some()
    }

    /// Returns `CGPU_DIR`, if it is set.
    ///
    /// # Errors
    /// It is not an absolute path.
    pub fn directory(&self) -> Result<Option<PathBuf>, Refusal> {
        let Some(value) = &self.directory else { return Ok(None) };
        let path = PathBuf::from(value.raw());
        if path.is_absolute() {
            return Ok(Some(path));
        }
        Err(value.refused(
            "an absolute path",
            "set it to the container's directory, or unset it for /run/cgpu",
        ))
    }

    /// Returns the log that `CGPU_LOG` and `CGPU_LOG_FILE` request, if they do.
    ///
    /// # Errors
    /// The level is unknown, or the file is no absolute path.
    pub fn log(&self) -> Result<Option<Log>, Refusal> {
        Log::of(self.log_level.as_ref(), self.log_file.as_ref())
    }

    /// Returns all visible GPUs without limits, for a container that only shares compute. Native
    /// GPUs are omitted.
    ///
    /// # Errors
    /// As for [`Variables::decide`].
    pub fn unlimited(&self, inventory: Inventory<'_>) -> Result<Settings, Refusal> {
        let visible = Visible::resolve(&GpuList::read(self.visible.clone())?, inventory)?;
        let sliced = GpuList::read(self.sliced.clone())?;
        let gpus = visible.gpus().filter(|(_, gpu)| visible.slices(&sliced, gpu)).take(GPUS);
        let unlimited = |(position, gpu): (usize, GpuInfo)| GpuLimit {
            uuid: gpu.uuid,
            total: gpu.total,
            limit: Bytes::ZERO,
            ordinal: u32::try_from(position).unwrap_or(u32::MAX),
        };
        let gpus = gpus.map(unlimited).collect();
        Ok(Settings { gpus, name: None, weight: 1, core_percentage: None, high_priority: false })
    }

    /// Returns the limits of these GPUs.
    ///
    /// # Errors
    /// The first value that cannot be parsed or does not fit the GPUs.
    pub fn decide(&self, inventory: Inventory<'_>) -> Result<Decision, Refusal> {
        let Some(container) = &self.container else { return Ok(Decision::Off(Reason::NoLimit)) };
        if self.is_disabled()? {
            return Ok(Decision::Off(Reason::Disabled));
        }
        let amounts = Amounts::read(container.clone())?;
        if amounts.has_zero() {
            return Ok(Decision::Off(Reason::NoLimit));
        }
        self.directory()?;
        self.log()?;
        self.keeps_deep_bind()?;
        let measure = Measure::read(self.device.clone(), self.unit.clone())?;
        let weight =
            number(self.weight.as_ref(), 1..=25, "correct it, or unset it for 1")?.unwrap_or(1);
        let core_percentage =
            number(self.core_percentage.as_ref(), 1..=100, "correct or unset it")?;
        let high_priority =
            number(self.high_priority.as_ref(), 0..=1, "set 1 for high priority, or unset it")?
                == Some(1);
        let gpus = self.gpus(&amounts, &measure, inventory)?;
        if gpus.is_empty() {
            return Ok(Decision::Off(Reason::NoGpus));
        }
        Ok(Decision::On(Settings { gpus, name: None, weight, core_percentage, high_priority }))
    }

    /// Returns whether `CGPU_DISABLE` disables cgpu.
    ///
    /// # Errors
    /// It is neither true nor false.
    pub fn is_disabled(&self) -> Result<bool, Refusal> {
        switch(
            self.disable.as_ref(),
            "`true` or `1` to switch cgpu off, `false` or `0` to leave it on",
        )
    }

    /// Returns whether `CGPU_KEEP_DEEPBIND` keeps `RTLD_DEEPBIND`.
    ///
    /// # Errors
    /// It is neither true nor false.
    pub fn keeps_deep_bind(&self) -> Result<bool, Refusal> {
        switch(
            self.keep_deep_bind.as_ref(),
            "`true` or `1` to keep RTLD_DEEPBIND, `false` or `0` to clear it",
        )
    }

    fn gpus(
        &self,
        amounts: &Amounts,
        measure: &Measure,
        inventory: Inventory<'_>,
    ) -> Result<Vec<GpuLimit>, Refusal> {
        let visible = Visible::resolve(&GpuList::read(self.visible.clone())?, inventory)?;
        let sliced = GpuList::read(self.sliced.clone())?;
        visible.check(&sliced, inventory.complete)?;
        for list in [Some(amounts), measure.shares()].into_iter().flatten() {
            match &visible {
                Visible::Ordered(ordered) if list.len() > ordered.len() && !ordered.is_empty() => {
                    return Err(list.value().mismatched(
                        &format!("which has {} entries for {} GPUs", list.len(), ordered.len()),
                        "give at most one entry for each visible GPU (the last one repeats)",
                    ));
                }
                Visible::Unordered(_) if !list.is_uniform() => return Err(unordered(list.value())),
                _ => {}
            }
        }
        let mut limits = Vec::new();
        for (position, gpu) in visible.gpus() {
            if visible.slices(&sliced, &gpu) {
                limits.push(limit(amounts, measure, position, &gpu)?);
            }
        }
        if limits.len() > GPUS {
            return Err(Refusal::new(format!(
                "{} GPUs are to be sliced, expected at most {GPUS}; name fewer in {}",
                limits.len(),
                Variable::AliyunVisible.name()
            )));
        }
        Ok(limits)
    }
}

fn limit(
    amounts: &Amounts,
    measure: &Measure,
    position: usize,
    gpu: &GpuInfo,
) -> Result<GpuLimit, Refusal> {
    let amount = amounts.at(position);
    let limit = measure.limit(amount, position, gpu.total);
    match limit {
        Some(limit) if limit > Bytes::ZERO && limit <= gpu.total => {
            let ordinal = u32::try_from(position).unwrap_or(u32::MAX);
            Ok(GpuLimit { uuid: gpu.uuid, total: gpu.total, limit, ordinal })
        }
        Some(Bytes::ZERO) => Err(amounts.value().mismatched(
            &format!(
                "of which {amount} {} is less than 1 MiB of GPU {position} ({})",
                measure.noun(),
                mib(gpu.total)
            ),
            "raise it, or correct ALIYUN_COM_GPU_MEM_DEV",
        )),
        _ => {
            // An amount beyond any number has no size in MiB; an amount in MiB is in the message
            // already.
            let size = limit.filter(|_| !measure.is_mib()).map(|limit| format!("{}, ", mib(limit)));
            Err(amounts.value().mismatched(
                &format!(
                    "of which {amount} {} is {}more than GPU {position} has ({})",
                    measure.noun(),
                    size.unwrap_or_default(),
                    mib(gpu.total)
                ),
                // `cgpu run --mem` sets it in MiB.
                if measure.is_mib() {
                    "lower it (cgpu run: --mem)"
                } else {
                    "lower it, or set ALIYUN_COM_GPU_MEM_DEV to the GPU's memory in the same unit"
                },
            ))
        }
    }
}

/// Returns whether the program may keep `RTLD_DEEPBIND`: the variable requests it, and no limit is
/// set from outside.
#[must_use]
pub fn keeps_deep_bind(environment: &dyn Environment) -> bool {
    let requested = Variables::read(environment).keeps_deep_bind().unwrap_or(false);
    requested && !file::is_in_force(&environment.run_directory().join("limits"))
}

/// Returns whether a variable is true, if it is set.
fn switch(value: Option<&Value>, expected: &str) -> Result<bool, Refusal> {
    let Some(value) = value else { return Ok(false) };
    match value.text()? {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(value.refused(expected, "correct or unset it")),
    }
}

/// Returns a whole number within bounds, if the variable is set.
fn number(
    value: Option<&Value>,
    bounds: std::ops::RangeInclusive<u32>,
    remedy: &str,
) -> Result<Option<u32>, Refusal> {
    let Some(value) = value else { return Ok(None) };
    let number = whole(value.text()?)
        .and_then(|number| u32::try_from(number).ok())
        .filter(|number| bounds.contains(number));
    match number {
        Some(number) => Ok(Some(number)),
        None => Err(value.refused(
            &format!("a whole number from {} to {}", bounds.start(), bounds.end()),
            remedy,
        )),
    }
}

#[cfg(test)]
mod tests;
