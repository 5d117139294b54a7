//! `cgpu-scheduler-extender`: answers kube-scheduler's questions about GPUs, with gpushare's paths and bodies.
//!
//! ```text
//!   kube-scheduler --HTTP--> routes --> filter, prioritize, inspect: from the copy (sight), which the mirror keeps
//!                                   \-> bind (binder): claim, look, bind, at the API server
//!                            sweep: withdraws what came to nothing (one of the replicas)
//!                            events: on pods and nodes
//! ```
//!
//! What is decided is decided by `cgpu_kubernetes_core`. Nothing is kept that a restart would lose.

#![forbid(unsafe_code)]

mod binder;
mod metrics;
mod events;
mod options;
mod routes;
mod sight;
mod sweep;
mod tls;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::serve::ListenerExt;
use cgpu_kubernetes_client::{Api, Election, Timing, Query, reflector};
use cgpu_kubernetes_core::names::Dialects;
use cgpu_kubernetes_core::object::{Node, Pod};
use clap::Parser;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

use crate::binder::Binder;
use crate::metrics::Metrics;
use crate::events::EventRecorder;
use crate::options::{LogFormat, Options};
use crate::routes::Desk;
use crate::sight::Sight;
use crate::tls::{Files, Identity, TlsListener};

/// Who we are, in events and logs.
pub(crate) const NAME: &str = "cgpu-scheduler-extender";

/// So long those who have asked something may wait for its answer when we are told to end.
const FAREWELL: Duration = Duration::from_secs(20);

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

/// What fails is told by whoever asked for it. `kube_client` would tell it once more, and as an error also what is none, so it is heard only if it is named.
fn filter(told: &str) -> Result<EnvFilter> {
    let names = told.contains("kube_client");
    Ok(EnvFilter::try_new(if names { told.to_owned() } else { format!("{told},kube_client=off") })?)
}

async fn serve(options: Options) -> Result<()> {
    let ended = ended()?;
    let api = options.access.api().await?;
    let identity = tls_files(&options).map(Identity::read).transpose()?;
    let address = SocketAddr::new(options.address, options.port);
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen at {address}"))?;
    let address = listener.local_addr()?;

    let sight = Arc::new(Sight::new(Dialects { hami: options.hami }));
    let metrics = Arc::new(Metrics::new());
    let (events, queue) = EventRecorder::new();
    let events = Arc::new(events);
    tokio::spawn(events::publish_all(api.clone(), queue));
    follow(&api, &sight, &options);
    let (leads, leading) = watch::channel(!options.leader_elect);
    let election = Arc::new(election(&api, &options));
    if options.leader_elect {
        let election = Arc::clone(&election);
        tokio::spawn(async move { election.run(&leads).await });
    }
    tokio::spawn(show_leadership(leading.clone(), Arc::clone(&metrics)));
    let every = Duration::from_secs(options.sweep);
    tokio::spawn(sweep::run(api.clone(), Arc::clone(&sight), Arc::clone(&events), leading.clone(), every));

    let binder = Binder::new(api.clone(), Arc::clone(&sight));
    let placement = options.node_placement.into();
    let router = routes::router(Arc::new(Desk { sight, binder, events, metrics, placement }));
    info!(%address, tls = identity.is_some(), version = env!("CARGO_PKG_VERSION"), "listening");
    answer(listener, identity, router, ended).await?;
    if *leading.borrow() && options.leader_elect {
        election.resign().await;
    }
    info!("ended");
    Ok(())
}

/// Answers until it is told to end, and what was asked before then.
async fn answer(
    listener: TcpListener,
    identity: Option<Identity>,
    router: Router,
    ended: watch::Receiver<bool>,
) -> Result<()> {
    let told = |mut ended: watch::Receiver<bool>| async move {
        // Whoever could say so lives as long as the process.
        let _ = ended.wait_for(|ended| *ended).await;
    };
    let serving = async {
        match identity {
            Some(identity) => {
                let listener = TlsListener::new(listener, identity)?;
                axum::serve(listener, router).with_graceful_shutdown(told(ended.clone())).await
            }
            None => {
                // Answers are written in one piece: nothing is gained by waiting for more.
                let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
                axum::serve(listener, router).with_graceful_shutdown(told(ended.clone())).await
            }
        }
    };
    let late = async {
        told(ended.clone()).await;
        tokio::time::sleep(FAREWELL).await;
    };
    tokio::select! {
        served = serving => Ok(served?),
        () = late => {
            warn!("some of those who asked have had no answer");
            Ok(())
        }
    }
}

/// Keeps the copy.
fn follow(api: &Api, sight: &Arc<Sight>, options: &Options) {
    let timing = Timing { resync_interval: Duration::from_secs(options.resync), ..Timing::default() };
    // Those that have ended hold nothing. One that ends while it is watched is told as one that went.
    let living = Query::all().field("status.phase!=Succeeded").field("status.phase!=Failed");
    let (one, other) =
        ((api.clone(), Arc::clone(sight), timing.clone()), (api.clone(), Arc::clone(sight), timing));
    tokio::spawn(async move { reflector::run::<Node>(&one.0, &Query::all(), &one.2, &*one.1).await });
    tokio::spawn(async move { reflector::run::<Pod>(&other.0, &living, &other.2, &*other.1).await });
}

fn election(api: &Api, options: &Options) -> Election {
    let namespace = options.lease_namespace.clone().unwrap_or_else(|| api.namespace().to_owned());
    Election::new(api.clone(), &namespace, &options.lease_name, &options.identity(), options.term())
}

async fn show_leadership(mut leading: watch::Receiver<bool>, metrics: Arc<Metrics>) {
    loop {
        metrics.leads(*leading.borrow_and_update());
        if leading.changed().await.is_err() {
            return;
        }
    }
}

fn tls_files(options: &Options) -> Option<Files> {
    let certificate = options.tls_cert.clone()?;
    let key = options.tls_key.clone()?;
    Some(Files { certificate, key, client_ca: options.tls_client_ca.clone() })
}

/// Becomes true when we are told to end.
fn ended() -> Result<watch::Receiver<bool>> {
    let (sender, receiver) = watch::channel(false);
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        info!("told to end");
        sender.send_replace(true);
        // Held open: receivers wait for the value, not for the end of the channel.
        std::future::pending::<()>().await;
    });
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_own_words_are_heard_only_where_it_is_named() {
        let mutes = |told: &str| filter(told).unwrap().to_string().contains("kube_client=off");
        assert!(mutes("info") && mutes("trace") && mutes("info,cgpu_kubernetes_core=debug"));
        assert!(!mutes("info,kube_client=debug"));
    }
}
