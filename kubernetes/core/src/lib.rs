//! Slices for pods: what pods request and hold, which GPUs they get, and how both are shown.
//!
//! ```text
//!   pod ----> requests -----------+
//!     |                           +--> placement --> claim --> annotations of the pod
//!     +-----> allocation --+      |                            (the caller writes them)
//!                          +--> accounting --> victims --> preemption, reservation
//!   node ---> GPUs -------+      |
//!                                 +--> inspect, extender
//! ```
//!
//! Nothing here does I/O, reads the clock or keeps a running sum. The accounting of a node is
//! computed from its GPUs and the pods that name it. `docs/internals/kubernetes.md` describes the
//! design.

#![forbid(unsafe_code)]

pub mod accounting;
pub mod allocation;
pub mod binding;
pub mod budget;
pub mod cdi;
pub mod checkpoint;
pub mod claim;
pub mod cluster;
pub mod container_request;
pub mod cordon;
pub mod devices;
pub mod eviction;
pub mod expected;
pub mod extender;
#[cfg(test)]
mod fixture;
pub mod gpus;
pub mod inspect;
pub mod names;
pub mod object;
pub mod placement;
pub mod pod_request;
pub mod preemption;
pub mod quantity;
pub mod reason;
pub mod refusal;
pub mod reservation;
pub mod resize;
pub mod resource_request;
pub mod rules;
pub mod share;
pub mod sizes;
pub mod slice;
pub mod tabs;
pub mod tentative;
pub mod unit;
pub mod variables;
pub mod victims;
