//! Replies to `cgpu-runtime`: which container has a token, and its variables. See
//! [`cgpu_kubernetes_core::binding`].

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cgpu_kubernetes_client::{Api, EventHandler, Failure};
use cgpu_kubernetes_core::binding::{BindReply, BindRequest, MAX_LINE_BYTES, SOCKET};
use cgpu_kubernetes_core::object::Pod;
use cgpu_kubernetes_core::pod_request::PodRequest;
use cgpu_kubernetes_core::refusal::Refusal;
use cgpu_kubernetes_core::slice::Token;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::node::ObservedNode;
use crate::pods::Pods;

/// Timeout for reading a request and for writing its reply.
const IO_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a start waits for the GPUs and the list of pods before it is refused.
const READY_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout for reading a pod from the API server. It may be read twice. Together with
/// [`READY_TIMEOUT`] that is below the 30 s for which `cgpu-runtime` waits.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves requests of `cgpu-runtime`.
pub(crate) struct Binding {
    pub(crate) api: Api,
    pub(crate) pods: Arc<Pods>,
    pub(crate) observed: watch::Receiver<ObservedNode>,
}

/// Creates the socket, accessible to root only.
///
/// # Errors
/// The folder or the socket cannot be created.
pub(crate) fn listen(root: &Path) -> io::Result<(UnixListener, PathBuf)> {
    fs::create_dir_all(root)?;
    let path = root.join(SOCKET);
    // Created under another name, so that no other user can open it before its mode is set.
    let fresh = root.join(format!("{SOCKET}.{}", std::process::id()));
    let _ = fs::remove_file(&fresh);
    let listener = UnixListener::bind(&fresh)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600))?;
    fs::rename(&fresh, &path)?;
    Ok((listener, path))
}

impl Binding {
    pub(crate) async fn serve(self: Arc<Self>, listener: UnixListener) {
        let own = rustix::process::geteuid().as_raw();
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!("cannot accept connections of cgpu-runtime: {error}");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            // The mode of the socket enforces this already; the check does not rely on it.
            if !stream.peer_cred().is_ok_and(|credentials| [0, own].contains(&credentials.uid())) {
                continue;
            }
            let binding = Arc::clone(&self);
            tokio::spawn(async move {
                if let Err(error) = binding.handle(stream).await {
                    warn!("cannot answer cgpu-runtime: {error}");
                }
            });
        }
    }

    /// Reads one request and writes its reply.
    async fn handle(&self, mut stream: UnixStream) -> io::Result<()> {
        let (reader, mut writer) = stream.split();
        let mut line = Vec::new();
        let mut reader = BufReader::new(reader.take(MAX_LINE_BYTES));
        tokio::time::timeout(IO_TIMEOUT, reader.read_until(b'\n', &mut line)).await??;
        let reply = match serde_json::from_slice::<BindRequest>(&line) {
            Err(error) => BindReply::Refused(format!(
                "the device plugin cannot parse the request ({error}); install cgpu-runtime and \
                 cgpu-device-plugin of the same release"
            )),
            Ok(request) => self.reply(&request).await,
        };
        line = serde_json::to_vec(&reply)?;
        line.push(b'\n');
        tokio::time::timeout(IO_TIMEOUT, writer.write_all(&line)).await?
    }

    async fn reply(&self, request: &BindRequest) -> BindReply {
        let BindRequest { slice, namespace, pod, container, .. } = request;
        match self.bind(request).await {
            Ok(variables) => {
                info!(slice, namespace, pod, container, "bound");
                BindReply::Bound(
                    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
                )
            }
            Err(refusal) => {
                warn!(slice, namespace, pod, container, "refused: {refusal}");
                BindReply::Refused(refusal.message().to_owned())
            }
        }
    }

    async fn bind(&self, request: &BindRequest) -> Result<Vec<(&'static str, String)>, Refusal> {
        let token = Token::parse(&request.slice)?;
        let mut observed = self.observed.clone();
        let ready = async {
            self.pods.listed().await;
            observed.wait_for(Option::is_some).await.ok().and_then(|observed| observed.clone())
        };
        let node = tokio::time::timeout(READY_TIMEOUT, ready).await.ok().flatten();
        let Some(node) = node else {
            return Err(Refusal::new(
                "the device plugin does not know the node's GPUs and pods yet; its log says what \
                 it waits for",
            ));
        };
        let pod =
            tokio::time::timeout(LOOKUP_TIMEOUT, self.pod(request)).await.unwrap_or_else(|_| {
                Err(Refusal::new(format!(
                    "the API server does not answer a request for the pod {}/{}",
                    request.namespace, request.pod
                )))
            })?;
        let pod_request = PodRequest::of(&pod, self.pods.dialects()).ok_or_else(|| {
            Refusal::new(format!(
                "{}/{} requests no GPU of this node, or has ended",
                request.namespace, request.pod
            ))
        })?;
        let assign = || self.pods.assign(token, &pod_request, &request.container, &node);
        let refusal = match assign() {
            Ok(variables) => return Ok(variables),
            Err(refusal) => refusal,
        };
        // The kubelet learns before the API server that a pod has ended, and the API server before
        // us.
        match self.pods.owner(token) {
            Some(owner)
                if owner.metadata.uid != pod_request.uid && self.has_ended(&owner).await =>
            {
                assign()
            }
            _ => Err(refusal),
        }
    }

    /// Returns the pod of a request by its uid, because names are used again.
    async fn pod(&self, request: &BindRequest) -> Result<Pod, Refusal> {
        let BindRequest { namespace, pod, uid, .. } = request;
        // The annotations were written before the pod was bound to this node, so a known pod that
        // has them is current enough.
        let known = self.pods.get(uid);
        if let Some(known) = known.filter(|known| {
            let metadata = &known.metadata;
            metadata.namespace == *namespace && metadata.name == *pod && is_placed(known)
        }) {
            return Ok(known);
        }
        let found: Pod = self.api.get(namespace, pod).await.map_err(|failure| match failure {
            Failure::NotFound(_) => {
                Refusal::new(format!("the API server has no pod {namespace}/{pod}"))
            }
            other => Refusal::new(format!("cannot read the pod {namespace}/{pod}: {other}")),
        })?;
        if found.metadata.uid != *uid {
            return Err(Refusal::new(format!(
                "the pod {namespace}/{pod} of the API server is {}, but the container belongs to \
                 {uid}, which was deleted",
                found.metadata.uid
            )));
        }
        self.pods.apply(found.clone());
        Ok(found)
    }

    /// Asks the API server whether a pod that is known as live has ended.
    async fn has_ended(&self, pod: &Pod) -> bool {
        let lookup = self.api.get(&pod.metadata.namespace, &pod.metadata.name);
        let Ok(found) = tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await else { return false };
        let found: Result<Pod, Failure> = found;
        match found {
            Err(Failure::NotFound(_)) => {
                self.pods.delete(pod.clone());
                true
            }
            Ok(found) if found.metadata.uid != pod.metadata.uid => {
                self.pods.delete(pod.clone());
                true
            }
            Ok(found) => {
                self.pods.apply(found);
                self.pods.get(&pod.metadata.uid).is_none()
            }
            Err(_) => false,
        }
    }
}

fn is_placed(pod: &Pod) -> bool {
    let annotations = &pod.metadata.annotations;
    !pod.spec.node_name.is_empty()
        && [
            cgpu_kubernetes_core::names::annotation::ALLOCATION,
            cgpu_kubernetes_core::names::annotation::INDEX,
        ]
        .iter()
        .any(|name| annotations.contains_key(*name))
}
