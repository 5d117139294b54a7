//! `cgpu-device-plugin`: runs on each node with GPUs.
//!
//! ```text
//!   NVML | monitor -> GPUs --+                     +--> endpoint: aliyun.com/gpu-mem ---+
//!                            +--> node: NodeGpus --+--> endpoint: gpu-core.percentage --+> kubelet
//!   API server --> node -----+     |  annotation,  +--> endpoint: nvidia.com/gpu ------+
//!        ^                         v  gpu-count            | Allocate: a token, its CDI device
//!        +-------------------------+                       v
//!        +--> owners: who else gives out these GPUs --> node
//!        |
//!        +--> pods --+--> binding <-- cgpu-runtime: which container has the token?
//! ```
//!
//! The kubelet gets counts. A container's GPUs are in the annotations of its pod, and only
//! `cgpu-runtime`, which starts it, knows which container it is. So `Allocate` returns a token, and
//! `cgpu-runtime` gets the variables over a socket that only root can open. All state is at the API
//! server. `docs/internals/kubernetes.md` describes the design.

#![forbid(unsafe_code)]

mod binding;
mod cdi;
mod claims;
mod details;
mod endpoint;
mod held;
mod kubelet;
mod node;
mod options;
mod owners;
mod pods;
mod resizer;
mod resource;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use cgpu_kubernetes_client::{Api, EventHandler, Query, Timing, reflector};
use cgpu_kubernetes_node::gpus::{self, Earlier};
use cgpu_kubernetes_node::health::Health;
use cgpu_kubernetes_node::program;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::warn;

use crate::binding::Binding;
use crate::cdi::Cdi;
use crate::details::DetailsReader;
use crate::endpoint::Endpoint;
use crate::node::{Sources, Synchronizer};
use crate::options::Options;
use crate::pods::Pods;
use crate::resizer::Resizer;
use crate::resource::Resource;

/// Delay before a failed write is repeated.
const RETRY_BACKOFF: Duration = Duration::from_secs(5);
/// Interval at which all annotations are compared.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(60);

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    program::run("cgpu-device-plugin", run(Options::parse())).await
}

async fn run(options: Options) -> Result<()> {
    let options = Arc::new(options);
    let mut stop = signal(SignalKind::terminate())?;
    let api = options.access.api().await?;
    let pods = Arc::new(Pods::new(options.dialects(), &options.kubelet_dir));
    let (listener, socket) = binding::listen(&options.root).with_context(|| {
        format!("cannot create the socket for cgpu-runtime in {}", options.root.display())
    })?;

    let own = node::OwnNode(watch::Sender::new(None));
    let (mut node, sender) = (own.0.subscribe(), watch::Sender::new(None));
    let mut observed = sender.subscribe();
    let binding =
        Arc::new(Binding { api: api.clone(), pods: Arc::clone(&pods), observed: observed.clone() });
    tokio::spawn(binding.serve(listener));
    tokio::spawn(reflect_node(
        api.clone(),
        Query::all().field(format!("metadata.name={}", options.node_name)),
        own,
    ));
    let cdi = (!options.no_cdi).then(|| Cdi::new(&options.cdi_dir, &options.runtime));

    // The node's annotation has the GPUs that were unhealthy.
    let unhealthy = tokio::select! {
        known = node.wait_for(Option::is_some) => {
            node::unhealthy_gpus(known?.as_ref().context("a node")?)
        }
        _ = stop.recv() => return Ok(()),
    };
    tokio::select! {
        () = claims::wait_until_unprepared(&options.root) => {}
        _ = stop.recv() => return Ok(()),
    }
    let found = watch::Sender::new(None);
    let gpus = found.subscribe();
    let health =
        Health::new(Duration::from_secs(options.recovery), options.ignore_xids.iter().copied());
    let earlier = Earlier { unhealthy, ..Earlier::default() };
    gpus::start_watcher(&options.root, health, earlier, found);
    let held = watch::Sender::new(None);
    let others = watch::Sender::new(None);
    tokio::spawn({
        let (root, pci_devices) = (options.root.clone(), options.pci_devices.clone());
        let synchronizer = Synchronizer {
            api: api.clone(),
            unit: options.memory_unit,
            program: options.program(),
            details: DetailsReader { root, pci_devices, known: BTreeMap::new() },
        };
        let (owners, held) = (others.subscribe(), held.subscribe());
        let sources = Sources { gpus, owners, held, node: node.clone() };
        async move { synchronizer.run(sources, &sender).await }
    });
    tokio::spawn({
        let (api, node, options) = (api.clone(), node.clone(), Arc::clone(&options));
        async move { owners::observe(&api, &options, node, &others).await }
    });
    let resizer = Resizer {
        api: api.clone(),
        pods: Arc::clone(&pods),
        observed: observed.clone(),
        held: held.subscribe(),
        root: options.root.clone(),
        may_grow: options.allow_growth,
    };
    tokio::spawn(async move { resizer.run().await });
    tokio::spawn(held::watch_containers(options.root.clone(), observed.clone(), held));
    tokio::spawn(annotate(api.clone(), Arc::clone(&pods), cdi.clone()));
    tokio::spawn({
        let (api, pods) = (api.clone(), Arc::clone(&pods));
        let query = Query::all().field(format!("spec.nodeName={}", options.node_name));
        async move { reflector::run(&api, &query, &Timing::default(), &*pods).await }
    });
    tokio::select! {
        known = observed.wait_for(Option::is_some) => {
            // A person must choose another unit if there are more units than the kubelet accepts.
            let known = known?.clone().context("gpus")?;
            Resource::Memory
                .devices(&known)
                .map_err(|refusal| anyhow!("{refusal} (--memory-unit)"))?;
        }
        _ = stop.recv() => return Ok(()),
    }

    let offered = [Resource::Memory, Resource::Percent, Resource::Gpus];
    let endpoints: Vec<Endpoint> = offered
        .into_iter()
        .filter(|resource| options.hami || *resource != Resource::Gpus)
        .map(|resource| Endpoint {
            resource,
            folder: options.kubelet_dir.clone(),
            observed: observed.clone(),
            pods: Arc::clone(&pods),
            cdi: cdi.clone(),
        })
        .collect();
    for endpoint in &endpoints {
        tokio::spawn(endpoint.clone().run());
    }
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = stop.recv() => {}
        _ = interrupt.recv() => {}
    }
    endpoints.iter().for_each(Endpoint::remove_socket);
    let _ = std::fs::remove_file(socket);
    Ok(())
}

async fn reflect_node(api: Api, query: Query, own: node::OwnNode) {
    reflector::run(&api, &query, &Timing::default(), &own).await;
}

/// Records slices on their pods, restores missing CDI devices, and removes those of unassigned
/// slices.
async fn annotate(api: Api, pods: Arc<Pods>, cdi: Option<Cdi>) {
    pods.listed().await;
    loop {
        let mut delay = RECONCILE_INTERVAL;
        for note in pods.pending_annotations() {
            match note.write(&api).await {
                Ok(pod) => pods.apply(pod),
                Err(failure) => {
                    warn!("cannot write the slices of a pod on it: {failure}");
                    delay = RETRY_BACKOFF;
                }
            }
        }
        if let Some(cdi) = &cdi {
            let slices = pods.slices();
            let kept = slices.iter().try_for_each(|token| cdi.ensure(*token));
            if let Err(error) = kept.and_then(|()| cdi.sweep(|token| slices.contains(&token))) {
                warn!("cannot update the CDI devices: {error}");
            }
        }
        let _ = tokio::time::timeout(delay, pods.changed.notified()).await;
    }
}
