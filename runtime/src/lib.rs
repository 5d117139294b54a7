//! `cgpu-runtime`: an OCI runtime that gives containers slices of GPUs, and passes everything to
//! another runtime.
//!
//! ```text
//!   engine (docker, containerd, podman)
//!     | create
//!     v
//!   cgpu-runtime  <-- variables of config.json, GPUs of the host
//!     | plan: a slice, native, or a refusal
//!     | slice: the container's folder (use, grant, limits), mounts of it and of the shim
//!     | create
//!     v
//!   runc, crun, nvidia-container-runtime
//!     +-- createRuntime hook: registration
//!     +-- poststop hook: clean-up
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
pub mod share;
pub mod start;
pub mod tmpfs;
pub mod verify;
pub mod wall;
