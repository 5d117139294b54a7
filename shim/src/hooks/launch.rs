//! Launches: through the gate, which costs two loads and a branch while nothing is contended.
//!
//! No border against panics here: the open path has nothing that could panic, and the slow path has its own.

use cgpu_abi::types::{CUfunction, CUlaunchConfig, CUresult, CUstream, c_uint, c_void};

use crate::driver;
use crate::gate::{self, Launch};

/// Each function: its name, its arguments, and what they say about the launch.
macro_rules! launches {
    ($($symbol:ident ($($arg:ident: $type:ty),* $(,)?) => $launch:expr;)*) => {$(
        /// Waits for the container's turn.
        #[inline(always)]
        #[allow(clippy::too_many_arguments, reason = "the driver's own")]
        pub(crate) unsafe fn $symbol($($arg: $type),*) -> CUresult {
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn slow($($arg: $type),*) -> CUresult {
                // SAFETY: the program's own call.
                gate::enter($launch, || unsafe { driver::$symbol($($arg),*) })
            }

            #[inline(never)]
            unsafe extern "C" fn metered($($arg: $type),*) -> CUresult {
                let function = if gate::spend(&$launch) { driver::address::$symbol() } else { slow };
                // SAFETY: the program's own call.
                unsafe { function($($arg),*) }
            }

            // One call, of one of several functions with the same arguments: so the compiler leaves the arguments where they are,
            // in registers and on the stack, and makes it a jump.
            let function = if gate::is_open() { driver::address::$symbol() } else { metered };
            // SAFETY: the program's own call.
            unsafe { function($($arg),*) }
        }
    )*};
}

launches! {
    cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) => Launch { function, grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared, stream, ..Launch::LEGACY };

    cuLaunchKernel_ptsz(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) => Launch { function, grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared, stream, ..Launch::PER_THREAD };

    cuLaunchCooperativeKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint, stream: CUstream, parameters: *mut *mut c_void,
    ) => Launch { function, grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared, stream, ..Launch::LEGACY };

    cuLaunchCooperativeKernel_ptsz(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint, stream: CUstream, parameters: *mut *mut c_void,
    ) => Launch { function, grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared, stream, ..Launch::PER_THREAD };

    cuLaunchKernelEx(
        config: *const CUlaunchConfig, function: CUfunction, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) => {
        // SAFETY: the program's own record.
        unsafe { Launch::configured(config, function, Launch::LEGACY) }
    };

    cuLaunchKernelEx_ptsz(
        config: *const CUlaunchConfig, function: CUfunction, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) => {
        // SAFETY: the program's own record.
        unsafe { Launch::configured(config, function, Launch::PER_THREAD) }
    };
}
