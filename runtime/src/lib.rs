//! `cgpu-runtime`: an OCI runtime that gives containers slices of GPUs, and leaves everything else to another one.
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
//! A container whose variables ask for nothing is handed over as it came: its configuration is not even written again. One whose
//! variables are not understood, or ask for what cannot be kept, is not started, with one sentence that the engine shows. A pod's container, whose
//! variables name no more than a slice that the kubelet counted, gets the others from the device plugin ([`binding`]).
//!
//! What decides ([`plan`], [`edit`], [`invocation`]) is pure; the rest reads, writes and runs.

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
