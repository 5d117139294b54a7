//! The shim's log: `CGPU_LOG_FILE` names its file, `CGPU_LOG` how much goes into it.

use std::path::PathBuf;

use crate::Refusal;
use crate::value::Value;

/// The least severity that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// What was refused, and defects.
    Warn,
    /// How the process starts.
    Info,
    /// Allocations, contexts, and launches that do not find the gate open.
    Debug,
    /// Everything.
    Trace,
}

/// A log that was requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// The least severity in it.
    pub level: LogLevel,
    /// An absolute path.
    pub file: PathBuf,
}

impl Log {
    /// Reads the values of `CGPU_LOG` and `CGPU_LOG_FILE`. Without a file there is no log.
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
