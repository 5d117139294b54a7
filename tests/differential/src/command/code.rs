//! Code, which is loaded onto the GPU at its first use.

use serde::{Deserialize, Serialize};

/// The call that loads a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loader {
    /// `cuModuleLoadData`.
    Data,
    /// `cuModuleLoadDataEx`.
    DataEx,
    /// `cuModuleLoadFatBinary`.
    FatBinary,
}

/// One command. An image has a variable of `bytes` bytes and every function that is requested;
/// `function` is its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the type's comment describes the fields")]
pub enum CodeStep {
    /// Loads a module by one of the three calls.
    Load { context: u32, module: u32, bytes: u64, loader: Loader },
    /// `cuModuleUnload`.
    Unload { context: u32, module: u32 },
    /// `cuModuleGetFunction` and `cuLaunchKernel` of `count` functions from `function` on.
    Launch { context: u32, module: u32, function: u32, count: u32 },
    /// `cuModuleGetFunction` and `cuFuncLoad`.
    Ready { context: u32, module: u32, function: u32 },
    /// `cuLibraryLoadData`.
    LoadLibrary { library: u32, bytes: u64 },
    /// `cuLibraryUnload`.
    UnloadLibrary { library: u32 },
    /// `cuLibraryGetKernel` and `cuKernelGetFunction`.
    Fetch { context: u32, library: u32, function: u32 },
    /// `cuLibraryGetKernel` and `cuLaunchKernel` of the kernel itself, as the CUDA runtime does.
    LaunchKernel { context: u32, library: u32, function: u32 },
    /// `cuFuncLoad` of a function that was fetched.
    ReadyKernel { context: u32, library: u32, function: u32 },
}
