//! Launches.

use cgpu_abi::types::*;
use cgpu_sim::machine::Launch;

use crate::answer::{
    Answer, COOPERATIVE_LAUNCH_TOO_LARGE, INVALID_HANDLE, INVALID_VALUE, LAUNCH_OUT_OF_RESOURCES,
};
use crate::argument::{In, Out};
use crate::attribute;
use crate::call::Call;
use crate::driver::count;
use crate::function;

/// The most threads of a block.
const THREADS: u64 = 1024;

/// What is launched, and where.
#[derive(Clone, Copy)]
struct Shape {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: CUstream,
    cooperative: bool,
}

/// The product of three dimensions, none of them 0.
fn volume(dimensions: [c_uint; 3]) -> Answer<u64> {
    let [x, y, z] = dimensions.map(u64::from);
    // Two factors are below 2^32 each; the third one could overflow only if it is not one of a grid's (65535 at most).
    x.checked_mul(y).and_then(|xy| xy.checked_mul(z)).filter(|&volume| volume > 0).ok_or(INVALID_VALUE)
}

fn launch(call: &Call, f: CUfunction, shape: Shape) -> Answer {
    if f.is_null() {
        return Err(INVALID_HANDLE);
    }
    let driver = call.driver()?;
    let function = function::find(driver, f)?;
    crate::call::note("kernel", || function.name.to_string_lossy().into_owned());
    let (stream, context) = driver.stream(shape.stream, call.per_thread)?;
    if context.id != function.context.id {
        return Err(INVALID_HANDLE);
    }
    let (blocks, threads) = (volume(shape.grid)?, volume(shape.block)?);
    let spec = &driver.machine.cards()[context.card];
    let value = |attrib| attribute::value(attrib, spec, context.card).unwrap_or(0);
    if threads > THREADS
        || count(shape.shared)? > count(value(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN))?
    {
        return Err(INVALID_VALUE);
    }
    let footprint = spec
        .footprint(blocks, threads, u64::from(shape.shared), function.registers(spec)?)
        .ok_or(LAUNCH_OUT_OF_RESOURCES)?;
    let footprint = match shape.cooperative {
        // All blocks must be on the card at once.
        true if !footprint.fits_at_once() => return Err(COOPERATIVE_LAUNCH_TOO_LARGE),
        true => footprint.cooperative(),
        false => footprint,
    };
    driver.machine.launch(stream, Launch { kernel: function.behaviour, footprint })?;
    Ok(())
}

pub(crate) fn cuLaunchKernel(
    call: &Call,
    f: CUfunction,
    grid_dim_x: c_uint,
    grid_dim_y: c_uint,
    grid_dim_z: c_uint,
    block_dim_x: c_uint,
    block_dim_y: c_uint,
    block_dim_z: c_uint,
    shared_mem_bytes: c_uint,
    stream: CUstream,
    _kernel_params: Out<*mut c_void>,
    _extra: Out<*mut c_void>,
) -> Answer {
    let shape = Shape {
        grid: [grid_dim_x, grid_dim_y, grid_dim_z],
        block: [block_dim_x, block_dim_y, block_dim_z],
        shared: shared_mem_bytes,
        stream,
        cooperative: false,
    };
    launch(call, f, shape)
}
pub(crate) use cuLaunchKernel as cuLaunchKernel_ptsz;

pub(crate) fn cuLaunchCooperativeKernel(
    call: &Call,
    f: CUfunction,
    grid_dim_x: c_uint,
    grid_dim_y: c_uint,
    grid_dim_z: c_uint,
    block_dim_x: c_uint,
    block_dim_y: c_uint,
    block_dim_z: c_uint,
    shared_mem_bytes: c_uint,
    stream: CUstream,
    _kernel_params: Out<*mut c_void>,
) -> Answer {
    let shape = Shape {
        grid: [grid_dim_x, grid_dim_y, grid_dim_z],
        block: [block_dim_x, block_dim_y, block_dim_z],
        shared: shared_mem_bytes,
        stream,
        cooperative: true,
    };
    launch(call, f, shape)
}
pub(crate) use cuLaunchCooperativeKernel as cuLaunchCooperativeKernel_ptsz;

pub(crate) fn cuLaunchKernelEx(
    call: &Call,
    config: In<CUlaunchConfig>,
    f: CUfunction,
    _kernel_params: Out<*mut c_void>,
    _extra: Out<*mut c_void>,
) -> Answer {
    let config = config.read()?;
    // SAFETY: the configuration points to as many attributes as it says, valid as long as it is.
    let attributes: In<CUlaunchAttribute> =
        unsafe { crate::argument::Received::received(config.attrs.cast_const()) };
    let cooperative = attributes.read_all(count(config.num_attrs)?)?.iter().any(|attribute| {
        // SAFETY: every byte of the union may be read as a number, and this member is the one that the id names.
        attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && unsafe { attribute.value.cooperative } != 0
    });
    let shape = Shape {
        grid: [config.grid_dim_x, config.grid_dim_y, config.grid_dim_z],
        block: [config.block_dim_x, config.block_dim_y, config.block_dim_z],
        shared: config.shared_mem_bytes,
        stream: config.stream,
        cooperative,
    };
    launch(call, f, shape)
}
pub(crate) use cuLaunchKernelEx as cuLaunchKernelEx_ptsz;
