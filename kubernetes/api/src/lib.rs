//! The way to the API server, for all programs of this folder: `kube` carries the requests, the records are the core's ([`cgpu_kubernetes::object`]).
//!
//! ```text
//!   kubeconfig | in-cluster --> Access --> Api --+-- get, list, patch, change, bind ---> records of the core, or a Failure
//!                                                +-- mirror::run: list, watch, list again --> a Keeper (the core's Cluster, mostly)
//!                                                +-- Event: what is told about a pod
//!                                                +-- Election: who of several does what one must do
//! ```
//!
//! | wanted | is |
//! |---|---|
//! | a client as kubectl would make it | `Access` (a clap `Args`: `--kubeconfig --context --cluster --user --server --token --insecure-skip-tls-verify`; flatten it), then `access.api().await` |
//! | one object | `api.get::<Pod>(namespace, name)`, `api.get::<Node>("", name)` |
//! | all that fit | `api.list::<Pod>(&Query::all().field("spec.nodeName=n1").label("app=x"))`: every page, as of one version, never from a cache of the API server |
//! | what is and what comes | `mirror::run(api, query, keeper)`: never ends; a `Keeper<R>` is told `replace(List<R>)`, `see(R)`, `lose(R)`, `reach(bool)` |
//! | annotations of a claim | `api.change(&Change)`: the core's conditioned patch; `Failure::Conflict` if the pod is another by now |
//! | any merge patch | `api.patch::<Node>("", name, None, &json)`; with `Some("status")` the status, such as capacity and allocatable. With `metadata.resourceVersion` in it, it is conditioned |
//! | a pod on a node | `api.bind(&pod, node)`, on condition of uid and version |
//! | an event on a pod | `api.tell(&Event { .. })`: the same again counts on |
//! | one of several | `Election` over a Lease |
//!
//! Nothing here decides anything about cards.

#![forbid(unsafe_code)]
