//! A client in Rust: the first GPU and its processes, as the crate nvml-wrapper reports them. It
//! prints one line for the GPU and one for each process.

use std::error::Error;

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

fn main() -> Result<(), Box<dyn Error>> {
    // SAFETY: alarm takes a number; its signal ends a hung program.
    unsafe { libc::alarm(60) };
    let nvml = Nvml::init()?;
    let gpu = nvml.device_by_index(0)?;
    let memory = gpu.memory_info()?;
    println!("gpu: {} bytes, {} used, {} free", memory.total, memory.used, memory.free);
    let samples = match gpu.process_utilization_stats(None) {
        Err(NvmlError::NotFound) => Vec::new(),
        samples => samples?,
    };
    let busy = |pid| samples.iter().any(|sample| sample.pid == pid && sample.sm_util > 0);
    let mut processes = gpu.running_compute_processes()?;
    processes.sort_by_key(|process| process.pid);
    for process in &processes {
        let UsedGpuMemory::Used(bytes) = process.used_gpu_memory else {
            return Err("a process's memory is not reported".into());
        };
        let state = if busy(process.pid) { "busy" } else { "idle" };
        println!("process {}: {bytes} bytes, {state}", process.pid);
    }
    let listed = |pid| processes.iter().any(|process| process.pid == pid);
    for sample in samples.iter().filter(|sample| sample.sm_util > 0 && !listed(sample.pid)) {
        println!("process {}: busy, and not on the GPU", sample.pid);
    }
    Ok(())
}
