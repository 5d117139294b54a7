//! When code is loaded onto the GPU: with its module, or when a function is first used.
//!
//! `CUDA_MODULE_LOADING` selects it. The default is the first use, from CUDA 12.2. Loading takes
//! time and memory of the context; it can fail only if the GPU is full.

use std::sync::LazyLock;

use cgpu_abi::types::*;

use crate::version::CUDA;

/// The first version that can load lazily, and the first that does so by default.
const LAZY: u32 = 11_070;
const LAZY_BY_DEFAULT: u32 = 12_020;

static MODE: LazyLock<CUmoduleLoadingMode> =
    LazyLock::new(|| mode_of(std::env::var("CUDA_MODULE_LOADING").ok().as_deref(), *CUDA));

/// Returns the process's mode.
pub(crate) fn mode() -> CUmoduleLoadingMode {
    *MODE
}

/// Returns whether code is loaded with its module.
pub(crate) fn is_eager() -> bool {
    mode() == CU_MODULE_EAGER_LOADING
}

fn mode_of(variable: Option<&str>, version: u32) -> CUmoduleLoadingMode {
    match variable {
        _ if version < LAZY => CU_MODULE_EAGER_LOADING,
        Some("EAGER") => CU_MODULE_EAGER_LOADING,
        Some("LAZY") => CU_MODULE_LAZY_LOADING,
        _ if version < LAZY_BY_DEFAULT => CU_MODULE_EAGER_LOADING,
        _ => CU_MODULE_LAZY_LOADING,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loading_mode_follows_variable_and_version() {
        for (variable, version, mode) in [
            (None, 13_000, CU_MODULE_LAZY_LOADING),
            (Some("DEFAULT"), 12_020, CU_MODULE_LAZY_LOADING),
            (None, 12_000, CU_MODULE_EAGER_LOADING),
            (Some("LAZY"), 11_070, CU_MODULE_LAZY_LOADING),
            (Some("EAGER"), 13_000, CU_MODULE_EAGER_LOADING),
            (Some("LAZY"), 11_040, CU_MODULE_EAGER_LOADING),
        ] {
            assert_eq!(mode_of(variable, version), mode, "{variable:?} {version}");
        }
    }
}
