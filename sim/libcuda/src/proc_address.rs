//! Flags and statuses of `cuGetProcAddress`. [`cgpu_abi::driver::look_up`] finds the function.
//!
//! Shared by the simulated and the null driver.

use cgpu_abi::driver::{DefaultStream, Lookup, look_up};
use cgpu_abi::types::*;

/// Returns the status that the caller gets with the pointer.
pub(crate) fn status(lookup: Lookup) -> CUdriverProcAddressQueryResult {
    match lookup {
        Lookup::Symbol(_) => CU_GET_PROC_ADDRESS_SUCCESS,
        Lookup::NotFound => CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
        Lookup::VersionTooLow => CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
    }
}

/// Returns what a driver of version `driver` returns for `name` to a caller built for `version`
/// (both such as 12040 for 12.4). A negative version is a very new one.
pub(crate) fn resolve(name: &str, version: c_int, stream: DefaultStream, driver: u32) -> Lookup {
    look_up(name, version.cast_unsigned(), stream, driver)
}

/// Returns the default stream that the flags select; `None` for unknown flags.
pub(crate) fn stream(flags: cuuint64_t) -> Option<DefaultStream> {
    const BOTH: CUdriverProcAddress_flags =
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    let flags = u32::try_from(flags).ok().filter(|flags| flags & !BOTH == 0)?;
    let per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM != 0;
    Some(if per_thread { DefaultStream::PerThread } else { DefaultStream::Legacy })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_flags_are_refused() {
        use DefaultStream::{Legacy, PerThread};
        for (flags, requested) in
            [(0, Some(Legacy)), (1, Some(Legacy)), (2, Some(PerThread)), (3, Some(PerThread))]
        {
            assert_eq!(stream(flags), requested);
        }
        assert_eq!(stream(4), None);
        assert_eq!(stream(1 << 32), None);
    }

    #[test]
    fn negative_version_is_a_very_new_one() {
        let newest = resolve("cuMemAlloc", c_int::MAX, DefaultStream::Legacy, 12_040);
        assert_eq!(resolve("cuMemAlloc", -1, DefaultStream::Legacy, 12_040), newest);
        assert!(matches!(newest, Lookup::Symbol(_)));
    }
}
