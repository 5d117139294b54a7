//! One resource at the kubelet: served on its own socket, registered, and registered again with
//! each new kubelet.
//!
//! ```text
//!   wait for kubelet.sock --> serve --> register --> poll: both sockets are unchanged
//!        ^                                 | fails          | changed
//!        +---------------------------------+----------------+
//! ```
//!
//! A kubelet that starts removes all sockets in its folder, ours too, and creates its own.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cgpu_kubelet_api::device_plugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use cgpu_kubelet_api::device_plugin::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateRequest,
    ContainerAllocateResponse, ContainerPreferredAllocationRequest,
    ContainerPreferredAllocationResponse, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse,
};
use cgpu_kubernetes_core::devices::{self, Devices};
use cgpu_kubernetes_core::slice::Token;
use cgpu_kubernetes_node::socket;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use tokio::sync::watch;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tracing::{info, warn};

use crate::cdi::Cdi;
use crate::kubelet::{self, Identity};
use crate::node::ObservedNode;
use crate::pods::Pods;
use crate::resource::{Resource, message};

/// Interval at which the sockets are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) resource: Resource,
    /// Folder of the kubelet.
    pub(crate) folder: PathBuf,
    pub(crate) observed: watch::Receiver<ObservedNode>,
    pub(crate) pods: Arc<Pods>,
    /// Where CDI devices are written; `None` if they are disabled.
    pub(crate) cdi: Option<Cdi>,
}

