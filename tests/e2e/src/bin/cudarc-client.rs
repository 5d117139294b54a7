//! A client in Rust: what programs do that use the crate cudarc.
//!
//! Prints one JSON object: the GPU's size by both calls, how much could be allocated until the
//! ordinary out-of-memory error, and that copies and kernels work afterwards. Exits 1 with cudarc's
//! message if a call fails.

use std::error::Error;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaSlice, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use serde_json::json;

const CHUNK: usize = 64 << 20;

/// A kernel that counts up. A simulated GPU accepts any text as a module; this kernel takes the
/// usual time there and does nothing.
const KERNEL: &str = include_str!("increment.ptx");

fn main() -> Result<(), Box<dyn Error>> {
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    let total = context.total_mem()?;
    let (free, info_total) = context.mem_get_info()?;

    let mut chunks: Vec<CudaSlice<u8>> = Vec::new();
    let refusal = loop {
        // SAFETY: the memory is never read.
        match unsafe { stream.alloc::<u8>(CHUNK) } {
            Ok(chunk) => chunks.push(chunk),
            Err(error) => break error.0,
        }
    };
    let granted = chunks.len() * CHUNK;
    drop(chunks);
    stream.synchronize()?;

    let numbers: Vec<u32> = (0..4096).collect();
    let mut copy = stream.clone_htod(&numbers)?;
    let function = context.load_module(Ptx::from_src(KERNEL))?.load_function("increment")?;
    let count = 4096_u32;
    let mut launch = stream.launch_builder(&function);
    launch.arg(&mut copy).arg(&count);
    // SAFETY: the kernel writes `count` words from `copy` on, and `copy` has as many.
    unsafe { launch.launch(LaunchConfig::for_num_elems(count)) }?;
    let back = stream.clone_dtoh(&copy)?;
    let launched =
        back.iter().zip(&numbers).all(|(after, before)| after == before || *after == before + 1);

    drop(copy);
    stream.synchronize()?;
    let free_after = context.mem_get_info()?.0;
    println!(
        "{}",
        json!({
            "total": total,
            "info_total": info_total,
            "free": free,
            "granted": granted,
            "out_of_memory": refusal == CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            "copied": back.len(),
            "launched": launched,
            "free_after": free_after,
        })
    );
    Ok(())
}
