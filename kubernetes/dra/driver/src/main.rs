//! `cgpu-dra-driver`: runs on each node whose GPUs are claimed.
//!
//! ```text
//!   NVML | monitor -> GPUs --+-> devices: the pool --> publisher --> API server: ResourceSlices
//!   node, slices --> owners -+       |
//!   kubelet -- registration --> service: GET the claim --> prepared claims: record, limits, CDI
//!                                                                 |
//!   API server: annotations of claims --> resizer ----------------+--> monitor: containers
//!   monitor: use of each share -----------------------> statuses --> API server: claims
//!   API server: which claims are gone ----------------> sweeper  --> they are unprepared
//! ```
//!
//! A second instance waits for the lock of the first, and registers only then.
//! `docs/internals/dra.md` describes the design.

#![forbid(unsafe_code)]

mod details;
mod devices;
mod held;
mod objects;
mod options;
mod owners;
mod publisher;
mod registration;
mod resizer;
mod service;
mod statuses;
mod sweeper;

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use cgpu_kubelet_api::dra::dra_plugin_server::DraPluginServer;
use cgpu_kubelet_api::dra_health::dra_resource_health_server::DraResourceHealthServer;
use cgpu_kubelet_api::registration::registration_server::RegistrationServer;
use cgpu_kubernetes_client::{Query, Timing, reflector};
use cgpu_kubernetes_dra::cdi::Cdi;
use cgpu_kubernetes_dra::prepared::PreparedClaims;
use cgpu_kubernetes_dra::store::Folders;
use cgpu_kubernetes_node::gpus;
use cgpu_kubernetes_node::health::Health;
use cgpu_kubernetes_node::owners::ObservedOwners;
use cgpu_kubernetes_node::program;
use cgpu_kubernetes_node::socket::{incoming, listen};
use clap::Parser;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tonic::transport::Server;
use tracing::info;

use crate::options::Options;
use crate::publisher::Published;
use crate::registration::Registrar;
use crate::resizer::Resizer;
use crate::service::Service;

/// Name of the socket where the kubelet registers the driver. The kubelet sends the socket's
/// escaped path as the authority of its requests. The HTTP library refuses an authority with `%`,
/// except in the part before `@`.
const REGISTRATION_SOCKET: &str = "gpu.cgpu.dev@reg.sock";

/// Interval at which a second instance tries to take the lock.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(200);

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    program::run("cgpu-dra-driver", run(Options::parse())).await
}

async fn run(options: Options) -> Result<()> {
    let (mut stop, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stopped = async move {
        tokio::select! {
            _ = stop.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    tokio::select! {
        result = serve(&options) => result?,
        () = stopped => {}
    }
    Ok(())
}

/// A socket that is removed when this instance ends. A waiting instance has none.
struct Socket(PathBuf);

impl Socket {
    fn listen(path: PathBuf) -> Result<(Self, UnixListener)> {
        let listener = listen(&path);
        let listener =
            listener.with_context(|| format!("cannot create the socket {}", path.display()))?;
        Ok((Self(path), listener))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Serves without end.
async fn serve(options: &Options) -> Result<()> {
    let api = options.access.api().await?;
    let folders = lock(options).await?;
    let cdi = Cdi {
        runtime: options.runtime.clone(),
        config: options.runtime_config.clone(),
        vendor_kind: options.vendor_cdi_kind.clone(),
    };
    let claims = tokio::task::spawn_blocking({
        let cdi = cdi.clone();
        move || PreparedClaims::open(folders, cdi)
    });
    let claims = Arc::new(claims.await??);
    info!(prepared = claims.ledger().claims().count(), "opened");

    let pool = watch::Sender::new(None);
    let service = Service {
        api: api.clone(),
        claims: Arc::clone(&claims),
        cdi,
        pool: pool.subscribe(),
        node: options.node_name.clone(),
        root: options.root.clone(),
    };
    let (driver_socket, listener) = Socket::listen(options.driver_dir().join("dra.sock"))?;
    let service = Arc::new(service);
    let driver = Server::builder()
        .add_service(DraPluginServer::from_arc(Arc::clone(&service)))
        .add_service(DraResourceHealthServer::from_arc(service))
        .serve_with_incoming(incoming(listener));
    let driver = tokio::spawn(driver);
    // The kubelet calls the driver as soon as it has found this socket.
    std::fs::create_dir_all(&options.registry_dir)?;
    let path = options.registry_dir.join(REGISTRATION_SOCKET);
    let (_registration_socket, listener) = Socket::listen(path)?;
    let registrar = RegistrationServer::new(Registrar { endpoint: driver_socket.0.clone() });
    let registration = Server::builder().add_service(registrar);
    let registration = tokio::spawn(registration.serve_with_incoming(incoming(listener)));

    let published = Published::default();
    let query = Query::all().field(format!("spec.nodeName={}", options.node_name));
    let list = tokio::spawn({
        let (api, published) = (api.clone(), published.clone());
        async move { reflector::run(&api, &query, &Timing::default(), &published).await }
    });
    let owners = watch::Sender::new(None);
    let resizer = Resizer {
        api: api.clone(),
        claims: Arc::clone(&claims),
        root: options.root.clone(),
        interval: Duration::from_secs(options.resize_interval),
        conditions: Mutex::default(),
    };
    let observe = observe(options, &published, owners.subscribe(), &pool);
    tokio::select! {
        ended = driver => ended?.context("the driver's socket")?,
        ended = registration => ended?.context("the registration's socket")?,
        ended = list => ended?,
        () = observe => {}
        () = owners::observe(&api, options, &published, &owners) => {}
        () = publisher::publish(&api, &options.node_name, &published, pool.subscribe()) => {}
        () = resizer.run() => {}
        () = statuses::write(
            &api,
            &options.node_name,
            &options.root,
            &claims,
            &resizer,
            Duration::from_secs(options.status_interval),
        ) => {}
        () = sweeper::run(
            &api,
            &options.root,
            &claims,
            Duration::from_secs(options.sweep_after),
        ) => {}
    }
    Ok(())
}

/// Takes the lock of the driver's folder, and waits while another instance has it.
async fn lock(options: &Options) -> Result<Folders> {
    let mut waits = false;
    loop {
        let shares = cgpu_shm::paths::shares(&options.root);
        let records = options.driver_dir().join("claims");
        match Folders::lock(&records, &shares, &options.cdi_dir) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if !waits {
                    info!("another instance serves this node; waiting until it ends");
                }
                waits = true;
                tokio::time::sleep(LOCK_POLL_INTERVAL).await;
            }
            folders => {
                return folders.with_context(|| format!("cannot use {}", records.display()));
            }
        }
    }
}

/// Keeps the pool up to date, without end.
async fn observe(
    options: &Options,
    published: &Published,
    owners: watch::Receiver<ObservedOwners>,
    pool: &watch::Sender<devices::ObservedPool>,
) {
    // The slices say which GPUs there were when the last instance ended, and which were unhealthy.
    let earlier = published.earlier().await;
    let found = watch::Sender::new(None);
    let gpus = found.subscribe();
    let health =
        Health::new(Duration::from_secs(options.recovery), options.ignore_xids.iter().copied());
    let unhealthy = earlier.iter().filter(|device| !device.healthy);
    let known = gpus::Earlier {
        devices: earlier.iter().map(|device| device.host).collect(),
        unhealthy: unhealthy.map(|device| device.host.name()).collect(),
    };
    gpus::start_watcher(&options.root, health, known, found);
    devices::observe(options, earlier, gpus, owners, pool).await;
}