impl Endpoint {
    /// Offers the resource without end.
    pub(crate) async fn run(self) {
        let mut last_message = String::new();
        loop {
            // To register would take the resource of a plugin with the same one from it.
            if self.is_owned() {
                let name = self.resource.name();
                warn_on_change(
                    &mut last_message,
                    format!("{name} is not offered: another plugin or driver gives out all GPUs"),
                );
                tokio::time::sleep(POLL_INTERVAL).await;
                continue;
            }
            let kubelet = kubelet::socket(&self.folder);
            let Some(identity) = Identity::of(&kubelet) else {
                warn_on_change(
                    &mut last_message,
                    format!("no kubelet at {} yet", kubelet.display()),
                );
                tokio::time::sleep(POLL_INTERVAL).await;
                continue;
            };
            match self.serve(identity).await {
                Ok(()) => last_message.clear(),
                Err(why) => warn_on_change(
                    &mut last_message,
                    format!("{} is not offered: {why}", self.resource.name()),
                ),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Removes the socket, so that the kubelet notices at once.
    pub(crate) fn remove_socket(&self) {
        let _ = fs::remove_file(self.socket_path());
    }

    /// Returns whether each GPU has another owner.
    fn is_owned(&self) -> bool {
        let observed = self.observed.borrow();
        let mut gpus = observed.iter().flat_map(|node| &node.gpus).peekable();
        gpus.peek().is_some() && gpus.all(|gpu| gpu.other_owner.is_some())
    }

    fn socket_path(&self) -> PathBuf {
        self.folder.join(self.resource.socket())
    }

    /// Offers the resource to this kubelet until another one replaces it.
    async fn serve(&self, identity: Identity) -> Result<(), String> {
        let socket_path = self.socket_path();
        let listener = socket::listen(&socket_path)
            .map_err(|error| format!("cannot create {}: {error}", socket_path.display()))?;
        let socket_identity = Identity::of(&socket_path);
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let service = DevicePluginServer::new(self.clone());
        let accepted = socket::incoming(listener);
        let server = Server::builder().serve_with_incoming_shutdown(service, accepted, async {
            let _ = ended.await;
        });
        let server = tokio::spawn(server);
        let outcome = match kubelet::register(&self.folder, self.resource).await {
            Ok(()) => {
                info!(resource = self.resource.name(), "registered");
                let kubelet = kubelet::socket(&self.folder);
                while Identity::of(&kubelet) == Some(identity)
                    && Identity::of(&socket_path) == socket_identity
                {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                info!(resource = self.resource.name(), "the kubelet has stopped or restarted");
                Ok(())
            }
            Err(status) => {
                Err(format!("the kubelet answers {:?}: {}", status.code(), status.message()))
            }
        };
        drop(end);
        // A graceful shutdown would wait for the kubelet to close its streams.
        server.abort();
        outcome
    }

    /// Returns all devices, and all of them again after each change.
    fn device_stream(
        &self,
    ) -> impl Stream<Item = Result<ListAndWatchResponse, Status>> + Send + 'static {
        let resource = self.resource;
        let state = (self.observed.clone(), None::<Devices>);
        stream::unfold(state, move |(mut observed, sent)| async move {
            loop {
                let devices = devices_of(resource, &observed.borrow_and_update());
                if sent != Some(devices) {
                    info!(
                        resource = resource.name(),
                        healthy = devices.healthy,
                        all = devices.all,
                        "offered"
                    );
                    return Some((Ok(message(devices)), (observed, Some(devices))));
                }
                observed.changed().await.ok()?;
            }
        })
    }

    fn preferred(
        &self,
        request: ContainerPreferredAllocationRequest,
    ) -> ContainerPreferredAllocationResponse {
        let dialect = self.resource.slice_dialect();
        let size = usize::try_from(request.allocation_size).unwrap_or(0);
        let is_first = |number| dialect.is_some_and(|dialect| self.pods.begins(dialect, number));
        let (available, included) = (request.available_device_ids, request.must_include_device_ids);
        let device_ids = devices::preferred(available, included, size, is_first);
        ContainerPreferredAllocationResponse { device_ids }
    }

    /// Returns the token of a container's slice, which identifies the slice until its container is
    /// known.
    fn allocate_container(
        &self,
        request: &ContainerAllocateRequest,
    ) -> Result<ContainerAllocateResponse, Status> {
        let Some(dialect) = self.resource.slice_dialect() else {
            return Ok(ContainerAllocateResponse::default());
        };
        let token = Token::of_ids(dialect, request.device_ids.iter().map(String::as_str))
            .map_err(|refusal| Status::invalid_argument(refusal.message()))?;
        let mut cdi_devices = Vec::new();
        if let Some(cdi) = &self.cdi {
            match cdi.put(token) {
                Ok(()) => cdi_devices.push(CdiDevice { name: Cdi::name(token) }),
                // The variables contain the same; refusing here would fail the pod for good.
                Err(error) => warn!(%token, "cannot write the CDI device: {error}"),
            }
        }
        info!(%token, resource = self.resource.name(), "allocated");
        let variables = cgpu_kubernetes_core::binding::provisional(token)
            .map(|(name, value)| (name.to_owned(), value));
        Ok(ContainerAllocateResponse { envs: variables.into(), cdi_devices })
    }
}

#[tonic::async_trait]
impl DevicePlugin for Endpoint {
    type ListAndWatchStream = BoxStream<'static, Result<ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(kubelet::options()))
    }

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        Ok(Response::new(self.device_stream().boxed()))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let requests = request.into_inner().container_requests.into_iter();
        let container_responses = requests.map(|request| self.preferred(request)).collect();
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let requests = request.get_ref().container_requests.iter();
        let container_responses =
            requests.map(|request| self.allocate_container(request)).collect::<Result<_, _>>()?;
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

/// Returns the devices of a resource; none while the GPUs are unknown, or if they exceed the
/// kubelet's message limit.
fn devices_of(resource: Resource, observed: &ObservedNode) -> Devices {
    let none = Devices { healthy: 0, all: 0 };
    let Some(node) = observed else { return none };
    resource.devices(node).unwrap_or_else(|refusal| {
        warn!(resource = resource.name(), "{refusal}");
        none
    })
}

fn warn_on_change(last_message: &mut String, what: String) {
    if *last_message != what {
        warn!("{what}");
        *last_message = what;
    }
}
