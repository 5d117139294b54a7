//! Launches.

use std::collections::BTreeMap;
use std::sync::Arc;

use cgpu_abi::types::*;
use cgpu_sim::machine::Launch;

use crate::answer::{
    Answer, COOPERATIVE_LAUNCH_TOO_LARGE, INVALID_HANDLE, INVALID_VALUE, LAUNCH_OUT_OF_RESOURCES,
    STREAM_CAPTURE_UNSUPPORTED,
};
use crate::argument::{In, Out};
use crate::attribute;
use crate::call::Call;
use crate::capture::{self, Lane};
use crate::driver::{Driver, count, lock};
use crate::function::{self, Function};
use crate::graph::Arguments;
use crate::graph::node::{Body, KernelNode};

/// Maximum number of threads in a block.
const THREADS: u64 = 1024;

/// Dimensions and options of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared: c_uint,
    pub(crate) cooperative: bool,
    /// Overrides the stream's priority.
    pub(crate) priority: Option<c_int>,
}

/// Arguments of a kernel: as a list, or as one buffer.
type Values = (Out<*mut c_void>, Out<*mut c_void>);

/// Returns the product of three dimensions; fails if it is 0 or overflows.
fn volume(dimensions: [c_uint; 3]) -> Answer<u64> {
    let [x, y, z] = dimensions.map(u64::from);
    x.checked_mul(y)
        .and_then(|xy| xy.checked_mul(z))
        .filter(|&volume| volume > 0)
        .ok_or(INVALID_VALUE)
}

/// Returns the machine's launch of a kernel. Loads the kernel's code, unless it is loaded.
pub(crate) fn prepare(driver: &Driver, function: &Function, shape: Shape) -> Answer<Launch> {
    let (blocks, threads) = (volume(shape.grid)?, volume(shape.block)?);
    let gpu = function.context.gpu;
    let spec = &driver.machine.gpus()[gpu];
    let value = |attrib| attribute::value(attrib, spec, gpu).unwrap_or(0);
    if threads > THREADS
        || count(shape.shared)?
            > count(value(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN))?
    {
        return Err(INVALID_VALUE);
    }
    let (shared, registers) = (u64::from(shape.shared), function.registers(spec)?);
    let footprint =
        spec.footprint(blocks, threads, shared, registers).ok_or(LAUNCH_OUT_OF_RESOURCES)?;
    let waves = spec.waves(blocks, threads, shared, registers).ok_or(LAUNCH_OUT_OF_RESOURCES)?;
    let footprint = match shape.cooperative {
        // All blocks must be resident at once.
        true if !footprint.fits_at_once() => return Err(COOPERATIVE_LAUNCH_TOO_LARGE),
        true => footprint.cooperative(),
        false => footprint,
    };
    let footprint = match shape.priority {
        Some(priority) => footprint.with_priority(priority),
        None => footprint,
    };
    function.load(driver)?;
    Ok(Launch { kernel: function.behaviour.in_waves(waves), footprint })
}

fn launch(
    call: &Call,
    f: CUfunction,
    shape: Shape,
    stream: CUstream,
    (values, extra): Values,
) -> Answer {
    if f.is_null() {
        return Err(INVALID_HANDLE);
    }
    let driver = call.driver()?;
    let function = function::find(driver, f)?;
    crate::call::note("kernel", || function.name.to_string_lossy().into_owned());
    let lane = capture::lane(driver, stream, call.per_thread)?;
    let context = match &lane {
        Lane::Gpu(_, context) => context,
        Lane::Graph(recorder) => &recorder.context,
    };
    if context.id != function.context.id {
        return Err(INVALID_HANDLE);
    }
    let launch = prepare(driver, &function, shape)?;
    let launch = match context.multiprocessors {
        Some(part) => launch.within(
            part,
            driver.machine.gpus()[context.gpu].model.multiprocessors,
            driver.machine.figures(),
        ),
        None => launch,
    };
    match lane {
        Lane::Gpu(stream, _) => drop(driver.machine.launch(stream, launch)?),
        Lane::Graph(recorder) => {
            let arguments = Arguments::taken(&function, values, extra)?.map(Arc::new);
            let node = KernelNode {
                function: f,
                kernel: CUkernel::NULL,
                context: Arc::clone(&function.context),
                shape,
                launch,
                arguments,
                attributes: BTreeMap::new(),
            };
            recorder.add(driver, Body::Kernel(node))?;
        }
    }
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
    kernel_params: Out<*mut c_void>,
    extra: Out<*mut c_void>,
) -> Answer {
    let shape = Shape {
        grid: [grid_dim_x, grid_dim_y, grid_dim_z],
        block: [block_dim_x, block_dim_y, block_dim_z],
        shared: shared_mem_bytes,
        cooperative: false,
        priority: None,
    };
    launch(call, f, shape, stream, (kernel_params, extra))
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
    kernel_params: Out<*mut c_void>,
) -> Answer {
    let shape = Shape {
        grid: [grid_dim_x, grid_dim_y, grid_dim_z],
        block: [block_dim_x, block_dim_y, block_dim_z],
        shared: shared_mem_bytes,
        cooperative: true,
        priority: None,
    };
    launch(call, f, shape, stream, (kernel_params, Out::NONE))
}
pub(crate) use cuLaunchCooperativeKernel as cuLaunchCooperativeKernel_ptsz;

