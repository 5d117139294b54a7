//! The shim's log: `CGPU_LOG_FILE` is its file, `CGPU_LOG` its level.

use std::path::PathBuf;

use crate::Refusal;
use crate::value::Value;

/// The lowest severity that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Refusals and defects.
    Warn,
    /// The start of the process.
    Info,
    /// Allocations, contexts, and launches on the slow path.
    Debug,
    /// Everything.
    Trace,
}

/// A log that was requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// The lowest severity in it.
    pub level: LogLevel,
    /// An absolute path.
    pub file: PathBuf,
}

impl Log {
    /// Reads the values of `CGPU_LOG` and `CGPU_LOG_FILE`. Returns `None` without a file.
    pub(crate) fn of(level: Option<&Value>, file: Option<&Value>) -> Result<Option<Self>, Refusal> {
        let level = level.map_or(Ok(LogLevel::Info), |level| match level.text()? {
            "warn" => Ok(LogLevel::Warn),
            "info" => Ok(LogLevel::Info),
            "debug" => Ok(LogLevel::Debug),
            "trace" => Ok(LogLevel::Trace),
            _ => Err(level.refused(
                "`warn`, `info`, `debug` or `trace`",
                "set one of these, or unset it for info",
            )),
        })?;
        let Some(value) = file else { return Ok(None) };
        let file = PathBuf::from(value.raw());
        if !file.is_absolute() {
            return Err(value.refused("an absolute path", "correct it, or unset it to log nothing"));
        }
        Ok(Some(Self { level, file }))
    }
}
