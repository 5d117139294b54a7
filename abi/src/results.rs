//! Results: for the driver and for NVML, a table of code, name and the library's message.

use core::ffi::{CStr, c_uint};

/// Defines a result type with its constants and its two texts.
macro_rules! results {
    ($(#[$meta:meta])* $type:ident {
        $($name:ident = $code:literal, $text:literal, $message:literal;)*
    }) => {
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[must_use]
        pub struct $type(pub c_uint);

        #[allow(missing_docs, reason = "the vendor's own names")]
        impl $type {
            $(pub const $name: $type = $type($code);)*
        }

        impl $type {
            /// Every result that has a name, in the order of the codes.
            pub const ALL: &'static [$type] = &[$($type($code)),*];

            /// Returns whether the call succeeded.
            #[must_use]
            pub const fn is_success(self) -> bool {
                self.0 == 0
            }

            /// Returns the vendor's name; `None` for a code without one.
            #[must_use]
            pub const fn name(self) -> Option<&'static CStr> {
                match self.0 {
                    $($code => Some(c_str(concat!($text, "\0"))),)*
                    _ => None,
                }
            }

            /// Returns the library's message; `None` for a code without one.
            #[must_use]
            pub const fn description(self) -> Option<&'static CStr> {
                match self.0 {
                    $($code => Some(c_str(concat!($message, "\0"))),)*
                    _ => None,
                }
            }
        }

        impl core::fmt::Debug for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(&name.to_string_lossy()),
                    None => write!(f, concat!(stringify!($type), "({})"), self.0),
                }
            }
        }

        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Debug::fmt(self, f)
            }
        }
    };
}

/// Converts a text that ends in NUL to a C string.
const fn c_str(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the text of a result contains a NUL"),
    }
}

