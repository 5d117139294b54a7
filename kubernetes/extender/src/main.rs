//! `cgpu-scheduler-extender`: serves kube-scheduler's requests about GPUs, with gpushare's paths
//! and bodies.
//!
//! ```text
//!   kube-scheduler --HTTP--> connections: bounded
//!                            routes --> another replica leads: leader
//!                                   |-> filter, prioritize, inspect: from the cache
//!                                   |-> preempt: the same, with the disruption budgets
//!                                   \-> bind (binder): claim, confirm and bind at the API server
//!                            cache: filled by reflectors
//!                            sweep: withdraws stale claims (the leader)
//!                            events: on pods and nodes
//!                            fragmentation: events on pods that no GPU fits
//!                            retry: has pods tried again that a node fits now
//! ```
//!
//! `cgpu_kubernetes_core` makes all decisions. A restart loses no state.

#![forbid(unsafe_code)]

mod binder;
mod cache;
mod connections;
mod events;
mod fragmentation;
mod leader;
mod metrics;
mod options;
mod peers;
mod places;
mod retry;
mod routes;
mod sweep;
mod tls;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use cgpu_kubernetes_client::{Api, Election, Leadership, Query, Timing, reflector};
use cgpu_kubernetes_core::cordon;
use cgpu_kubernetes_core::names::Dialects;
use cgpu_kubernetes_core::object::{ConfigMap, Node, Pod};
use clap::Parser;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tracing::info;
use tracing_subscriber::EnvFilter;

use crate::binder::Binder;
use crate::cache::ClusterCache;
use crate::connections::Limits;
use crate::events::EventRecorder;
use crate::fragmentation::Fragmentation;
use crate::leader::Replicas;
use crate::metrics::Metrics;
use crate::options::{LogFormat, Options};
use crate::places::Places;
use crate::retry::Retry;
use crate::routes::{Handlers, MAX_DECISIONS};
use crate::tls::{Files, Identity};

/// Name of the program in events and logs.
pub(crate) const NAME: &str = "cgpu-scheduler-extender";

/// Time to release the lease.
const RESIGN_TIMEOUT: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let options = Options::parse();
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{NAME}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<()> {
    let filter = filter(&options.log_level).context("--log-level")?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match options.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = options.threads {
        runtime.worker_threads(threads.into());
    }
    let runtime = runtime.enable_all().build()?;
    runtime.block_on(serve(options))
}

/// Returns a filter that disables the log of `kube_client` unless the directives name it. The
/// caller of a failed request logs it; `kube_client` also logs expected failures as errors.
fn filter(directives: &str) -> Result<EnvFilter> {
    let names = directives.contains("kube_client");
    Ok(EnvFilter::try_new(if names {
        directives.to_owned()
    } else {
        format!("{directives},kube_client=off")
    })?)
}

async fn serve(options: Options) -> Result<()> {
    let ended = shutdown_signal()?;
    let api = options.access.api().await?;
    let identity = tls_files(&options).map(Identity::read).transpose()?.map(Arc::new);
    let address = SocketAddr::new(options.address, options.port);
    let listener =
        TcpListener::bind(address).await.with_context(|| format!("cannot listen at {address}"))?;
    let address = listener.local_addr()?;

    let cache = Arc::new(ClusterCache::new(Dialects { hami: options.hami }));
    let metrics = Arc::new(Metrics::new());
    let (events, queue) = EventRecorder::new();
    let events = Arc::new(events);
    tokio::spawn(events::publish_all(api.clone(), queue));
    follow(&api, &cache, &options);
    let alone = if options.leader_elect { Leadership::Unknown } else { Leadership::Own };
    let (sender, leader) = watch::channel(alone);
    let election = election(&api, &options, address);
    let elected = options
        .leader_elect
        .then(|| tokio::spawn(elect(election, sender, Arc::clone(&cache), ended.clone())));
    tokio::spawn(show_leadership(leader.clone(), Arc::clone(&metrics)));
    let every = Duration::from_secs(options.sweep);
    tokio::spawn(sweep::run(
        api.clone(),
        Arc::clone(&cache),
        Arc::clone(&events),
        leader.clone(),
        every,
        Duration::from_secs(options.lost_after),
    ));

    let fragmentation = Arc::new(Fragmentation::default());
    tokio::spawn(fragmentation::run(
        Arc::clone(&fragmentation),
        Arc::clone(&cache),
        Arc::clone(&events),
    ));
    let retry = Arc::new(Retry::default());
    tokio::spawn(retry::run(Arc::clone(&retry), api.clone(), Arc::clone(&cache)));
    let binder =
        Binder::new(api.clone(), Arc::clone(&cache), Duration::from_secs(options.watch_timeout));
    let placement = options.node_placement.into();
    let limits = Limits::new(options.whole_nodes);
    let replicas =
        Replicas::new(leader.clone(), identity.clone(), Duration::from_secs(options.call_timeout));
    let router = routes::router(Arc::new(Handlers {
        api,
        cache,
        binder,
        replicas,
        fragmentation,
        retry,
        events,
        metrics: Arc::clone(&metrics),
        placement,
        whole_nodes: options.whole_nodes,
        large_requests: Places::new(limits.large_requests),
        decisions: Semaphore::new(MAX_DECISIONS),
        limits: limits.clone(),
    }));
    info!(%address, tls = identity.is_some(), version = env!("CARGO_PKG_VERSION"), "listening");
    connections::serve(listener, identity, router, limits, metrics, ended).await;
    if let Some(elected) = elected {
        let _ = timeout(RESIGN_TIMEOUT, elected).await;
    }
    info!("ended");
    Ok(())
}

