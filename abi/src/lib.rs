//! The CUDA driver and NVML ABI: one table of functions, types, results
