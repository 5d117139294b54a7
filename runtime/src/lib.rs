//! `cgpu-runtime`: an OCI runtime that gives containers slices of GPUs, and passes everything to
//! another runtime.
//!
//! ```text
//!   engine (docker, containerd, podman) -- create --> cgpu-runtime -- create --> runc, crun, nvidia-container-runtime
//!                                                        |                          |
//!   variables of config.json --> plan: slice, native,    |                          +-- createRuntime hook: registration
//!   GPUs of the host --------->       or a refusal      |                          +-- poststop hook: clean-up
//!                                                        v
//!                          folder of the container (use, grant, limits), mounts of it and of the shim
//! ```
//!
//! A container whose variables request nothing is passed on unchanged; its configuration is not
//! rewritten. If its variables are invalid, or the limit could not be enforced, the container is
//! not started, and the engine shows a message. The variables of a pod's container name a slice
//! that the kubelet has counted; the device plugin returns the others ([`binding`]).
//!
//! The modules that decide ([`plan`], [`edit`], [`invocation`]) are pure; the others read, write
//! and start processes.

pub mod binding;
pub mod bundle;
pub mod config;
pub mod document;
pub mod edit;
pub mod files;
pub mod folder;
pub mod gpus;
pub mod handover;
pub mod hook;
pub mod image;
pub mod invocation;
pub mod mounting;
pub mod named;
pub mod plan;
pub mod start;
pub mod tmpfs;
