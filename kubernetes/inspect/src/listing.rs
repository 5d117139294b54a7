//! Reads objects from the API server once.

use cgpu_kubernetes_client::{Api, Query, Record};
use cgpu_kubernetes_core::cluster::Cluster;
use cgpu_kubernetes_core::names::Dialects;
use cgpu_kubernetes_core::object::{Node, Pod};

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

pub(crate) async fn all<R: Record>(api: &Api, query: &Query) -> Result<Vec<R>, Error> {
    Ok(api.list_each(query, |record: R| record).await?.items)
}