results! {
/// Result of a driver call.
///
/// The messages are those of the CUDA 13 runtime, which shares the codes; three codes that it lacks
/// (47, 202, 916) have cgpu's own.
CUresult {
    SUCCESS = 0, "CUDA_SUCCESS", "no error";
    ERROR_INVALID_VALUE = 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument";
    ERROR_OUT_OF_MEMORY = 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory";
    ERROR_NOT_INITIALIZED = 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error";
    ERROR_DEINITIALIZED = 4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down";
    ERROR_PROFILER_DISABLED = 5, "CUDA_ERROR_PROFILER_DISABLED", "profiler disabled while using external profiling tool";
    ERROR_PROFILER_NOT_INITIALIZED = 6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED", "profiler not initialized: call cudaProfilerInitialize()";
    ERROR_PROFILER_ALREADY_STARTED = 7, "CUDA_ERROR_PROFILER_ALREADY_STARTED", "profiler already started";
    ERROR_PROFILER_ALREADY_STOPPED = 8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED", "profiler already stopped";
    ERROR_STUB_LIBRARY = 34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library";
    ERROR_CALL_REQUIRES_NEWER_DRIVER = 36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "API call is not supported in the installed CUDA driver";
    ERROR_DEVICE_UNAVAILABLE = 46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable";
    ERROR_MULTICAST_RESOURCE_FULL = 47, "CUDA_ERROR_MULTICAST_RESOURCE_FULL", "no multicast resources are left";
    ERROR_NO_DEVICE = 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected";
    ERROR_INVALID_DEVICE = 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal";
    ERROR_DEVICE_NOT_LICENSED = 102, "CUDA_ERROR_DEVICE_NOT_LICENSED", "device doesn't have valid Grid license";
    ERROR_INVALID_IMAGE = 200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid";
    ERROR_INVALID_CONTEXT = 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context";
    ERROR_CONTEXT_ALREADY_CURRENT = 202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT", "context is already current";
    ERROR_MAP_FAILED = 205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed";
    ERROR_UNMAP_FAILED = 206, "CUDA_ERROR_UNMAP_FAILED", "unmapping of buffer object failed";
    ERROR_ARRAY_IS_MAPPED = 207, "CUDA_ERROR_ARRAY_IS_MAPPED", "array is mapped";
    ERROR_ALREADY_MAPPED = 208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped";
    ERROR_NO_BINARY_FOR_GPU = 209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device";
    ERROR_ALREADY_ACQUIRED = 210, "CUDA_ERROR_ALREADY_ACQUIRED", "resource already acquired";
    ERROR_NOT_MAPPED = 211, "CUDA_ERROR_NOT_MAPPED", "resource not mapped";
    ERROR_NOT_MAPPED_AS_ARRAY = 212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY", "resource not mapped as array";
    ERROR_NOT_MAPPED_AS_POINTER = 213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER", "resource not mapped as pointer";
    ERROR_ECC_UNCORRECTABLE = 214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered";
    ERROR_UNSUPPORTED_LIMIT = 215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "limit is not supported on this architecture";
    ERROR_CONTEXT_ALREADY_IN_USE = 216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", "exclusive-thread device already in use by a different thread";
    ERROR_PEER_ACCESS_UNSUPPORTED = 217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices";
    ERROR_INVALID_PTX = 218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed";
    ERROR_INVALID_GRAPHICS_CONTEXT = 219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", "invalid OpenGL or DirectX context";
    ERROR_NVLINK_UNCORRECTABLE = 220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected during the execution";
    ERROR_JIT_COMPILER_NOT_FOUND = 221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found";
    ERROR_UNSUPPORTED_PTX_VERSION = 222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain.";
    ERROR_JIT_COMPILATION_DISABLED = 223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "PTX JIT compilation was disabled";
    ERROR_UNSUPPORTED_EXEC_AFFINITY = 224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", "the provided execution affinity is not supported";
    ERROR_UNSUPPORTED_DEVSIDE_SYNC = 225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", "the provided PTX contains unsupported call to cudaDeviceSynchronize";
    ERROR_CONTAINED = 226, "CUDA_ERROR_CONTAINED", "Invalid access of peer GPU memory over nvlink or a hardware error";
    ERROR_INSUFFICIENT_LOADER_VERSION = 227, "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION", "Loader version is insufficient for fatbin";
    ERROR_INVALID_SOURCE = 300, "CUDA_ERROR_INVALID_SOURCE", "device kernel image is invalid";
    ERROR_FILE_NOT_FOUND = 301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found";
    ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND = 302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "shared object symbol not found";
    ERROR_SHARED_OBJECT_INIT_FAILED = 303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "shared object initialization failed";
    ERROR_OPERATING_SYSTEM = 304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS";
    ERROR_INVALID_HANDLE = 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle";
    ERROR_ILLEGAL_STATE = 401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state";
    ERROR_LOSSY_QUERY = 402, "CUDA_ERROR_LOSSY_QUERY", "attempted introspection would be semantically lossy";
    ERROR_NOT_FOUND = 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found";
    ERROR_NOT_READY = 600, "CUDA_ERROR_NOT_READY", "device not ready";
    ERROR_ILLEGAL_ADDRESS = 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered";
    ERROR_LAUNCH_OUT_OF_RESOURCES = 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch";
    ERROR_LAUNCH_TIMEOUT = 702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated";
    ERROR_LAUNCH_INCOMPATIBLE_TEXTURING = 703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", "launch uses incompatible texturing mode";
    ERROR_PEER_ACCESS_ALREADY_ENABLED = 704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled";
    ERROR_PEER_ACCESS_NOT_ENABLED = 705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled";
    ERROR_PRIMARY_CONTEXT_ACTIVE = 708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process";
    ERROR_CONTEXT_IS_DESTROYED = 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed";
    ERROR_ASSERT = 710, "CUDA_ERROR_ASSERT", "device-side assert triggered";
    ERROR_TOO_MANY_PEERS = 711, "CUDA_ERROR_TOO_MANY_PEERS", "peer mapping resources exhausted";
    ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped";
    ERROR_HOST_MEMORY_NOT_REGISTERED = 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region";
    ERROR_HARDWARE_STACK_ERROR = 714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error";
    ERROR_ILLEGAL_INSTRUCTION = 715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered";
    ERROR_MISALIGNED_ADDRESS = 716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address";
    ERROR_INVALID_ADDRESS_SPACE = 717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "operation not supported on global/shared address space";
    ERROR_INVALID_PC = 718, "CUDA_ERROR_INVALID_PC", "invalid program counter";
    ERROR_LAUNCH_FAILED = 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure";
    ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch";
    ERROR_TENSOR_MEMORY_LEAK = 721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", "tensor memory not completely freed";
    ERROR_NOT_PERMITTED = 800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted";
    ERROR_NOT_SUPPORTED = 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported";
    ERROR_SYSTEM_NOT_READY = 802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized";
    ERROR_SYSTEM_DRIVER_MISMATCH = 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination";
    ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility was attempted on non supported HW";
    ERROR_MPS_CONNECTION_FAILED = 805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "MPS client failed to connect to the MPS control daemon or the MPS server";
    ERROR_MPS_RPC_FAILURE = 806, "CUDA_ERROR_MPS_RPC_FAILURE", "the remote procedural call between the MPS server and the MPS client failed";
    ERROR_MPS_SERVER_NOT_READY = 807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "MPS server is not ready to accept new MPS client requests";
    ERROR_MPS_MAX_CLIENTS_REACHED = 808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "the hardware resources required to create MPS client have been exhausted";
    ERROR_MPS_MAX_CONNECTIONS_REACHED = 809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "the hardware resources required to support device connections have been exhausted";
    ERROR_MPS_CLIENT_TERMINATED = 810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "the MPS client has been terminated by the server";
    ERROR_CDP_NOT_SUPPORTED = 811, "CUDA_ERROR_CDP_NOT_SUPPORTED", "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it";
    ERROR_CDP_VERSION_MISMATCH = 812, "CUDA_ERROR_CDP_VERSION_MISMATCH", "unsupported interaction between different versions of CUDA Dynamic Parallelism";
    ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing";
    ERROR_STREAM_CAPTURE_INVALIDATED = 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture";
    ERROR_STREAM_CAPTURE_MERGE = 902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences";
    ERROR_STREAM_CAPTURE_UNMATCHED = 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began";
    ERROR_STREAM_CAPTURE_UNJOINED = 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work";
    ERROR_STREAM_CAPTURE_ISOLATION = 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream";
    ERROR_STREAM_CAPTURE_IMPLICIT = 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream";
    ERROR_CAPTURED_EVENT = 907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream";
    ERROR_STREAM_CAPTURE_WRONG_THREAD = 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread";
    ERROR_TIMEOUT = 909, "CUDA_ERROR_TIMEOUT", "wait operation timed out";
    ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update";
    ERROR_EXTERNAL_DEVICE = 911, "CUDA_ERROR_EXTERNAL_DEVICE", "an async error has occured in external entity outside of CUDA";
    ERROR_INVALID_CLUSTER_SIZE = 912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "a kernel launch error has occurred due to cluster misconfiguration";
    ERROR_FUNCTION_NOT_LOADED = 913, "CUDA_ERROR_FUNCTION_NOT_LOADED", "the function handle is not loaded when calling an API that requires a loaded function";
    ERROR_INVALID_RESOURCE_TYPE = 914, "CUDA_ERROR_INVALID_RESOURCE_TYPE", "one or more resources passed in are not valid resource types for the operation";
    ERROR_INVALID_RESOURCE_CONFIGURATION = 915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "one or more resources are insufficient or non-applicable for the operation";
    ERROR_KEY_ROTATION = 916, "CUDA_ERROR_KEY_ROTATION", "key rotation is in progress";
    ERROR_STREAM_DETACHED = 917, "CUDA_ERROR_STREAM_DETACHED", "API call not permitted since the green context associated with the stream has been destroyed";
    ERROR_GRAPH_RECAPTURE_FAILURE = 918, "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE", "recapturing to the source graph failed and had to be terminated";
    ERROR_FABRIC_NOT_READY = 919, "CUDA_ERROR_FABRIC_NOT_READY", "GPU fabric is not ready within the probe wait budget; application may retry (see CUDA_FABRIC_INIT_TIMEOUT_MS)";
    ERROR_UNKNOWN = 999, "CUDA_ERROR_UNKNOWN", "unknown error";
}}

