//! Code, which comes onto the GPU with the first thing that needs it.

use serde::{Deserialize, Serialize};

/// By which call a module is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loader {
    /// `cuModuleLoadData`.
    Data,
    /// `cuModuleLoadDataEx`.
    DataEx,
    /// `cuModuleLoadFatBinary`.
    FatBinary,
}

/// One step. An image has a variable of so many bytes, and any function that is asked for; `function` is its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are said above")]
pub enum CodeStep {
    /// To be called `module`.
    Load { context: u32, module: u32, bytes: u64, loader: Loader },
    /// `cuModuleUnload`.
    Unload { context: u32, module: u32 },
    /// `cuModuleGetFunction`, `cuLaunchKernel`: of so many functions from `function` on.
    Launch { context: u32, module: u32, function: u32, count: u32 },
    /// `cuModuleGetFunction`, `cuFuncLoad`.
    Ready { context: u32, module: u32, function: u32 },
    /// `cuLibraryLoadData`, to be called `library`.
    LoadLibrary { library: u32, bytes: u64 },
    /// `cuLibraryUnload`.
    UnloadLibrary { library: u32 },
    /// `cuLibraryGetKernel`, `cuKernelGetFunction`.
    Fetch { context: u32, library: u32, function: u32 },
    /// `cuLibraryGetKernel`, `cuLaunchKernel` of the kernel itself, as a runtime does.
    LaunchKernel { context: u32, library: u32, function: u32 },
    /// `cuFuncLoad` of a function that was fetched.
    ReadyKernel { context: u32, library: u32, function: u32 },
}
