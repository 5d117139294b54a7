//! The kubelet's side of dynamic resource allocation: it finds a driver's socket, registers it, and
//! has claims prepared and unprepared.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cgpu_e2e::{Child, Fixture};
use cgpu_kubelet_api::dra::dra_plugin_client::DraPluginClient;
use cgpu_kubelet_api::dra::{Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};
use cgpu_kubelet_api::dra_health::dra_resource_health_client::DraResourceHealthClient;
use cgpu_kubelet_api::dra_health::{HealthStatus, NodeWatchResourcesRequest};
use cgpu_kubelet_api::registration::registration_client::RegistrationClient;
use cgpu_kubelet_api::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use futures_util::future::join_all;
use serde_json::Value;
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// The real kubelet's timeout of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(45);

/// A device of a prepared claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedDevice {
    /// Requests of the claim.
    pub requests: Vec<String>,
    /// `pool/device`.
    pub device: String,
    /// CDI ids.
    pub cdi: Vec<String>,
    /// Identifier of the share.
    pub share: Option<String>,
}

/// Answers by uid of the claim.
pub type Answers<T> = BTreeMap<String, Result<T, String>>;

/// Starts the real driver of a node, with the kubelet's folder of plugins.
#[must_use]
pub fn start(
    fixture: &Fixture,
    kubeconfig: &Path,
    node: &str,
    plugins: &Path,
    options: &[&str],
) -> Child {
    Child::start_for(command(fixture, kubeconfig, node, plugins, options), fixture.lifetime())
}

/// Returns the command line of [`start`].
#[must_use]
pub fn command(
    fixture: &Fixture,
    kubeconfig: &Path,
    node: &str,
    plugins: &Path,
    options: &[&str],
) -> Command {
    let dist = fixture.dist();
    let mut command = fixture.native(&dist.file("cgpu-dra-driver"));
    command.arg("--kubeconfig").arg(kubeconfig).args(["--node-name", node]);
    for (option, path) in [
        ("--plugins-dir", plugins.to_owned()),
        ("--registry-dir", fixture.path("registry")),
        ("--root", fixture.root()),
        ("--cdi-dir", fixture.path("cdi")),
        ("--runtime", dist.file("cgpu-runtime")),
    ] {
        command.arg(option).arg(path);
    }
    command.args(options);
    command
}

/// A kubelet that knows one driver.
pub struct DriverKubelet {
    runtime: Runtime,
    registry: PathBuf,
}