results! {
/// Result of an NVML call.
nvmlReturn_t {
    SUCCESS = 0, "NVML_SUCCESS", "Success";
    ERROR_UNINITIALIZED = 1, "NVML_ERROR_UNINITIALIZED", "Uninitialized";
    ERROR_INVALID_ARGUMENT = 2, "NVML_ERROR_INVALID_ARGUMENT", "Invalid Argument";
    ERROR_NOT_SUPPORTED = 3, "NVML_ERROR_NOT_SUPPORTED", "Not Supported";
    ERROR_NO_PERMISSION = 4, "NVML_ERROR_NO_PERMISSION", "Insufficient Permissions";
    ERROR_ALREADY_INITIALIZED = 5, "NVML_ERROR_ALREADY_INITIALIZED", "Already Initialized";
    ERROR_NOT_FOUND = 6, "NVML_ERROR_NOT_FOUND", "Not Found";
    ERROR_INSUFFICIENT_SIZE = 7, "NVML_ERROR_INSUFFICIENT_SIZE", "Insufficient Size";
    ERROR_INSUFFICIENT_POWER = 8, "NVML_ERROR_INSUFFICIENT_POWER", "Insufficient External Power";
    ERROR_DRIVER_NOT_LOADED = 9, "NVML_ERROR_DRIVER_NOT_LOADED", "Driver Not Loaded";
    ERROR_TIMEOUT = 10, "NVML_ERROR_TIMEOUT", "Timeout";
    ERROR_IRQ_ISSUE = 11, "NVML_ERROR_IRQ_ISSUE", "Interrupt Request Issue";
    ERROR_LIBRARY_NOT_FOUND = 12, "NVML_ERROR_LIBRARY_NOT_FOUND", "NVML Shared Library Not Found";
    ERROR_FUNCTION_NOT_FOUND = 13, "NVML_ERROR_FUNCTION_NOT_FOUND", "Function Not Found";
    ERROR_CORRUPTED_INFOROM = 14, "NVML_ERROR_CORRUPTED_INFOROM", "Corrupted infoROM";
    ERROR_GPU_IS_LOST = 15, "NVML_ERROR_GPU_IS_LOST", "GPU is lost";
    ERROR_RESET_REQUIRED = 16, "NVML_ERROR_RESET_REQUIRED", "GPU requires restart";
    ERROR_OPERATING_SYSTEM = 17, "NVML_ERROR_OPERATING_SYSTEM", "The operating system has blocked the request.";
    ERROR_LIB_RM_VERSION_MISMATCH = 18, "NVML_ERROR_LIB_RM_VERSION_MISMATCH", "RM has detected an NVML/RM version mismatch.";
    ERROR_IN_USE = 19, "NVML_ERROR_IN_USE", "In use by another client";
    ERROR_MEMORY = 20, "NVML_ERROR_MEMORY", "Insufficient Memory";
    ERROR_NO_DATA = 21, "NVML_ERROR_NO_DATA", "No data";
    ERROR_VGPU_ECC_NOT_SUPPORTED = 22, "NVML_ERROR_VGPU_ECC_NOT_SUPPORTED", "vGPU ECC mode is not supported";
    ERROR_INSUFFICIENT_RESOURCES = 23, "NVML_ERROR_INSUFFICIENT_RESOURCES", "Insufficient resources";
    ERROR_FREQ_NOT_SUPPORTED = 24, "NVML_ERROR_FREQ_NOT_SUPPORTED", "Requested frequency is not supported";
    ERROR_ARGUMENT_VERSION_MISMATCH = 25, "NVML_ERROR_ARGUMENT_VERSION_MISMATCH", "Version of the argument does not match";
    ERROR_DEPRECATED = 26, "NVML_ERROR_DEPRECATED", "Deprecated";
    ERROR_NOT_READY = 27, "NVML_ERROR_NOT_READY", "Not ready";
    ERROR_GPU_NOT_FOUND = 28, "NVML_ERROR_GPU_NOT_FOUND", "GPU not found";
    ERROR_INVALID_STATE = 29, "NVML_ERROR_INVALID_STATE", "Invalid state";
    ERROR_RESET_TYPE_NOT_SUPPORTED = 30, "NVML_ERROR_RESET_TYPE_NOT_SUPPORTED", "Reset type is not supported";
    ERROR_UNKNOWN = 999, "NVML_ERROR_UNKNOWN", "Unknown Error";
}}