pub(crate) fn cuLaunchKernelEx(
    call: &Call,
    config: In<CUlaunchConfig>,
    f: CUfunction,
    kernel_params: Out<*mut c_void>,
    extra: Out<*mut c_void>,
) -> Answer {
    let config = config.read()?;
    // SAFETY: the configuration gives the number of attributes; they are valid as long as it is.
    let attributes: In<CUlaunchAttribute> =
        unsafe { crate::argument::Received::received(config.attrs.cast_const()) };
    let mut cooperative = false;
    let mut priority = None;
    for attribute in attributes.read_all(count(config.num_attrs)?)? {
        match attribute.id {
            CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {
                // SAFETY: every bit pattern of the union is valid, and the id names this member.
                cooperative = unsafe { attribute.value.cooperative } != 0;
            }
            CU_LAUNCH_ATTRIBUTE_PRIORITY => {
                // SAFETY: as above.
                priority = Some(unsafe { attribute.value.priority });
            }
            _ => {}
        }
    }
    let shape = Shape {
        grid: [config.grid_dim_x, config.grid_dim_y, config.grid_dim_z],
        block: [config.block_dim_x, config.block_dim_y, config.block_dim_z],
        shared: config.shared_mem_bytes,
        cooperative,
        priority,
    };
    launch(call, f, shape, config.stream, (kernel_params, extra))
}
pub(crate) use cuLaunchKernelEx as cuLaunchKernelEx_ptsz;

/// Launches by the interface before CUDA 4: block and arguments were set on the function.
fn launch_shaped(
    call: &Call,
    f: CUfunction,
    (width, height): (c_int, c_int),
    stream: CUstream,
) -> Answer {
    let (block, shared) = *lock(&function::find(call.driver()?, f)?.block);
    let grid = [width.cast_unsigned(), height.cast_unsigned(), 1];
    let shape = Shape { grid, block, shared, cooperative: false, priority: None };
    launch(call, f, shape, stream, (Out::NONE, Out::NONE))
}

pub(crate) fn cuLaunch(call: &Call, f: CUfunction) -> Answer {
    launch_shaped(call, f, (1, 1), CUstream::NULL)
}

pub(crate) fn cuLaunchGrid(
    call: &Call,
    f: CUfunction,
    grid_width: c_int,
    grid_height: c_int,
) -> Answer {
    launch_shaped(call, f, (grid_width, grid_height), CUstream::NULL)
}

pub(crate) fn cuLaunchGridAsync(
    call: &Call,
    f: CUfunction,
    grid_width: c_int,
    grid_height: c_int,
    stream: CUstream,
) -> Answer {
    launch_shaped(call, f, (grid_width, grid_height), stream)
}

pub(crate) fn cuFuncSetBlockShape(
    call: &Call,
    hfunc: CUfunction,
    x: c_int,
    y: c_int,
    z: c_int,
) -> Answer {
    let function = function::find(call.driver()?, hfunc)?;
    let block = [x, y, z].map(c_int::cast_unsigned);
    volume(block)?;
    lock(&function.block).0 = block;
    Ok(())
}

