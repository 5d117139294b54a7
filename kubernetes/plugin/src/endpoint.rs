//! One resource at the kubelet: served on a socket of its own, made known, and made known again whenever a kubelet comes.
//!
//! ```text
//!   wait for kubelet.sock --> serve --> register --> look every half second: our socket is there, kubelet.sock is the same
//!        ^                                 | fails          | not
//!        +---------------------------------+----------------+
//! ```
//!
//! A kubelet that starts removes all sockets of its folder, ours among them, and makes its own anew.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cgpu_kubernetes_core::devices::{self, Devices};
use cgpu_kubernetes_core::slice::Token;
use futures_util::{Stream, stream};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;
use tracing::{info, warn};

use crate::cdi::Cdi;
use crate::kubelet::{self, Identity};
use crate::node::Sight;
use crate::pods::Pods;
use crate::protocol::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse, Empty, Ids,
    ListAndWatchResponse, PreferredRequest, PreferredResponse, path,
};
use crate::supply::{Resource, message};

/// How often it is looked whether the kubelet is still the same.
const LOOK: Duration = Duration::from_millis(500);

/// A resource that is offered.
#[derive(Clone)]
pub(crate) struct Endpoint {
    /// Which.
    pub(crate) resource: Resource,
    /// The kubelet's folder.
    pub(crate) folder: PathBuf,
    /// The node's GPUs.
    pub(crate) sight: watch::Receiver<Sight>,
    /// Whose slices are.
    pub(crate) pods: Arc<Pods>,
    /// Where devices are made resolvable, unless nobody resolves any.
    pub(crate) cdi: Option<Cdi>,
}

