//! A client in Rust that does real work by the crate cudarc: streams, events, stream-ordered
//! memory, virtual memory, graphs. It checks the bytes after each.
//!
//! Prints one JSON object. Exits 1 with cudarc's message if a call fails, or with what was wrong.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg, result};
use cudarc::nvrtc::Ptx;
use serde_json::json;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const LENGTH: usize = 1 << 20;
const KERNEL: &str = include_str!("increment.ptx");

fn main() -> Outcome {
    let context = CudaContext::new(0)?;
    // SAFETY: the program orders its streams itself. The events that cudarc would record must not
    // become part of a capture.
    unsafe { context.disable_event_tracking() };
    let function = context.load_module(Ptx::from_src(KERNEL))?.load_function("increment")?;
    let elapsed = streams(&context, &function)?;
    pools(&context)?;
    virtual_memory(&context)?;
    graphs(&context, &function)?;
    context.synchronize()?;
    println!("{}", json!({"elapsed_ms": elapsed, "pools": context.has_async_alloc()}));
    Ok(())
}

fn same<T: PartialEq>(what: &str, found: &[T], wanted: &[T]) -> Outcome {
    if found == wanted { Ok(()) } else { Err(format!("{what}: other bytes than expected").into()) }
}

fn numbers(seed: u32) -> Vec<u32> {
    (0..)
        .map(|number: u32| number.wrapping_mul(2_654_435_761).wrapping_add(seed))
        .take(LENGTH)
        .collect()
}

/// Launches a kernel over no elements, which changes nothing on a real GPU, too.
fn launch(stream: &Arc<CudaStream>, function: &CudaFunction, on: u64) -> Outcome {
    let none = 0_u32;
    let mut launch = stream.launch_builder(function);
    launch.arg(&on).arg(&none);
    // SAFETY: the kernel counts up the first `none` words, which is 0, so it accesses no memory.
    unsafe { launch.launch(LaunchConfig::for_num_elems(256)) }?;
    Ok(())
}

/// Checks that a forked stream's copy follows the stream it was forked from. Returns the
/// milliseconds between two events around kernels.
fn streams(context: &Arc<CudaContext>, function: &CudaFunction) -> Outcome<f32> {
    let stream = context.new_stream()?;
    let data = numbers(1);
    let on_gpu = stream.clone_htod(&data)?;
    let begin = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
    for _ in 0..20 {
        launch(&stream, function, 0)?;
    }
    let end = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
    let fork = stream.fork()?;
    let twin = fork.clone_dtod(&on_gpu)?;
    stream.join(&fork)?;
    same("a copy of a fork", &stream.clone_dtoh(&twin)?, &data)?;
    Ok(begin.elapsed_ms(&end)?)
}

fn pools(context: &Arc<CudaContext>) -> Outcome {
    let stream = context.new_stream()?;
    for round in 0..8 {
        let data = numbers(round);
        let on_gpu = stream.clone_htod(&data)?;
        let mut zeros = stream.alloc_zeros::<u32>(LENGTH)?;
        same("fresh memory", &stream.clone_dtoh(&zeros)?, &vec![0; LENGTH])?;
        stream.memcpy_dtod(&on_gpu, &mut zeros)?;
        same("memory in stream order", &stream.clone_dtoh(&zeros)?, &data)?;
    }
    Ok(())
}

fn virtual_memory(context: &Arc<CudaContext>) -> Outcome {
    context.bind_to_thread()?;
    let location =
        sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    let properties = sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location,
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    };
    let access = sys::CUmemAccessDesc {
        location,
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let (mut step, mut handle, mut address) = (0, 0, 0);
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: pointers to living locals.
    unsafe { sys::cuMemGetAllocationGranularity(&raw mut step, &raw const properties, minimum) }
        .result()?;
    let size = (LENGTH * 4).next_multiple_of(step);
    // SAFETY: as above.
    unsafe { sys::cuMemCreate(&raw mut handle, size, &raw const properties, 0) }.result()?;
    // SAFETY: as above.
    unsafe { sys::cuMemAddressReserve(&raw mut address, size, 0, 0, 0) }.result()?;
    // SAFETY: a range and a handle of ours.
    unsafe { sys::cuMemMap(address, size, 0, handle, 0) }.result()?;
    // SAFETY: as above.
    unsafe { sys::cuMemSetAccess(address, size, &raw const access, 1) }.result()?;
    let data = numbers(7);
    let mut back = vec![0_u32; LENGTH];
    // SAFETY: the range is mapped, and as long.
    unsafe { result::memcpy_htod_sync(address, &data) }?;
    // SAFETY: as above.
    unsafe { result::memcpy_dtoh_sync(&mut back, address) }?;
    same("mapped memory", &back, &data)?;
    // SAFETY: nothing uses the range any more.
    unsafe { sys::cuMemUnmap(address, size) }.result()?;
    // SAFETY: as above.
    unsafe { sys::cuMemRelease(handle) }.result()?;
    // SAFETY: as above.
    unsafe { sys::cuMemAddressFree(address, size) }.result()?;
    Ok(())
}

fn graphs(context: &Arc<CudaContext>, function: &CudaFunction) -> Outcome {
    let stream = context.new_stream()?;
    let mut from = stream.alloc_zeros::<u32>(LENGTH)?;
    let mut to = stream.alloc_zeros::<u32>(LENGTH)?;
    stream.synchronize()?;
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    stream.memcpy_dtod(&from, &mut to)?;
    launch(&stream, function, 0)?;
    let graph = stream
        .end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?;
    let graph = graph.ok_or("the capture gave no graph")?;
    for round in 1..4 {
        let data = numbers(round);
        stream.memcpy_htod(&data, &mut from)?;
        graph.launch()?;
        same("bytes of a graph", &stream.clone_dtoh(&to)?, &data)?;
    }
    Ok(())
}
