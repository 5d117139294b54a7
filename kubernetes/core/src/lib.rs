//! Slices for pods: what they request, what they hold, which GPUs they get, and how that is shown.
//!
//! ```text
//!   pod ----> requests -----------+
//!     |                           +--> placement --> claim --> annotations of the pod
//!     +-----> allocation --+      |                              (somebody writes them)
//!                          +--> accounting
//!   node ---> GPUs -------+      |
//!                                 +--> inspect, extender
//! ```
//!
//! Nothing here does I/O, knows the time or keeps a sum: the accounting of a node is computed from its GPUs and the pods that name it.
//! `docs/internals/kubernetes.md` has the design.

#![forbid(unsafe_code)]

pub mod accounting;
pub mod allocation;
pub mod binding;
pub mod claim;
pub mod cluster;
pub mod container_request;
pub mod devices;
#[cfg(test)]
mod doubles;
pub mod extender;
pub mod gpus;
pub mod inspect;
pub mod names;
pub mod object;
pub mod placement;
pub mod pod_request;
pub mod quantity;
pub mod reason;
pub mod refusal;
pub mod resource_request;
pub mod share;
pub mod slice;
mod tabs;
pub mod unit;
pub mod variables;
