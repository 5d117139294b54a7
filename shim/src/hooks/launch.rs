//! Launches: through the gate, which costs two loads and a branch while no GPU is contended.
//!
//! There is no guard against panics here: the open path cannot panic, and the slow path has its
//! own.

use core::slice;

use cgpu_abi::types::*;

use crate::gate::{self, Kernel, Launch};
use crate::{boundary, driver};

#[inline(always)]
fn kernel(function: CUfunction, grid: [c_uint; 3], block: [c_uint; 3]) -> Kernel {
    Kernel::new(function.0, grid, block)
}

#[inline(always)]
fn plane(width: c_int, height: c_int) -> [c_uint; 3] {
    [width.cast_unsigned(), height.cast_unsigned(), 1]
}

/// Defines functions by name, arguments, and the launch that they describe. With `$flavour`, the
/// names come in pairs: `$flavour` is [`Launch::LEGACY`] for the first, [`Launch::PER_THREAD`] for
/// the second.
macro_rules! launches {
    ($flavour:ident; $($legacy:ident, $per_thread:ident ($($arg:ident: $type:ty),* $(,)?)
        => $launch:expr;)*) => {
        launches! {$(
            $legacy($($arg: $type),*) => {
                const $flavour: Launch = Launch::LEGACY;
                $launch
            };
            $per_thread($($arg: $type),*) => {
                const $flavour: Launch = Launch::PER_THREAD;
                $launch
            };
        )*}
    };
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
                let function =
                    if gate::spend(&$launch) { driver::address::$symbol() } else { slow };
                // SAFETY: the program's own call.
                unsafe { function($($arg),*) }
            }

            // One call of one of several functions with the same arguments. The compiler then
            // leaves the arguments in place, in registers and on the stack, and emits a jump.
            let function = if gate::is_open() { driver::address::$symbol() } else { metered };
            // SAFETY: the program's own call.
            unsafe { function($($arg),*) }
        }
    )*};
}

pub(super) use launches;

launches! { FLAVOUR;
    cuLaunchKernel, cuLaunchKernel_ptsz(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint,
        shared: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) => Launch { kernel: kernel(function, [grid_x, grid_y, grid_z], [block_x, block_y, block_z]),
        stream, ..FLAVOUR };

    cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint,
        shared: c_uint, stream: CUstream, parameters: *mut *mut c_void,
    ) => Launch { kernel: kernel(function, [grid_x, grid_y, grid_z], [block_x, block_y, block_z]),
        stream, ..FLAVOUR };

    cuLaunchKernelEx, cuLaunchKernelEx_ptsz(
        config: *const CUlaunchConfig, function: CUfunction, parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) => {
        // SAFETY: null, or the program's own record, which the driver would read as well.
        unsafe { Launch::configured(config, function, FLAVOUR) }
    };
}

launches! {
    // Before CUDA 4: on the legacy stream by default. The block shape is a property of the
    // function, so blocks count as threads.
    cuLaunch(function: CUfunction) => Launch { kernel: kernel(function, [1; 3], [1; 3]),
        ..Launch::LEGACY };

    cuLaunchGrid(
        function: CUfunction, width: c_int, height: c_int,
    ) => Launch { kernel: kernel(function, plane(width, height), [1; 3]), ..Launch::LEGACY };

    cuLaunchGridAsync(
        function: CUfunction, width: c_int, height: c_int, stream: CUstream,
    ) => Launch { kernel: kernel(function, plane(width, height), [1; 3]), stream,
        ..Launch::LEGACY };
}

/// One kernel on several GPUs, each in its own stream: one launch on each.
pub(crate) unsafe fn cuLaunchCooperativeKernelMultiDevice(
    list: *mut CUDA_LAUNCH_PARAMS,
    count: c_uint,
    flags: c_uint,
) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuLaunchCooperativeKernelMultiDevice(list, count, flags) };
    if gate::is_open() || list.is_null() {
        return call();
    }
    boundary::guard(|| {
        // SAFETY: not null, and the program states that there are `count` elements.
        let parts = unsafe { slice::from_raw_parts(list.cast_const(), count as usize) };
        let launches = parts.iter().map(|part| {
            let grid = [part.grid_dim_x, part.grid_dim_y, part.grid_dim_z];
            let block = [part.block_dim_x, part.block_dim_y, part.block_dim_z];
            let kernel = kernel(part.function, grid, block);
            Launch { kernel, stream: part.stream, by_stream: true, ..Launch::LEGACY }
        });
        gate::enter_all(launches, call)
    })
}