impl DriverKubelet {
    /// Starts a kubelet that finds drivers in this folder.
    #[must_use]
    pub fn new(registry: &Path) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("threads");
        Self { runtime, registry: registry.to_owned() }
    }

    /// Registers a driver; none: it has no socket, or does not answer.
    #[must_use]
    pub fn register(&self, driver: &str) -> Option<PluginInfo> {
        let sockets = fs::read_dir(&self.registry).ok()?.flatten().map(|entry| entry.path());
        self.runtime.block_on(async {
            for socket in sockets {
                let mut client = RegistrationClient::new(connect_to_plugin(&socket).await.ok()?);
                let info = client.get_info(InfoRequest {}).await.ok()?.into_inner();
                if info.name == driver {
                    let status =
                        RegistrationStatus { plugin_registered: true, error: String::new() };
                    client.notify_registration_status(status).await.ok()?;
                    return Some(info);
                }
            }
            None
        })
    }

    /// Prepares claims in one call. Every claim must be in the answer.
    ///
    /// # Errors
    /// The driver does not answer.
    pub fn prepare(
        &self,
        driver: &PluginInfo,
        claims: &[&Value],
    ) -> Result<Answers<Vec<PreparedDevice>>, Status> {
        self.runtime.block_on(async {
            let mut client = DraPluginClient::new(connect(Path::new(&driver.endpoint)).await?);
            let claims: Vec<Claim> = claims.iter().copied().map(named).collect();
            let request = NodePrepareResourcesRequest { claims: claims.clone() };
            let mut answers = client.node_prepare_resources(request).await?.into_inner().claims;
            let answer = |claim: Claim| {
                let answer = answers.remove(&claim.uid).expect("every claim in the answer");
                let device = |device: cgpu_kubelet_api::dra::Device| PreparedDevice {
                    requests: device.request_names,
                    device: format!("{}/{}", device.pool_name, device.device_name),
                    cdi: device.cdi_device_ids,
                    share: device.share_id,
                };
                let devices = answer.devices.into_iter().map(device).collect();
                (claim.uid, if answer.error.is_empty() { Ok(devices) } else { Err(answer.error) })
            };
            Ok(claims.into_iter().map(answer).collect())
        })
    }

    /// Prepares each claim in a call of its own, all at once over one connection, as a kubelet does
    /// for the pods of a node. Returns how long each call took.
    ///
    /// # Errors
    /// The driver does not answer, or a claim is not prepared.
    pub fn prepare_each(
        &self,
        driver: &PluginInfo,
        claims: &[&Value],
    ) -> Result<Vec<Duration>, Status> {
        self.runtime.block_on(async {
            let client = DraPluginClient::new(connect(Path::new(&driver.endpoint)).await?);
            let calls = claims.iter().copied().map(|claim| {
                let (mut client, claim) = (client.clone(), named(claim));
                async move {
                    let (uid, start) = (claim.uid.clone(), Instant::now());
                    let request = NodePrepareResourcesRequest { claims: vec![claim] };
                    let mut answers =
                        client.node_prepare_resources(request).await?.into_inner().claims;
                    let took = start.elapsed();
                    let error = answers.remove(&uid).expect("the claim in the answer").error;
                    if error.is_empty() { Ok(took) } else { Err(Status::aborted(error)) }
                }
            });
            join_all(calls).await.into_iter().collect()
        })
    }

    /// Unprepares claims in one call. Every claim must be in the answer.
    ///
    /// # Errors
    /// The driver does not answer.
    pub fn unprepare(&self, driver: &PluginInfo, claims: &[&Value]) -> Result<Answers<()>, Status> {
        self.runtime.block_on(async {
            let mut client = DraPluginClient::new(connect(Path::new(&driver.endpoint)).await?);
            let claims: Vec<Claim> = claims.iter().copied().map(named).collect();
            let request = NodeUnprepareResourcesRequest { claims: claims.clone() };
            let mut answers = client.node_unprepare_resources(request).await?.into_inner().claims;
            let answer = |claim: Claim| {
                let answer = answers.remove(&claim.uid).expect("every claim in the answer");
                (claim.uid, if answer.error.is_empty() { Ok(()) } else { Err(answer.error) })
            };
            Ok(claims.into_iter().map(answer).collect())
        })
    }

    /// Returns the first report of the devices' health.
    ///
    /// # Errors
    /// The driver does not answer.
    pub fn health(&self, driver: &PluginInfo) -> Result<BTreeMap<String, bool>, Status> {
        self.runtime.block_on(async {
            let channel = connect(Path::new(&driver.endpoint)).await?;
            let mut client = DraResourceHealthClient::new(channel);
            let request = NodeWatchResourcesRequest {};
            let mut reports = client.node_watch_resources(request).await?.into_inner();
            let report = reports.message().await?.unwrap_or_default();
            let device = |device: cgpu_kubelet_api::dra_health::DeviceHealth| {
                let healthy = device.health() == HealthStatus::Healthy;
                (device.device.unwrap_or_default().device_name, healthy)
            };
            Ok(report.devices.into_iter().map(device).collect())
        })
    }
}

/// Connects to a socket in the folder of plugins. The real kubelet sends the escaped path as the
/// authority of its requests, unlike to the driver's own socket. A path that the HTTP library
/// refuses there is one that the driver's server would refuse, too.
async fn connect_to_plugin(socket: &Path) -> Result<Channel, Status> {
    let authority = socket.display().to_string().replace('/', "%2F");
    let origin = format!("http://{authority}").parse();
    let origin = origin.unwrap_or_else(|error| panic!("the authority {authority}: {error}"));
    connect_by(endpoint(socket)?.origin(origin)).await
}

async fn connect(socket: &Path) -> Result<Channel, Status> {
    connect_by(endpoint(socket)?).await
}

fn endpoint(socket: &Path) -> Result<Endpoint, Status> {
    Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(unreachable)
}

async fn connect_by(endpoint: Endpoint) -> Result<Channel, Status> {
    endpoint.timeout(CALL_TIMEOUT).connect().await.map_err(unreachable)
}

fn unreachable(error: tonic::transport::Error) -> Status {
    Status::unavailable(error.to_string())
}

fn named(claim: &Value) -> Claim {
    let text = |name: &str| claim["metadata"][name].as_str().expect("a text").to_owned();
    Claim { namespace: text("namespace"), uid: text("uid"), name: text("name") }
}