/// Starts the reflectors that fill the cache.
fn follow(api: &Api, cache: &Arc<ClusterCache>, options: &Options) {
    let timing =
        Timing { resync_interval: Duration::from_secs(options.resync), ..Timing::default() };
    // Ended pods hold nothing. A watch reports a pod that ends as deleted.
    let live = Query::all().field("status.phase!=Succeeded").field("status.phase!=Failed");
    let each = || (api.clone(), Arc::clone(cache), timing.clone());
    let (one, other, third) = (each(), each(), each());
    let maps = Query::all().namespace(cordon::NAMESPACE);
    tokio::spawn(
        async move { reflector::run::<ConfigMap>(&third.0, &maps, &third.2, &*third.1).await },
    );
    tokio::spawn(
        async move { reflector::run::<Node>(&one.0, &Query::all(), &one.2, &*one.1).await },
    );
    tokio::spawn(async move { reflector::run::<Pod>(&other.0, &live, &other.2, &*other.1).await });
}

fn election(api: &Api, options: &Options, own: SocketAddr) -> Election {
    let namespace = options.lease_namespace.clone().unwrap_or_else(|| api.namespace().to_owned());
    Election::new(
        api.clone(),
        (&namespace, &options.lease_name),
        &options.identity(),
        &options.advertised(own),
        options.lease_timing(),
    )
}

/// Takes part in the election until shutdown. A leader then releases the lease, so that another one
/// leads while this one answers its pending requests.
async fn elect(
    election: Election,
    leader: watch::Sender<Leadership>,
    cache: Arc<ClusterCache>,
    mut ended: watch::Receiver<bool>,
) {
    let takes_part = async {
        // A replica that does not know the cluster must not lead.
        cache.listed().await;
        election.run(&leader).await;
    };
    tokio::select! {
        () = takes_part => {}
        _ = ended.wait_for(|ended| *ended) => {}
    }
    if leader.send_replace(Leadership::Unknown) == Leadership::Own {
        election.resign().await;
    }
}

async fn show_leadership(mut leader: watch::Receiver<Leadership>, metrics: Arc<Metrics>) {
    loop {
        metrics.leads(*leader.borrow_and_update() == Leadership::Own);
        if leader.changed().await.is_err() {
            return;
        }
    }
}

fn tls_files(options: &Options) -> Option<Files> {
    let certificate = options.tls_cert.clone()?;
    let key = options.tls_key.clone()?;
    Some(Files { certificate, key, client_ca: options.tls_client_ca.clone() })
}

/// Returns a flag that becomes true on SIGTERM or SIGINT.
fn shutdown_signal() -> Result<watch::Receiver<bool>> {
    let (sender, receiver) = watch::channel(false);
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        info!("shutting down");
        sender.send_replace(true);
        // The sender stays alive: receivers wait for the value, not for the end of the channel.
        std::future::pending::<()>().await;
    });
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_of_kube_client_is_disabled_unless_named() {
        let mutes =
            |directives: &str| filter(directives).unwrap().to_string().contains("kube_client=off");
        assert!(mutes("info") && mutes("trace") && mutes("info,cgpu_kubernetes_core=debug"));
        assert!(!mutes("info,kube_client=debug"));
    }
}
