//! Reads objects from the API server once.

use cgpu_kubernetes_client::{Api, Failure, Query, Record};
use cgpu_kubernetes_core::cluster::Cluster;
use cgpu_kubernetes_core::cordon::{self, Cordon};
use cgpu_kubernetes_core::names::Dialects;
use cgpu_kubernetes_core::object::{ConfigMap, Node, Pod};
use cgpu_kubernetes_core::pod_request::PodRequest;
use cgpu_kubernetes_dra::DRIVER;

use crate::claims::Claims;
use crate::claims::object::{ObservedClaim, ObservedDeviceClass, ObservedSlice};
use crate::error::Error;

/// Field selectors without ended pods, which hold nothing.
const NOT_ENDED: [&str; 2] = ["status.phase!=Succeeded", "status.phase!=Failed"];

/// Reads nodes and pods, and computes their accounting. Returns warnings as well.
pub(crate) async fn cluster(
    api: &Api,
    dialects: Dialects,
) -> Result<(Cluster, Vec<String>), Error> {
    let nodes: Vec<Node> = all(api, &Query::all()).await?;
    let pods: Vec<Pod> = all(api, &Query::all().field(NOT_ENDED[0]).field(NOT_ENDED[1])).await?;
    let mut cluster = Cluster::new(dialects);
    cluster.replace(&nodes, &pods);
    cluster.replace_cordons(cordons(api).await?);
    Ok((cluster, misread(&pods, dialects).into_iter().collect()))
}

/// Reads the ConfigMaps that take GPUs out. Without the right to do so there are none.
pub(crate) async fn cordons(api: &Api) -> Result<Vec<Cordon>, Error> {
    let maps = Query::all().namespace(cordon::NAMESPACE);
    match api.list_each(&maps, |map: ConfigMap| Cordon::of(&map)).await {
        Ok(list) => Ok(list.items.into_iter().flatten().collect()),
        Err(Failure::Refused { code: 403, .. }) => Ok(Vec::new()),
        Err(failure) => Err(failure.into()),
    }
}

/// Returns a warning if pods show that the extender reads other names than this program.
fn misread(pods: &[Pod], dialects: Dialects) -> Option<String> {
    let both = Dialects { hami: true };
    let is_hami = |pod: &&Pod| PodRequest::of(pod, Dialects::default()).is_none();
    let requests: Vec<PodRequest> =
        pods.iter().filter(is_hami).filter_map(|pod| PodRequest::of(pod, both)).collect();
    let given = requests.iter().filter(|it| matches!(it.allocation, Ok(Some(_)))).count();
    let running = requests.iter().filter(|it| it.running).count();
    match dialects.hami {
        false if given > 0 => Some(format!(
            "pods hold GPUs by HAMi's names, which are not read ({given}): add --hami, as the \
             extender has it"
        )),
        true if given == 0 && running > 0 => Some(format!(
            "pods run with nvidia.com/gpu and without a GPU of cgpu's extender ({running}): leave \
             out --hami, unless the extender has it"
        )),
        _ => None,
    }
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
