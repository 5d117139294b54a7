//! A variable's value, and the sentence that refuses it.

use std::ffi::{CStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use crate::{Environment, Refusal};

/// The variables that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Variable {
    MemContainer,
    MemDev,
    MemUnit,
    NvidiaVisible,
    AliyunVisible,
    Weight,
    CorePercentage,
    HighPriority,
    Disable,
    Directory,
    LogLevel,
    LogFile,
}

impl Variable {
    const fn c_name(self) -> &'static CStr {
        match self {
            Self::MemContainer => c"ALIYUN_COM_GPU_MEM_CONTAINER",
            Self::MemDev => c"ALIYUN_COM_GPU_MEM_DEV",
            Self::MemUnit => c"CGPU_MEM_UNIT",
            Self::NvidiaVisible => c"NVIDIA_VISIBLE_DEVICES",
            Self::AliyunVisible => c"ALIYUN_COM_GPU_VISIBLE_DEVICES",
            Self::Weight => c"ALIYUN_COM_GPU_SCHD_WEIGHT",
            Self::CorePercentage => c"ALIYUN_COM_GPU_CORE_PERCENTAGE",
            Self::HighPriority => c"ALIYUN_COM_GPU_HIGH_PRIO",
            Self::Disable => c"CGPU_DISABLE",
            Self::Directory => c"CGPU_DIR",
            Self::LogLevel => c"CGPU_LOG",
            Self::LogFile => c"CGPU_LOG_FILE",
        }
    }

    /// The variable's name.
    pub(crate) fn name(self) -> &'static str {
        self.c_name().to_str().unwrap_or_default()
    }

    /// Its value, if it is set.
    pub(crate) fn read(self, environment: &dyn Environment) -> Option<Value> {
        let raw = environment.variable(self.c_name())?;
        Some(Value { variable: self, raw })
    }
}

/// What a variable is set to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    variable: Variable,
    raw: OsString,
}

impl Value {
    /// A value as if it had been read.
    #[cfg(test)]
    pub(crate) fn new(variable: Variable, raw: impl Into<OsString>) -> Self {
        Self { variable, raw: raw.into() }
    }

    /// The bytes as they came.
    pub(crate) fn raw(&self) -> &OsString {
        &self.raw
    }

    /// The value as text.
    pub(crate) fn text(&self) -> Result<&str, Refusal> {
        self.raw.to_str().ok_or_else(|| self.refused("text", "correct or unset it"))
    }

    /// `NAME is <came>, expected <expected>; <remedy>`.
    pub(crate) fn refused(&self, expected: &str, remedy: &str) -> Refusal {
        Refusal::new(format!("{} is {self}, expected {expected}; {remedy}", self.variable.name()))
    }

    /// `NAME is <came>, <finding>; <remedy>`: the value is well-formed, but does not fit what is there.
    pub(crate) fn unfit(&self, finding: &str, remedy: &str) -> Refusal {
        Refusal::new(format!("{} is {self}, {finding}; {remedy}", self.variable.name()))
    }
}

impl fmt::Display for Value {
    /// Quoted, on one line whatever it holds, and not longer than a line has room for.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 64;
        if self.raw.is_empty() {
            return f.write_str("empty");
        }
        let text = self.raw.as_bytes().escape_ascii().to_string();
        match text.get(..SHOWN) {
            Some(start) if text.len() > SHOWN => write!(f, "`{start}`..."),
            _ => write!(f, "`{text}`"),
        }
    }
}
