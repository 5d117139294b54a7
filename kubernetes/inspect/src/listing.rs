//! Reads objects from the API server once.

use cgpu_kubernetes_client::{Api, Failure, Query, Record};
use cgpu_kubernetes_core::cluster::Cluster;
use cgpu_kubernetes_core::names::Dialects;
use cgpu_kubernetes_core::object::{Node, Pod};
use cgpu_kubernetes_dra::DRIVER;

use crate::claims::Claims;
use crate::claims::object::{ObservedClaim, ObservedDeviceClass, ObservedSlice};
use crate::error::Error;

/// Field selectors without ended pods, which hold nothing.
const NOT_ENDED: [&str; 2] = ["status.phase!=Succeeded", "status.phase!=Failed"];

/// Reads nodes and pods, and computes their accounting.
pub(crate) async fn cluster(api: &Api, dialects: Dialects) -> Result<Cluster, Error> {
    let nodes: Vec<Node> = all(api, &Query::all()).await?;
    let pods: Vec<Pod> = all(api, &Query::all().field(NOT_ENDED[0]).field(NOT_ENDED[1])).await?;
    let mut cluster = Cluster::new(dialects);
    cluster.replace(&nodes, &pods);
    Ok(cluster)
}

/// Reads the devices of cgpu's driver and the claims; `None` if the API server has no
/// `resource.k8s.io/v1`.
pub(crate) async fn claims(api: &Api) -> Result<Option<Claims>, Failure> {
    let ours = Query::all().field(format!("spec.driver={DRIVER}"));
    let slices = match api.list_each(&ours, |slice: ObservedSlice| slice).await {
        Ok(list) => list.items,
        Err(Failure::NotFound(_) | Failure::Refused { code: 404, .. }) => return Ok(None),
        Err(failure) => return Err(failure),
    };
    let classes = api.list_each(&Query::all(), |class: ObservedDeviceClass| class).await?.items;
    let claims = api.list_each(&Query::all(), |claim: ObservedClaim| claim).await?.items;
    Ok(Some(Claims::new(&slices, classes, claims)))
}

pub(crate) async fn all<R: Record>(api: &Api, query: &Query) -> Result<Vec<R>, Error> {
    Ok(api.list_each(query, |record: R| record).await?.items)
}
