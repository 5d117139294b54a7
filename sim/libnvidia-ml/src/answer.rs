//! Results of the simulated NVML's functions.

use cgpu_abi::nvml_types::nvmlReturn_t;
use cgpu_sim::Error;

use crate::argument::NullPointer;

pub(crate) type Answer<T = ()> = Result<T, Failure>;

/// An `nvmlReturn_t` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure(nvmlReturn_t);

macro_rules! failures {
    ($($name:ident = $result:ident;)*) => {$(
        pub(crate) const $name: Failure = Failure(nvmlReturn_t::$result);
    )*};
}

failures! {
    UNINITIALIZED = ERROR_UNINITIALIZED;
    INVALID_ARGUMENT = ERROR_INVALID_ARGUMENT;
    NO_PERMISSION = ERROR_NO_PERMISSION;
    OPERATING_SYSTEM = ERROR_OPERATING_SYSTEM;
    NOT_SUPPORTED = ERROR_NOT_SUPPORTED;
    NOT_FOUND = ERROR_NOT_FOUND;
    IN_USE = ERROR_IN_USE;
    INSUFFICIENT_SIZE = ERROR_INSUFFICIENT_SIZE;
    DRIVER_NOT_LOADED = ERROR_DRIVER_NOT_LOADED;
    ARGUMENT_VERSION_MISMATCH = ERROR_ARGUMENT_VERSION_MISMATCH;
    TIMEOUT = ERROR_TIMEOUT;
    UNKNOWN = ERROR_UNKNOWN;
}

impl From<NullPointer> for Failure {
    fn from(_: NullPointer) -> Self {
        INVALID_ARGUMENT
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::NoGpu => INVALID_ARGUMENT,
            Error::Settings(_) | Error::Segment(_) => DRIVER_NOT_LOADED,
            _ => UNKNOWN,
        }
    }
}

pub(crate) fn result(answer: Answer) -> nvmlReturn_t {
    match answer {
        Ok(()) => nvmlReturn_t::SUCCESS,
        Err(failure) => failure.0,
    }
}
