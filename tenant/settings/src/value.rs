//! A variable's value, and the message that refuses it.

use std::ffi::{CStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use crate::{Environment, Refusal};

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
    KeepDeepBind,
    LogLevel,
    LogFile,
}

impl Variable {
    const ALL: [Self; 13] = [
        Self::MemContainer,
        Self::MemDev,
        Self::MemUnit,
        Self::NvidiaVisible,
        Self::AliyunVisible,
        Self::Weight,
        Self::CorePercentage,
        Self::HighPriority,
        Self::Disable,
        Self::Directory,
        Self::KeepDeepBind,
        Self::LogLevel,
        Self::LogFile,
    ];

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
            Self::KeepDeepBind => c"CGPU_KEEP_DEEPBIND",
            Self::LogLevel => c"CGPU_LOG",
            Self::LogFile => c"CGPU_LOG_FILE",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.c_name().to_str().unwrap_or_default()
    }

    pub(crate) fn read(self, environment: &dyn Environment) -> Option<Value> {
        let raw = environment.variable(self.c_name())?;
        Some(Value { variable: self, raw })
    }
}

const PREFIX: &str = "ALIYUN_COM_GPU_";
/// Variables with this prefix that device plugins set for programs, and cgpu does not read.
const PLUGINS: [&str; 4] = ["MEM_IDX", "MEM_POD", "MEM_ASSIGNED", "MEM_ASSUME_TIME"];

/// Returns what is wrong with a variable's name, if it begins as cgpu's and none has it.
#[must_use]
pub fn misspelling(name: &str) -> Option<String> {
    let own = name.strip_prefix(PREFIX).filter(|rest| !PLUGINS.contains(rest))?;
    let known = || Variable::ALL.into_iter().filter_map(|one| one.name().strip_prefix(PREFIX));
    (!known().any(|known| known == own)).then(|| {
        let known = known().collect::<Vec<_>>().join(", ");
        let name = name.escape_default();
        format!("cgpu has no variable {name}, so it has no effect; {PREFIX} is followed by {known}")
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    variable: Variable,
    raw: OsString,
}

impl Value {
    #[cfg(test)]
    pub(crate) fn new(variable: Variable, raw: impl Into<OsString>) -> Self {
        Self { variable, raw: raw.into() }
    }

    pub(crate) fn raw(&self) -> &OsString {
        &self.raw
    }

    pub(crate) fn text(&self) -> Result<&str, Refusal> {
        self.raw.to_str().ok_or_else(|| self.refused("text", "correct or unset it"))
    }

    /// Refuses a malformed value: `NAME is <value>, expected <expected>; <remedy>`.
    pub(crate) fn refused(&self, expected: &str, remedy: &str) -> Refusal {
        Refusal::new(format!("{} is {self}, expected {expected}; {remedy}", self.variable.name()))
    }

    /// Refuses a well-formed value that does not fit the GPUs:
    /// `NAME is <value>, <finding>; <remedy>`.
    pub(crate) fn mismatched(&self, finding: &str, remedy: &str) -> Refusal {
        Refusal::new(format!("{} is {self}, {finding}; {remedy}", self.variable.name()))
    }
}

impl fmt::Display for Value {
    /// Formats the value quoted, escaped to one line, and truncated.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_LENGTH: usize = 64;
        if self.raw.is_empty() {
            return f.write_str("empty");
        }
        let text = self.raw.as_bytes().escape_ascii().to_string();
        match text.get(..MAX_LENGTH) {
            Some(start) if text.len() > MAX_LENGTH => write!(f, "`{start}`..."),
            _ => write!(f, "`{text}`"),
        }
    }
}
