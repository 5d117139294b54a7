//! `cuGetProcAddress` as real drivers answer it (measured on 535 and 550, which need no card for that).
//!
//! A name stands for all versions of a function: the caller says which version of CUDA it was made for, and gets the newest
//! function that is not newer than that. A version that the driver itself does not know yet is not an error: the caller gets the
//! newest there is. Functions that take a default stream exist twice; a flag says which family is wanted. A caller that wants its
//! thread's own stream and was made before there were any is told that its version is too low; a name without such a family is the
//! same for both. A suffixed name (`cuMemAlloc_v2`) is not a name.
//!
//! Shared by the simulated and the null driver.

use std::collections::HashMap;
use std::sync::LazyLock;

use cgpu_abi::types::*;
use cgpu_abi::{DRIVER, Flavour};

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The function at this position of the table.
    Symbol(usize),
    /// The driver has no function of this name.
    NotFound,
    /// The driver has one, but only for a newer version than the caller's.
    VersionTooLow,
}

impl Answer {
    /// What the caller is told beside the pointer.
    pub(crate) fn status(self) -> CUdriverProcAddressQueryResult {
        match self {
            Answer::Symbol(_) => CU_GET_PROC_ADDRESS_SUCCESS,
            Answer::NotFound => CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
            Answer::VersionTooLow => CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
        }
    }
}

/// Positions in the table by the name that callers use; functions that no caller can ask for are left out.
static POSITIONS: LazyLock<HashMap<&str, Vec<usize>>> = LazyLock::new(|| {
    let mut positions: HashMap<&str, Vec<usize>> = HashMap::new();
    for (position, row) in DRIVER.iter().enumerate() {
        if row.flavour != Flavour::None && row.version != 0 {
            positions.entry(row.name).or_default().push(position);
        }
    }
    positions
});

/// What a driver of version `driver` hands out under `name` to a caller made for `version` (both as 12040 for 12.4).
pub(crate) fn resolve(name: &str, version: c_int, per_thread: bool, driver: u32) -> Answer {
    let of_thread = |position: &usize| DRIVER[*position].flavour != Flavour::Legacy;
    let known = || {
        let all = POSITIONS.get(name).into_iter().flatten().copied();
        all.filter(|&position| DRIVER[position].version <= driver)
    };
    let per_thread = per_thread && known().any(|position| of_thread(&position));
    let family = || known().filter(|position| of_thread(position) == per_thread);
    // A negative version is a very new one.
    let not_newer = family().filter(|&position| DRIVER[position].version <= version.cast_unsigned());
    match not_newer.max_by_key(|&position| DRIVER[position].version) {
        Some(position) => Answer::Symbol(position),
        None if family().next().is_some() => Answer::VersionTooLow,
        None => Answer::NotFound,
    }
}

/// Whether the flags ask for the calling thread's own default stream; `None` for flags that mean nothing.
pub(crate) fn per_thread(flags: cuuint64_t) -> Option<bool> {
    const BOTH: CUdriverProcAddress_flags =
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    let flags = u32::try_from(flags).ok().filter(|flags| flags & !BOTH == 0)?;
    Some(flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: &str, version: c_int, per_thread: bool, driver: u32) -> &'static str {
        match resolve(name, version, per_thread, driver) {
            Answer::Symbol(position) => DRIVER[position].symbol,
            Answer::NotFound => "not found",
            Answer::VersionTooLow => "version too low",
        }
    }

    #[test]
    fn the_newest_function_that_is_not_newer_than_the_caller() {
        assert_eq!(symbol("cuMemAlloc", 2000, false, 12040), "cuMemAlloc");
        assert_eq!(symbol("cuMemAlloc", 3010, false, 12040), "cuMemAlloc");
        assert_eq!(symbol("cuMemAlloc", 3020, false, 12040), "cuMemAlloc_v2");
        assert_eq!(symbol("cuMemAlloc", 12040, false, 12040), "cuMemAlloc_v2");
        assert_eq!(symbol("cuMemAlloc", -1, false, 12040), "cuMemAlloc_v2");
    }

    #[test]
    fn a_caller_newer_than_the_driver_gets_the_newest_there_is() {
        assert_eq!(symbol("cuCtxCreate", 12050, false, 12020), "cuCtxCreate_v3");
        assert_eq!(symbol("cuCtxCreate", 12050, false, 13000), "cuCtxCreate_v4");
        assert_eq!(symbol("cuGraphAddNode", 13040, false, 12040), "cuGraphAddNode_v2");
    }

    #[test]
    fn what_the_driver_does_not_have_yet_is_not_found() {
        assert_eq!(symbol("cuMemGetDefaultMemPool", 13000, false, 12040), "not found");
        assert_eq!(symbol("cuMemGetDefaultMemPool", 13000, false, 13000), "cuMemGetDefaultMemPool");
        assert_eq!(symbol("cuGetProcAddress", 12000, false, 10010), "not found");
    }

    #[test]
    fn what_the_caller_is_too_old_for_is_told_apart() {
        assert_eq!(symbol("cuMemCreate", 9000, false, 12040), "version too low");
        assert_eq!(symbol("cuMemAlloc", 0, false, 12040), "version too low");
        assert_eq!(symbol("cuNothing", 12000, false, 12040), "not found");
        assert_eq!(symbol("cuMemAlloc_v2", 12000, false, 12040), "not found");
        assert_eq!(symbol("", 0, false, 12040), "not found");
    }

    #[test]
    fn the_flag_chooses_the_family_where_there_are_two() {
        assert_eq!(symbol("cuLaunchKernel", 7000, false, 12040), "cuLaunchKernel");
        assert_eq!(symbol("cuLaunchKernel", 7000, true, 12040), "cuLaunchKernel_ptsz");
        assert_eq!(symbol("cuLaunchKernel", 4000, true, 12040), "version too low");
        assert_eq!(symbol("cuMemcpyHtoD", 12000, true, 12040), "cuMemcpyHtoD_v2_ptds");
        assert_eq!(symbol("cuMemAlloc", 12000, true, 12040), "cuMemAlloc_v2");
    }

    #[test]
    fn the_driver_routes_its_own_lookups() {
        assert_eq!(symbol("cuGetProcAddress", 11030, false, 12040), "cuGetProcAddress");
        assert_eq!(symbol("cuGetProcAddress", 12000, false, 12040), "cuGetProcAddress_v2");
    }

    #[test]
    fn flags_are_two_bits() {
        assert_eq!(per_thread(0), Some(false));
        assert_eq!(per_thread(1), Some(false));
        assert_eq!(per_thread(2), Some(true));
        assert_eq!(per_thread(3), Some(true));
        assert_eq!(per_thread(4), None);
        assert_eq!(per_thread(1 << 32), None);
    }
}
