//! Access to the API server for all programs of this folder. `kube` sends the requests; the objects
//! are the core's ([`cgpu_kubernetes_core::object`]).
//!
//! ```text
//!   kubeconfig | in-cluster --> Access --> Api --+-- get, list, patch, change, bind
//!                                                +-- reflector::run --> an EventHandler
//!                                                +-- Event: a message about a pod or a node
//!                                                +-- Election: one leader among replicas
//! ```
//!
//! * [`Access`] has the flags of kubectl that select a cluster (`--kubeconfig --context --cluster
//!   --user --server --token ...`), as a clap `Args` to flatten. `access.api().await` returns an
//!   [`Api`].
//! * `api.get::<Pod>(namespace, name)` and `api.get::<Node>("", name)` return one object.
//! * `api.list::<Pod>(&Query::all().field("spec.nodeName=n1").label("app=x"))` lists objects as of
//!   one version, never from an outdated cache.
//! * `reflector::run(&api, &query, &timing, &handler)` passes all objects and their changes to an
//!   [`EventHandler`]. An `RwLock<Cluster>` handles pods and nodes.
//! * `api.change(&change)` applies the core's change to a pod; [`Failure::Conflict`] if the pod has
//!   another version by now.
//! * `api.patch::<Node>("", name, &json)` and `api.patch_status::<Node>("", name, &json)` apply a
//!   merge patch. A `metadata.resourceVersion` in it is a condition.
//! * `api.bind(&pod, node)` binds a pod, on condition of its uid and version.
//! * `api.publish(&event)` publishes an event; the same event again increments its count.
//! * [`Election`] elects a leader by means of a Lease.
//!
//! Nothing here decides about GPUs.

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
pub use event::{Event, Regarding, Severity, timestamp};
pub use failure::Failure;
pub use handler::EventHandler;
pub use lease::{Election, Leadership, LeaseTiming};
pub use query::Query;
pub use record::Record;
pub use reflector::Timing;
