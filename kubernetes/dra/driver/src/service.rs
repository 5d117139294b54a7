//! The kubelet's calls: claims are prepared and unprepared, and the health of devices is reported.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cgpu_kubelet_api::dra::dra_plugin_server::DraPlugin;
use cgpu_kubelet_api::dra::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest,
    NodePrepareResourcesResponse, NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
};
use cgpu_kubelet_api::dra_health::dra_resource_health_server::DraResourceHealth;
use cgpu_kubelet_api::dra_health::{
    DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesRequest,
    NodeWatchResourcesResponse,
};
use cgpu_kubernetes_client::{Api, Failure};
use cgpu_kubernetes_core::refusal::Refusal;
use cgpu_kubernetes_dra::allocation::NodeClaim;
use cgpu_kubernetes_dra::cdi::Cdi;
use cgpu_kubernetes_dra::device::Pool;
use cgpu_kubernetes_dra::prepared::PreparedClaims;
use cgpu_kubernetes_dra::resize;
use cgpu_kubernetes_dra::store::Folders;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::{self, BoxStream, Stream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tracing::{info, warn};

use crate::devices::ObservedPool;
use crate::{held, objects};

/// Time that a call waits for the GPUs. The kubelet waits for 45 s.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for reading a claim.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval at which the health is repeated. The kubelet takes it as unknown after 30 s.
const HEALTH_INTERVAL: Duration = Duration::from_secs(10);

/// The driver's services.
pub(crate) struct Service {
    pub(crate) api: Api,
    pub(crate) claims: Arc<PreparedClaims<Folders>>,
    pub(crate) cdi: Cdi,
    pub(crate) pool: watch::Receiver<ObservedPool>,
    /// Name of the node and its pool.
    pub(crate) node: String,
    /// The monitor's root.
    pub(crate) root: PathBuf,
}

impl Service {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, Refusal> {
        let found = tokio::time::timeout(
            LOOKUP_TIMEOUT,
            self.api.get::<objects::Claim>(&claim.namespace, &claim.name),
        );
        let found = found.await.unwrap_or_else(|_| {
            Err(Failure::Unreachable(format!("no reply within {LOOKUP_TIMEOUT:?}")))
        });
        let (own, pool) = match found {
            Ok(found) if found.0.metadata.uid != claim.uid => {
                return Err(Refusal::new(format!(
                    "claim {}/{} has the uid {}, not {}: it was made anew",
                    claim.namespace, claim.name, found.0.metadata.uid, claim.uid
                )));
            }
            Ok(found) => {
                let pool = self.known_pool().await?;
                let claim = NodeClaim::of(&found.0, &pool)?;
                // A refused resize is reported by the resizer; the claim has what it consumes.
                let annotation = found.0.metadata.annotations.get(resize::ANNOTATION);
                let own = resize::resized(&claim, annotation.map(String::as_str)).unwrap_or(claim);
                (own, pool)
            }
            // A kubelet that restarts prepares again what is prepared. That needs no room, and no
            // GPUs, which a driver does not know before its first list of slices.
            Err(failure) => {
                let own = self.recorded(&claim.uid).ok_or_else(|| {
                    Refusal::new(format!(
                        "cannot read claim {}/{}: {failure}",
                        claim.namespace, claim.name
                    ))
                })?;
                (own, Arc::new(Pool { node: self.node.clone(), devices: Vec::new() }))
            }
        };
        let devices = own.shares.iter().map(|share| {
            Ok(Device {
                request_names: vec![share.request.clone()],
                pool_name: pool.node.clone(),
                device_name: share.device.clone(),
                cdi_device_ids: self.cdi.ids(share)?,
                share_id: share.share_id.clone(),
            })
        });
        let devices = devices.collect::<Result<_, Refusal>>()?;
        let (claims, root) = (Arc::clone(&self.claims), self.root.clone());
        blocking(move || {
            let held = held::read(&root, &claims.ledger().share_names())?;
            claims.prepare(&own, &pool, &held)
        })
        .await?;
        Ok(devices)
    }

    async fn unprepare(&self, claim: &Claim) -> Result<(), Refusal> {
        let (claims, uid) = (Arc::clone(&self.claims), claim.uid.clone());
        blocking(move || claims.unprepare(&uid)).await
    }

    async fn answer_prepare(&self, claim: &Claim) -> (String, NodePrepareResourceResponse) {
        let Claim { namespace, name, uid } = claim;
        let answer = match self.prepare(claim).await {
            Ok(devices) => {
                info!(namespace, name, uid, devices = devices.len(), "prepared");
                NodePrepareResourceResponse { devices, error: String::new() }
            }
            Err(refusal) => {
                warn!(namespace, name, uid, "not prepared: {refusal}");
                NodePrepareResourceResponse { devices: Vec::new(), error: refusal.to_string() }
            }
        };
        (uid.clone(), answer)
    }

    async fn answer_unprepare(&self, claim: &Claim) -> (String, NodeUnprepareResourceResponse) {
        let Claim { namespace, name, uid } = claim;
        let error = match self.unprepare(claim).await {
            Ok(()) => {
                info!(namespace, name, uid, "unprepared");
                String::new()
            }
            Err(refusal) => {
                warn!(namespace, name, uid, "still prepared: {refusal}");
                refusal.to_string()
            }
        };
        (uid.clone(), NodeUnprepareResourceResponse { error })
    }

    fn recorded(&self, uid: &str) -> Option<NodeClaim> {
        self.claims.ledger().claim(uid).cloned()
    }

    async fn known_pool(&self) -> Result<Arc<Pool>, Refusal> {
        let mut pool = self.pool.clone();
        let known = tokio::time::timeout(READY_TIMEOUT, pool.wait_for(Option::is_some)).await;
        let known = known.ok().and_then(|known| known.ok()?.clone());
        known.ok_or_else(|| {
            Refusal::new("the driver waits for the node's GPUs; its log says what it lacks")
        })
    }

    /// Returns the health of all devices, again after each change and each interval.
    fn health(&self) -> impl Stream<Item = Result<NodeWatchResourcesResponse, Status>> + use<> {
        let state = (self.pool.clone(), true);
        stream::unfold(state, |(mut pool, is_first)| async move {
            if !is_first {
                let changed = tokio::time::timeout(HEALTH_INTERVAL, pool.changed()).await;
                // The driver ends.
                if matches!(changed, Ok(Err(_))) {
                    return None;
                }
            }
            let known = pool.borrow_and_update().clone();
            let message = known.map(|pool| health_of(&pool)).unwrap_or_default();
            Some((Ok(message), (pool, false)))
        })
    }
}

/// Runs what waits for files.
async fn blocking(
    call: impl FnOnce() -> Result<(), Refusal> + Send + 'static,
) -> Result<(), Refusal> {
    let done = tokio::task::spawn_blocking(call).await;
    done.unwrap_or_else(|error| Err(Refusal::new(format!("the driver has failed: {error}"))))
}

fn health_of(pool: &Pool) -> NodeWatchResourcesResponse {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let devices = pool.devices.iter().filter(|device| device.is_offered());
    let health = |healthy: bool| {
        let (status, message) = if healthy {
            (HealthStatus::Healthy, "")
        } else {
            (HealthStatus::Unhealthy, "it reported an error, or does not answer")
        };
        (status.into(), message.to_owned())
    };
    let device = |device: &cgpu_kubernetes_dra::device::Device| {
        let (health, message) = health(device.healthy);
        DeviceHealth {
            device: Some(DeviceIdentifier {
                pool_name: pool.node.clone(),
                device_name: device.name(),
            }),
            health,
            last_updated_time: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
            health_check_timeout_seconds: 0,
            message,
        }
    };
    NodeWatchResourcesResponse { devices: devices.map(device).collect() }
}

#[tonic::async_trait]
impl DraPlugin for Service {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let claims = &request.get_ref().claims;
        let answers = join_all(claims.iter().map(|claim| self.answer_prepare(claim))).await;
        Ok(Response::new(NodePrepareResourcesResponse { claims: answers.into_iter().collect() }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let claims = &request.get_ref().claims;
        let answers = join_all(claims.iter().map(|claim| self.answer_unprepare(claim))).await;
        Ok(Response::new(NodeUnprepareResourcesResponse { claims: answers.into_iter().collect() }))
    }
}

#[tonic::async_trait]
impl DraResourceHealth for Service {
    type NodeWatchResourcesStream = BoxStream<'static, Result<NodeWatchResourcesResponse, Status>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        Ok(Response::new(self.health().boxed()))
    }
}