pub(crate) fn cuFuncSetSharedSize(call: &Call, hfunc: CUfunction, bytes: c_uint) -> Answer {
    lock(&function::find(call.driver()?, hfunc)?.block).1 = bytes;
    Ok(())
}

// Kernels compute nothing, so arguments are only checked.

pub(crate) fn cuParamSetSize(call: &Call, hfunc: CUfunction, _numbytes: c_uint) -> Answer {
    function::find(call.driver()?, hfunc).map(drop)
}

pub(crate) fn cuParamSeti(call: &Call, hfunc: CUfunction, offset: c_int, _value: c_uint) -> Answer {
    parameter(call, hfunc, offset)
}

pub(crate) fn cuParamSetf(call: &Call, hfunc: CUfunction, offset: c_int, _value: f32) -> Answer {
    parameter(call, hfunc, offset)
}

pub(crate) fn cuParamSetv(
    call: &Call,
    hfunc: CUfunction,
    offset: c_int,
    ptr: Out<c_void>,
    _numbytes: c_uint,
) -> Answer {
    ptr.required()?;
    parameter(call, hfunc, offset)
}

fn parameter(call: &Call, hfunc: CUfunction, offset: c_int) -> Answer {
    function::find(call.driver()?, hfunc)?;
    if offset < 0 { Err(INVALID_VALUE) } else { Ok(()) }
}

/// By default, no part of the launch begins before all streams have reached it, and no stream
/// continues before all of it has ended.
const NO_PRE_LAUNCH_SYNC: c_uint = 1;
const NO_POST_LAUNCH_SYNC: c_uint = 2;

/// Launches a kernel on several GPUs, in a stream of each.
pub(crate) fn cuLaunchCooperativeKernelMultiDevice(
    call: &Call,
    launch_params_list: Out<CUDA_LAUNCH_PARAMS>,
    num_devices: c_uint,
    flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let parts = launch_params_list.read_all(count(num_devices)?)?;
    if parts.is_empty() || flags & !(NO_PRE_LAUNCH_SYNC | NO_POST_LAUNCH_SYNC) != 0 {
        return Err(INVALID_VALUE);
    }
    let mut launches = Vec::new();
    for part in &parts {
        let shape = Shape {
            grid: [part.grid_dim_x, part.grid_dim_y, part.grid_dim_z],
            block: [part.block_dim_x, part.block_dim_y, part.block_dim_z],
            shared: part.shared_mem_bytes,
            cooperative: true,
            priority: None,
        };
        // Default streams are not allowed.
        driver.streams.get(part.stream.0).ok_or(INVALID_HANDLE)?;
        let Lane::Gpu(stream, context) = capture::lane(driver, part.stream, call.per_thread)?
        else {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        };
        let function = function::find(driver, part.function)?;
        if context.id != function.context.id {
            return Err(INVALID_HANDLE);
        }
        launches.push((stream, function, shape));
    }
    let (_, first, like) = &launches[0];
    for (number, (_, function, shape)) in launches.iter().enumerate() {
        let same = function.name == first.name
            && (shape.grid, shape.block, shape.shared) == (like.grid, like.block, like.shared);
        let gpu = function.context.gpu;
        let again = launches[..number].iter().any(|(_, other, _)| other.context.gpu == gpu);
        if !same || again {
            return Err(INVALID_VALUE);
        }
    }
    let prepared = launches
        .iter()
        .map(|(stream, function, shape)| Ok((*stream, prepare(driver, function, *shape)?)))
        .collect::<Answer<Vec<_>>>()?;
    let meet = || -> Answer {
        let tails = prepared
            .iter()
            .map(|&(stream, _)| driver.machine.tail(stream))
            .collect::<Result<Vec<_>, _>>()?;
        for &(stream, _) in &prepared {
            for tail in tails.iter().filter(|tail| tail.stream != stream) {
                driver.machine.wait_ticket(stream, *tail)?;
            }
        }
        Ok(())
    };
    if flags & NO_PRE_LAUNCH_SYNC == 0 {
        meet()?;
    }
    for &(stream, launch) in &prepared {
        driver.machine.launch(stream, launch)?;
    }
    if flags & NO_POST_LAUNCH_SYNC == 0 { meet() } else { Ok(()) }
}
