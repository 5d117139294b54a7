//! What a function answers: nothing more to say, or a code of the driver.

use cgpu_abi::types::CUresult;
use cgpu_sim::Error;

use crate::argument::NullPointer;

/// What a played function returns.
pub(crate) type Answer<T = ()> = Result<T, Failure>;

/// A code that is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) CUresult);

macro_rules! failures {
    ($($name:ident = $result:ident;)*) => {$(
        pub(crate) const $name: Failure = Failure(CUresult::$result);
    )*};
}

failures! {
    INVALID_VALUE = ERROR_INVALID_VALUE;
    OUT_OF_MEMORY = ERROR_OUT_OF_MEMORY;
    NOT_INITIALIZED = ERROR_NOT_INITIALIZED;
    NO_DEVICE = ERROR_NO_DEVICE;
    INVALID_DEVICE = ERROR_INVALID_DEVICE;
    INVALID_CONTEXT = ERROR_INVALID_CONTEXT;
    PEER_ACCESS_UNSUPPORTED = ERROR_PEER_ACCESS_UNSUPPORTED;
    PEER_ACCESS_NOT_ENABLED = ERROR_PEER_ACCESS_NOT_ENABLED;
    UNSUPPORTED_LIMIT = ERROR_UNSUPPORTED_LIMIT;
    FILE_NOT_FOUND = ERROR_FILE_NOT_FOUND;
    INVALID_HANDLE = ERROR_INVALID_HANDLE;
    NOT_FOUND = ERROR_NOT_FOUND;
    NOT_READY = ERROR_NOT_READY;
    CONTEXT_IS_DESTROYED = ERROR_CONTEXT_IS_DESTROYED;
    HOST_MEMORY_ALREADY_REGISTERED = ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    HOST_MEMORY_NOT_REGISTERED = ERROR_HOST_MEMORY_NOT_REGISTERED;
    LAUNCH_OUT_OF_RESOURCES = ERROR_LAUNCH_OUT_OF_RESOURCES;
    COOPERATIVE_LAUNCH_TOO_LARGE = ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    NOT_PERMITTED = ERROR_NOT_PERMITTED;
    INVALID_RESOURCE_TYPE = ERROR_INVALID_RESOURCE_TYPE;
    INVALID_RESOURCE_CONFIGURATION = ERROR_INVALID_RESOURCE_CONFIGURATION;
    OPERATING_SYSTEM = ERROR_OPERATING_SYSTEM;
    ILLEGAL_STATE = ERROR_ILLEGAL_STATE;
    LOSSY_QUERY = ERROR_LOSSY_QUERY;
    STREAM_CAPTURE_UNSUPPORTED = ERROR_STREAM_CAPTURE_UNSUPPORTED;
    STREAM_CAPTURE_INVALIDATED = ERROR_STREAM_CAPTURE_INVALIDATED;
    STREAM_CAPTURE_MERGE = ERROR_STREAM_CAPTURE_MERGE;
    STREAM_CAPTURE_UNMATCHED = ERROR_STREAM_CAPTURE_UNMATCHED;
    STREAM_CAPTURE_UNJOINED = ERROR_STREAM_CAPTURE_UNJOINED;
    STREAM_CAPTURE_ISOLATION = ERROR_STREAM_CAPTURE_ISOLATION;
    STREAM_CAPTURE_IMPLICIT = ERROR_STREAM_CAPTURE_IMPLICIT;
    CAPTURED_EVENT = ERROR_CAPTURED_EVENT;
    STREAM_CAPTURE_WRONG_THREAD = ERROR_STREAM_CAPTURE_WRONG_THREAD;
    GRAPH_EXEC_UPDATE_FAILURE = ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    NOT_SUPPORTED = ERROR_NOT_SUPPORTED;
    UNKNOWN = ERROR_UNKNOWN;
}

impl From<NullPointer> for Failure {
    fn from(_: NullPointer) -> Self {
        INVALID_VALUE
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::OutOfMemory | Error::Full(_) => OUT_OF_MEMORY,
            Error::NoGpu => INVALID_DEVICE,
            Error::NoContext => INVALID_CONTEXT,
            Error::NoStream | Error::NoEvent | Error::NotRecorded | Error::NoPool => INVALID_HANDLE,
            Error::NoAllocation | Error::NotShareable | Error::Invalid(_) => INVALID_VALUE,
            Error::Forked => NOT_INITIALIZED,
            Error::State(_) => ILLEGAL_STATE,
            Error::Unsupported(_) => NOT_SUPPORTED,
            Error::Settings(_) | Error::Segment(_) => NO_DEVICE,
            _ => UNKNOWN,
        }
    }
}
