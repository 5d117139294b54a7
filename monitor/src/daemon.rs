//! The daemon: starts, takes over from a predecessor, hands over to a successor, ends.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, bail};
use cgpu_client::connection::Client;
use cgpu_client::message::{Errno, Refusal, Reply, Request};
use cgpu_shm::clock::{Clock, Monotonic};
use cgpu_shm::paths;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;
use crate::control::socket::Socket;
use crate::control::tree::Tree;
use crate::control::tree::channel::{self, RequestSender};
use crate::host::{FileWorkers, Host};
use crate::probe::{Paths, Prober};
use crate::service;
use crate::settings::{Found, Settings};
use crate::upgrade::UpgradeState;

mod event_loop;
mod latency;
mod poll;

use event_loop::{End, EventLoop, TRANSFER_TIMEOUT};

/// Runs a monitor until SIGTERM or SIGINT, or until a successor takes over. With `replace`, it
/// takes over from the monitor that answers at the socket, if one does.
///
/// # Errors
/// When it cannot start: another monitor runs, the root cannot be created, the settings cannot be
/// read. Once started, it does not end by itself.
pub fn run(config: &Config, replace: bool) -> Result<()> {
    latency::reduce_wakeup_latency();
    cgpu_shm::truncation::survive().context("cannot install the handler for truncated files")?;
    allow_descriptors();
    let containers = paths::containers(&config.root);
    std::fs::create_dir_all(&containers)
        .with_context(|| format!("cannot create {}", containers.display()))?;
    let path = paths::socket(&config.root);
    let predecessor = if replace { Client::connect(&path).ok() } else { None };
    let mut socket = match &predecessor {
        Some(_) => None,
        None => Some(open_socket(&path)?),
    };
    let (settings, refused) = match Settings::load(&config.state)
        .with_context(|| format!("cannot read the settings in {}", config.state.display()))?
    {
        Found::Settings(settings) => (settings, None),
        Found::Refused(message) => (Settings::default(), Some(message)),
    };
    let files = FileWorkers::start().context("cannot start the threads for containers' files")?;
    let (nvml, state) = (config.nvml.clone(), config.state.clone());
    let walls = paths::walls(&config.root);
    let prober = Prober::start(Paths { nvml, state, host: "/".into(), walls }, files.closer())
        .context("cannot start the prober thread")?;
    let mut host = Host::new(config, settings, prober, files, Monotonic.now());
    host.warn(refused);
    // A client that connects meanwhile waits for its reply.
    host.wait_for_first_sample(Monotonic.now());
    if let Some(mut predecessor) = predecessor {
        let state =
            predecessor.transfer().context("the running monitor does not transfer its state")?;
        let (state, refused) =
            UpgradeState::parse(state).context("cannot parse the running monitor's state")?;
        host.warn(refused);
        tracing::info!("taking over from a monitor of release {}", state.release);
        host.restore(Monotonic.now(), state);
        // The predecessor ends when this process has replaced the socket.
        service::is_main_process();
        socket = Some(
            Socket::take_over(&path).with_context(|| format!("cannot open {}", path.display()))?,
        );
    }
    host.find_containers(Monotonic.now());
    let socket = socket.context("no socket")?;
    let (tree_sender, tree_requests) =
        channel::open().context("cannot create the control tree's channel")?;
    let tree = mount(config, tree_sender).unwrap_or_else(|message| {
        host.warn(Some(message));
        None
    });
    if let Some(tree) = &tree {
        tracing::info!("control tree at {}", tree.path().display());
    }
    let mut daemon = EventLoop::new(host, socket, tree_requests, config.clone())?;
    if let Some(endpoint) = &config.metrics {
        crate::metrics::serve(endpoint.clone(), path.clone())
            .context("cannot start the metrics thread")?;
    }
    tracing::info!("monitor started for {}", config.root.display());
    service::ready();
    match daemon.serve()? {
        End::Stopped => {
            service::stopping();
            daemon.host.lift_blocks();
            daemon.host.turns().open_gates();
            tracing::info!("stopped by a signal; all gates are open");
        }
        End::Transferred => {
            tracing::info!("a successor has taken over");
            let EventLoop { socket, tree_requests, .. } = daemon;
            // A client whose request was not read connects again, to the successor.
            socket.end_when_replaced(TRANSFER_TIMEOUT);
            if let Some(tree) = tree {
                tree.leave(TRANSFER_TIMEOUT, || {
                    let forward = |request, may_write| forward(&path, &request, may_write);
                    while tree_requests.answer_one(forward).is_some() {}
                });
            }
        }
    }
    Ok(())
}

/// Raises the limit of open files to its maximum: a container takes some twenty.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!("no more than {:?} files can be open: {error}", limit.current);
    }
}

fn open_socket(path: &Path) -> Result<Socket> {
    match Socket::open(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            bail!(
                "another monitor answers at {}: stop it first, or replace it (--replace)",
                path.display()
            )
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            bail!(
                "cannot open {}: {error}; start it as root, or name a root that is yours with \
                 --root",
                path.display()
            )
        }
        other => other.with_context(|| format!("cannot open {}", path.display())),
    }
}

/// Mounts the control tree, if it is configured. The error is for the status: `cgpu get` and
/// `cgpu set` work without the tree.
fn mount(config: &Config, tree_sender: RequestSender) -> Result<Option<Tree>, String> {
    let Some(at) = &config.tree else { return Ok(None) };
    Tree::mount(at, &config.root, tree_sender).map(Some).map_err(|error| {
        format!(
            "no control tree at {}: {error}; cgpu get and cgpu set do the same without it",
            at.display()
        )
    })
}

fn forward(path: &Path, request: &Request, may_write: bool) -> Reply {
    let answer = Client::connect(path).and_then(|mut client| client.forward(request, may_write));
    answer.unwrap_or_else(|failure| Reply::Refused(Refusal::new(Errno::EIO, failure.to_string())))
}
