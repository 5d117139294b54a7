//! The rows of the tables.

/// How a symbol reaches the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The shim exports it, as a function of its own.
    Hook,
    /// The program gets the driver's own function. The row has its arguments, because the shim
    /// calls it or the simulator implements it.
    Call,
    /// The program gets the driver's own function. The row has no arguments.
    Pass,
}

/// What a function does that matters for sharing a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Starts a process's use of the driver.
    Starts,
    /// Returns functions.
    Routes,
    /// Takes GPU memory, or sets where it is taken from.
    Allocates,
    /// Frees GPU memory.
    Frees,
    /// Reports the size or use of memory, or the use of the GPU.
    Reports,
    /// Handles managed memory.
    Managed,
    /// Creates, destroys or changes a context.
    Context,
    /// Loads code or reads it.
    Module,
    /// Launches kernels, or work in stream order.
    Launches,
    /// Copies or fills memory.
    Copies,
    /// Creates or orders streams and events.
    Stream,
    /// Handles memory or synchronisation of other processes, GPUs or interfaces.
    External,
    /// None of these.
    Passes,
}

/// What the shim does about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Treatment {
    /// Charged to the container before the call, corrected after it; refused when it does not fit.
    Charged,
    /// The charge is refunded when the call has succeeded.
    Refunded,
    /// The answer shows the limit instead of the GPU.
    Virtualised,
    /// Returns `CUDA_ERROR_NOT_SUPPORTED` without a driver call, and is counted.
    Refused,
    /// Waits for the container's turn.
    Gated,
    /// Goes to the driver; the shim records what it means for the accounting.
    Tracked,
    /// Functions that it returns are replaced with hooks.
    Routed,
    /// Goes to the driver, and is counted.
    Counted,
    /// Goes to the library once the program has initialised it. Before, it returns
    /// `NVML_ERROR_UNINITIALIZED`, even if the shim has.
    Guarded,
    /// Goes to the driver without passing the shim.
    Passed,
}

/// The default stream that a symbol assumes, as in `cuGetProcAddress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavour {
    /// The stream that all threads share, or no stream.
    Legacy,
    /// The calling thread's own stream, for a call in stream order (`_ptsz`).
    PerThreadStream,
    /// The calling thread's own stream, for a call that waits (`_ptds`).
    PerThreadDefault,
    /// `cuGetProcAddress` does not return it.
    None,
}

/// One symbol of the CUDA driver.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The exported name.
    pub symbol: &'static str,
    /// The name under which `cuGetProcAddress` knows it.
    pub name: &'static str,
    /// Which of the functions of that name.
    pub flavour: Flavour,
    /// The first version for which `cuGetProcAddress` returns it, as 12040 for 12.4; 0: never.
    pub version: u32,
    /// The first header that has it from 11.7 on, as 1107; 0: no header has it.
    pub since: u32,
    /// How it reaches the program.
    pub kind: Kind,
    /// What it does.
    pub role: Role,
    /// What the shim does about it.
    pub treatment: Treatment,
    /// Whether the simulated driver implements it. Otherwise its export returns
    /// `CUDA_ERROR_NOT_SUPPORTED`.
    pub simulated: bool,
    /// Why it has this treatment.
    pub reason: &'static str,
}

impl Row {
    /// Returns whether the function takes GPU memory, or is refused because it would.
    #[must_use]
    pub fn takes_memory(&self) -> bool {
        matches!(self.treatment, Treatment::Charged | Treatment::Refused)
            || self.role == Role::Allocates
    }

    /// Returns whether a driver of a version (as 12040 for 12.4) exports the symbol: from the first
    /// version for which `cuGetProcAddress` returns it. Of the others, no driver exports those that
    /// are in headers, and all export the rest. This holds for 535 and 550 without exception.
    #[must_use]
    pub const fn is_exported_by(&self, driver: u32) -> bool {
        match (self.version, self.since) {
            (0, 0) => true,
            (0, _) => false,
            (version, _) => version <= driver,
        }
    }
}

/// One symbol of NVML.
#[derive(Clone, Copy, Debug)]
pub struct NvmlRow {
    /// The exported name.
    pub symbol: &'static str,
    /// The first header that has it from 12.0 on, as 1200; 0: no header has it.
    pub since: u32,
    /// How it reaches the program.
    pub kind: Kind,
    /// What it does.
    pub role: Role,
    /// What the shim does about it.
    pub treatment: Treatment,
    /// Whether the simulated NVML implements it. Otherwise its export returns
    /// `NVML_ERROR_NOT_SUPPORTED`.
    pub simulated: bool,
    /// Why it has this treatment.
    pub reason: &'static str,
}