impl Endpoint {
    /// Offers it for ever.
    pub(crate) async fn run(self) {
        let mut said = String::new();
        loop {
            let kubelet = kubelet::socket(&self.folder);
            let Some(identity) = Identity::of(&kubelet) else {
                say(&mut said, format!("no kubelet at {} yet", kubelet.display()));
                tokio::time::sleep(LOOK).await;
                continue;
            };
            match self.serve(identity).await {
                Ok(()) => said.clear(),
                Err(why) => say(&mut said, format!("{} is not offered: {why}", self.resource.name())),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Removes the socket, so that the kubelet knows at once.
    pub(crate) fn leave(&self) {
        let _ = fs::remove_file(self.own());
    }

    fn own(&self) -> PathBuf {
        self.folder.join(self.resource.socket())
    }

    /// Offers it to this kubelet, until it is another one.
    async fn serve(&self, identity: Identity) -> Result<(), String> {
        let own = self.own();
        let listener = listen(&own).map_err(|error| format!("{} cannot be made: {error}", own.display()))?;
        let ours = Identity::of(&own);
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let plugin = self.clone();
        let service = service_fn(move |request: http::Request<Body>| {
            let plugin = plugin.clone();
            async move { Ok::<_, Infallible>(plugin.answer(request).await) }
        });
        let accepted = stream::unfold(listener, |listener| async move {
            let stream = listener.accept().await.map(|(stream, _)| stream);
            Some((stream, listener))
        });
        let server = Server::builder().serve_with_incoming_shutdown(service, accepted, async {
            let _ = ended.await;
        });
        let server = tokio::spawn(server);
        let outcome = match kubelet::register(&self.folder, self.resource).await {
            Ok(()) => {
                info!(resource = self.resource.name(), "registered");
                let kubelet = kubelet::socket(&self.folder);
                while Identity::of(&kubelet) == Some(identity) && Identity::of(&own) == ours {
                    tokio::time::sleep(LOOK).await;
                }
                info!(resource = self.resource.name(), "the kubelet has gone, or is another one");
                Ok(())
            }
            Err(status) => Err(format!("the kubelet answers {:?}: {}", status.code(), status.message())),
        };
        drop(end);
        // It would wait for the kubelet to let go of its streams.
        server.abort();
        outcome
    }

    async fn answer(&self, request: http::Request<Body>) -> http::Response<Body> {
        match request.uri().path() {
            path::OPTIONS => unary(request, |_: Empty| Ok(kubelet::options())).await,
            path::PRE_START => unary(request, |_: Ids| Ok(Empty {})).await,
            path::PREFERRED => unary(request, |wanted: PreferredRequest| Ok(self.preferred(wanted))).await,
            path::ALLOCATE => unary(request, |wanted: AllocateRequest| self.allocate(&wanted)).await,
            path::LIST_AND_WATCH => {
                let listed = self.listed();
                let mut grpc = Grpc::new(ProstCodec::<ListAndWatchResponse, Empty>::default());
                let mut listed = Some(listed);
                let service = service_fn(move |_: Request<Empty>| {
                    let listed = listed.take();
                    async move {
                        listed.map(Response::new).ok_or_else(|| Status::internal("asked twice in one call"))
                    }
                });
                grpc.server_streaming(service, request).await
            }
            other => Status::unimplemented(format!("no call {other} here")).into_http(),
        }
    }

    /// All devices now, and all of them whenever that changes.
    fn listed(&self) -> impl Stream<Item = Result<ListAndWatchResponse, Status>> + Send + 'static {
        let resource = self.resource;
        let state = (self.sight.clone(), None::<Devices>);
        stream::unfold(state, move |(mut sight, told)| async move {
            loop {
                let devices = offered(resource, &sight.borrow_and_update());
                if told != Some(devices) {
                    info!(
                        resource = resource.name(),
                        healthy = devices.healthy,
                        all = devices.all,
                        "offered"
                    );
                    return Some((Ok(message(devices)), (sight, Some(devices))));
                }
                sight.changed().await.ok()?;
            }
        })
    }

    /// Ids that were nobody's lately come first: whoever had them may not be known to have ended yet.
    fn preferred(&self, wanted: PreferredRequest) -> PreferredResponse {
        let dialect = self.resource.names_slices();
        let answer = |container: crate::protocol::ContainerPreferredRequest| {
            let size = usize::try_from(container.size).unwrap_or(0);
            let mut ids = container.must_include;
            let mut free: Vec<(bool, u64, String)> = container
                .available
                .into_iter()
                .filter(|id| !ids.contains(id))
                .filter_map(|id| {
                    let number = devices::number(&id)?;
                    let used = dialect.is_some_and(|dialect| self.pods.begins(dialect, number));
                    Some((used, number, id))
                })
                .collect();
            free.sort_unstable();
            ids.extend(free.into_iter().map(|(_, _, id)| id));
            ids.truncate(size);
            Ids { ids }
        };
        PreferredResponse { containers: wanted.containers.into_iter().map(answer).collect() }
    }

    fn allocate(&self, wanted: &AllocateRequest) -> Result<AllocateResponse, Status> {
        let given: Result<Vec<_>, Status> =
            wanted.containers.iter().map(|container| self.allocate_one(container)).collect();
        Ok(AllocateResponse { containers: given? })
    }

    /// A name for what the container has, by which it is told from all others when it is known.
    fn allocate_one(&self, wanted: &Ids) -> Result<ContainerAllocateResponse, Status> {
        let Some(dialect) = self.resource.names_slices() else {
            return Ok(ContainerAllocateResponse::default());
        };
        let token = Token::of_ids(dialect, wanted.ids.iter().map(String::as_str))
            .map_err(|refusal| Status::invalid_argument(refusal.sentence()))?;
        let mut cdi_devices = Vec::new();
        if let Some(cdi) = &self.cdi {
            match cdi.put(token) {
                Ok(()) => cdi_devices.push(CdiDevice { name: Cdi::name(token) }),
                // The variables say the same; a pod that is refused here is never started.
                Err(error) => warn!(%token, "the CDI device cannot be made: {error}"),
            }
        }
        info!(%token, resource = self.resource.name(), "allocated");
        let variables =
            cgpu_kubernetes_core::binding::provisional(token).map(|(name, value)| (name.to_owned(), value));
        Ok(ContainerAllocateResponse { variables: variables.into(), cdi_devices })
    }
}

/// How many; none while the GPUs are not known, or are more than can be told.
fn offered(resource: Resource, sight: &Sight) -> Devices {
    let none = Devices { healthy: 0, all: 0 };
    let Some(node) = sight else { return none };
    resource.devices(node).unwrap_or_else(|refusal| {
        warn!(resource = resource.name(), "{refusal}");
        none
    })
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn say(said: &mut String, what: String) {
    if *said != what {
        warn!("{what}");
        *said = what;
    }
}

async fn unary<M, R>(
    request: http::Request<Body>,
    answer: impl Fn(M) -> Result<R, Status>,
) -> http::Response<Body>
where
    M: prost::Message + Default + Send + Sync + 'static,
    R: prost::Message + Send + Sync + 'static,
{
    let service =
        service_fn(|message: Request<M>| std::future::ready(answer(message.into_inner()).map(Response::new)));
    Grpc::new(ProstCodec::<R, M>::default()).unary(service, request).await
}
