//! The simulated GPU as `libcuda.so.1`, loaded in place of the driver.
//!
//! Every symbol of the table is exported. A row marked `simulated` calls the function of the same
//! name in one of the modules below, one module per noun of the driver API. All other rows share an
//! export that answers NOT_SUPPORTED. [`cgpu_sim::Machine`] simulates what a call does to the GPU.
//! This crate is the driver's interface: handles, current contexts, argument checks, error codes.
//!
//! ```text
//!   program -> exports -> call -> context, memory, stream, ... -> driver (handles)
//!                          |                                         |
//!           cgpu_sim::watch: faults, journal                 cgpu_sim::Machine
//! ```
//!
//! | variable | meaning |
//! |---|---|
//! | `CGPU_SIM_DRIVER` | the CUDA version to simulate, such as 12040 for 12.4 |
//! | `CGPU_SIM_FAULT` | `NAME:WHEN:CODE[,...]`: chosen calls of NAME answer CODE and do nothing else: [`cgpu_sim::faults`] |
//! | `CGPU_SIM_JOURNAL` | a file that records every call and the GPUs' activity: [`cgpu_sim::journal`] |
//! | `CUDA_VISIBLE_DEVICES`, `CUDA_DEVICE_ORDER` | as in the vendor's driver: `visible` |
//!
//! [`cgpu_sim::Settings`] reads the others (`CGPU_SIM_STATE`, `CGPU_SIM_GPUS`, ...).
//!
//! Peer access is not simulated. Kernels move no data.
#![allow(non_snake_case, clippy::too_many_arguments, reason = "the vendor's own functions")]

mod answer;
mod argument;
mod array;
mod assembly;
mod attribute;
mod batch;
mod boxes;
mod call;
mod capture;
mod checkpoint;
mod context;
mod copy;
mod deferred;
mod device;
mod driver;
mod endpoint;
mod entry;
mod event;
mod exports;
mod external;
mod fill;
mod foreign;
mod function;
mod graph;
mod green;
mod handle;
mod host;
mod image;
mod ipc;
mod launch;
mod layout;
mod legacy;
mod library;
mod link;
mod loading;
mod location;
mod memops;
mod memory;
mod mipmap;
mod module;
mod multicast;
mod physical;
mod pointer;
mod pool;
mod primary;
mod proc_address;
mod profiler;
mod range;
mod residency;
mod semaphore;
mod share;
mod sparse;
mod split;
mod stream;
mod texture;
mod version;
mod visible;