/// Functions of NVML before CUDA 12.0, the first header that was compared: prefixes of names, and
/// their first version. From general knowledge; neither measured nor checked against release notes.
const NVML_BEFORE: &[(&str, u32)] = &[
    ("nvmlDeviceGetMemoryInfo_v2", 11_060),
    ("nvmlDeviceGetComputeRunningProcesses_v3", 11_060),
    ("nvmlDeviceGetGraphicsRunningProcesses_v3", 11_060),
    ("nvmlDeviceGetMPSComputeRunningProcesses_v3", 11_060),
    ("nvmlDeviceGetComputeRunningProcesses_v2", 11_000),
    ("nvmlDeviceGetGraphicsRunningProcesses_v2", 11_000),
    ("nvmlDeviceGetMPSComputeRunningProcesses", 11_000),
    ("nvmlGpm", 11_080),
    ("nvmlDeviceGetMig", 11_000),
    ("nvmlDeviceGetMaxMig", 11_000),
    ("nvmlDeviceSetMigMode", 11_000),
    ("nvmlDeviceIsMig", 11_000),
    ("nvmlDeviceGetDeviceHandleFromMig", 11_000),
    ("nvmlDeviceGetAttributes", 11_000),
    ("nvmlDeviceGetGpuInstance", 11_000),
    ("nvmlDeviceGetComputeInstance", 11_000),
    ("nvmlDeviceCreateGpuInstance", 11_000),
    ("nvmlGpuInstance", 11_000),
    ("nvmlComputeInstance", 11_000),
];

impl NvmlRow {
    /// Returns whether the NVML of a driver of a version (as 12040 for 12.4) exports the symbol:
    /// from the first header that has it. This holds for 535 and 550, except for two functions that
    /// 535 already has and two that neither has.
    #[must_use]
    pub fn is_exported_by(&self, driver: u32) -> bool {
        let before = NVML_BEFORE.iter().find(|(beginning, _)| self.symbol.starts_with(beginning));
        match (self.symbol, self.since, before) {
            ("nvmlDeviceCcuGetStreamState" | "nvmlDeviceCcuSetStreamState", ..) => false,
            ("nvmlDeviceGetLastBBXFlushTime" | "nvmlDeviceGetSramEccErrorStatus", ..) => {
                driver >= 12_020
            }
            (_, 0..=1200, None) => true,
            (_, 0..=1200, Some(&(_, version))) => version <= driver,
            (_, since, _) => since * 10 <= driver,
        }
    }
}

/// Translates the identifiers of a row.
macro_rules! word {
    (hook) => {
        $crate::Kind::Hook
    };
    (call) => {
        $crate::Kind::Call
    };
    (pass) => {
        $crate::Kind::Pass
    };
    (legacy) => {
        $crate::Flavour::Legacy
    };
    (ptsz) => {
        $crate::Flavour::PerThreadStream
    };
    (ptds) => {
        $crate::Flavour::PerThreadDefault
    };
    (none) => {
        $crate::Flavour::None
    };
    (simulated) => {
        true
    };
    (stub) => {
        false
    };
}
pub(crate) use word;

/// Defines the positions of a table's symbols and the types of its functions. Two rows of one
/// symbol do not compile.
macro_rules! views {
    ([$types:ident, $answer:ident] $($kind:ident $symbol:ident { $($name:tt)* }
        $role:ident $treatment:ident $simulated:ident $reason:literal
        $(($($args:tt)*) $(-> $ret:ty)?)?;)*) => {
        /// The position of each symbol in the table.
        #[allow(non_upper_case_globals, missing_docs, reason = "the vendor's own names")]
        pub mod index {
            #[allow(non_camel_case_types, reason = "the vendor's own names")]
            enum Position { $($symbol),* }
            $(pub const $symbol: usize = Position::$symbol as usize;)*
        }

        /// The type of each function whose row has arguments. For a refused function that is not
        /// simulated the type only has the result.
        #[allow(non_camel_case_types, missing_docs, reason = "the vendor's own names")]
        pub mod fns {
            use crate::$types::*;
            $($crate::row::function_type!([$answer] $symbol $(($($args)*) $(-> $ret)?)?);)*
        }
    };
}
pub(crate) use views;

/// Defines the type of one function; nothing for a row without arguments.
macro_rules! function_type {
    ([$answer:ident] $symbol:ident) => {};
    ([$answer:ident] $symbol:ident ($($arg:ident: $type:ty),*)) => {
        pub type $symbol = unsafe extern "C" fn($($arg: $type),*) -> $answer;
    };
    ([$answer:ident] $symbol:ident ($($arg:ident: $type:ty),*) -> $ret:ty) => {
        pub type $symbol = unsafe extern "C" fn($($arg: $type),*) -> $ret;
    };
}
pub(crate) use function_type;
