//! Access to the API server for all programs of this folder: `kube` sends the requests, the records are
//! the core's ([`cgpu_kubernetes_core::object`]).
//!
//! ```text
//!   kubeconfig | in-cluster --> Access --> Api --+-- get, list, patch, change, bind ---> records of the core, or a Failure
//!                                                +-- reflector::run: list, watch, list again --> an EventHandler (mostly the core's Cluster)
//!                                                +-- Event: a message about a pod or a node
//!                                                +-- Election: who of several does what one must do
//! ```
//!
//! | wanted | is |
//! |---|---|
//! | a client as kubectl would make it | [`Access`] (a clap `Args`: `--kubeconfig --context --cluster --user --server --token ...`; flatten it), then `access.api().await` |
//! | one object | `api.get::<Pod>(namespace, name)`, `api.get::<Node>("", name)` |
//! | all that fit | `api.list::<Pod>(&Query::all().field("spec.nodeName=n1").label("app=x"))`: as of one version, never from a cache that may be behind |
//! | all objects, and their changes | `reflector::run(&api, &query, &timing, &handler)` never ends; an `RwLock<Cluster>` is an [`EventHandler`] of pods and of nodes |
//! | annotations of a claim | `api.change(&change)`: the core's conditioned patch; [`Failure::Conflict`] if the pod is another by now |
//! | any merge patch | `api.patch::<Node>("", name, &json)`, `api.patch_status::<Node>("", name, &json)`. With `metadata.resourceVersion` in it, it is conditioned |
//! | a pod on a node | `api.bind(&pod, node)`, on condition of uid and version |
//! | an event on a pod | `api.publish(&event)`: the same event again increments its count |
//! | one of several | [`Election`], over a Lease |
//!
//! Nothing here decides anything about GPUs.

#![forbid(unsafe_code)]

mod access;
mod api;
mod backoff;
mod event;
mod failure;
mod handler;
mod lease;
mod query;
mod record;
pub mod reflector;
mod watch;

pub use access::Access;
pub use api::{Api, List};
pub use backoff::Backoff;
pub use event::{Event, Regarding, Severity};
pub use failure::Failure;
pub use handler::EventHandler;
pub use lease::{Election, Term};
pub use query::Query;
pub use record::Record;
pub use reflector::Timing;
