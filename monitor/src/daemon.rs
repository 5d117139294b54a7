//! The daemon: sleeps until something is heard or due, and does it.
//!
//! Turns are given by this thread, so nothing in here may wait for anybody. NVML, `/proc`, the disk's acknowledgement are the scout's
//! (`scout.rs`), FUSE has a thread, and so has the metrics endpoint; sockets and bells are never waited for. What can still take its time, all of it rare, and
//! not in a step of a GPU:
//!
//! | what | when |
//! |---|---|
//! | `settings.json` is written and renamed, without waiting for the disk: where that is busy the file system may hold us up | somebody sets something, or a container with settings goes |
//! | the configuration is read | SIGHUP |
//! | a directory that is registered, its `/proc/PID/stat` | somebody registers |
//! | a container's small files, its directory: in memory below the root; a registered one lies where its maker wants | a scan (500 ms), a status |
//! | a successor is started | an upgrade |
//! | a line of the log | standard error is a pipe or a socket that nobody empties |

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cgpu_shm::paths;
use cgpu_shm::units::Nanos;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};

pub(crate) mod poll;
mod promptness;

use cgpu_client::connection::Client;
use cgpu_client::message::{Errno, Refusal, Reply, Request};
use cgpu_scheduler::tenants::TenantId;
use poll::{Poll, Source, now};

use crate::config::Config;
use crate::estate::Estate;
use crate::host::{Change, Host, Process};
use crate::scout::Scout;
use crate::service;
use crate::settings::{Found, Settings};
use crate::socket::{self, Socket};
use crate::tree::Tree;
use crate::tree::desk::{self, Caller, Desk};

/// Hearts beat, lives are looked at.
const BEAT: Nanos = Nanos::from_millis(100);
/// The root is looked through.
const SCAN: Nanos = Nanos::from_millis(500);

/// Whether the last words reach a successor within this.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Runs a monitor until SIGTERM or SIGINT, or until a successor takes over. With `replace` it is the successor of the one that answers
/// there, if one does.
///
/// # Errors
/// When it cannot start: another monitor runs, the root cannot be made, the settings cannot be read. Once it runs, it does not end by
/// itself.
pub fn run(config: &Config, replace: bool) -> Result<()> {
    promptness::be_prompt();
    cgpu_shm::cut::outlive().context("no handler for files that are cut short")?;
    allow_descriptors();
    let containers = paths::containers(&config.root);
    std::fs::create_dir_all(&containers).with_context(|| format!("cannot make {}", containers.display()))?;
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
        Found::Refused(sentence) => (Settings::default(), Some(sentence)),
    };
    let scout =
        Scout::send_out(config.nvml.clone(), config.state.clone()).context("no thread for the scout")?;
    let mut host = Host::new(config, settings, scout, now());
    host.warn(refused);
    // Whoever connects meanwhile waits for the answer.
    host.hear_first(now());
    if let Some(mut predecessor) = predecessor {
        let estate = predecessor.hand_over().context("the running monitor does not hand over")?;
        let estate: Estate = serde_json::from_value(estate).context("its state cannot be read")?;
        tracing::info!("taking over from a monitor of {}", estate.release);
        host.inherit(now(), estate);
        // The predecessor ends when the socket's name is ours.
        service::is_main_process();
        socket = Some(Socket::succeed(&path).with_context(|| format!("cannot open {}", path.display()))?);
    }
    let socket = socket.context("no socket")?;
    let (caller, desk) = desk::open().context("no descriptor for the tree")?;
    let tree = mount(config, caller).unwrap_or_else(|sentence| {
        host.warn(Some(sentence));
        None
    });
    if let Some(tree) = &tree {
        tracing::info!("control tree at {}", tree.place().display());
    }
    let mut daemon = Daemon::new(host, socket, desk, config.clone())?;
    if let Some(endpoint) = &config.metrics {
        crate::metrics::serve(endpoint.clone(), path.clone()).context("no thread for the metrics")?;
    }
    tracing::info!("monitor of {}", config.root.display());
    service::ready();
    match daemon.serve()? {
        End::Stopped => {
            service::stopping();
            daemon.host.open_gates();
            tracing::info!("told to end: all gates are open");
        }
        End::Succeeded => {
            tracing::info!("handed over");
            let Daemon { socket, desk, .. } = daemon;
            // Who has connected to us and was not heard asks again, there.
            socket.end_when_replaced(LAST_WORDS);
            if let Some(tree) = tree {
                tree.leave(LAST_WORDS, || {
                    desk.answer(|request, may_write| pass_on(&path, &request, may_write))
                });
            }
        }
    }
    Ok(())
}

/// As many open files as the system lets us have: a container takes some twenty, and the usual thousand is meant for programs that use `select`.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!("no more than {:?} files can be open: {error}", limit.current);
    }
}

fn open_socket(path: &Path) -> Result<Socket> {
    match Socket::open(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            bail!("another monitor answers at {}: stop it first, or replace it (--replace)", path.display())
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            bail!(
                "cannot open {}: {error}; start it as root, or name a root that is yours with --root",
                path.display()
            )
        }
        other => other.with_context(|| format!("cannot open {}", path.display())),
    }
}

/// The tree, where it is wanted; or why there is none: `cgpu get` and `cgpu set` do the same without it.
fn mount(config: &Config, caller: Caller) -> Result<Option<Tree>, String> {
    let Some(at) = &config.tree else { return Ok(None) };
    Tree::mount(at, &config.root, caller).map(Some).map_err(|error| {
        format!("no control tree at {}: {error}; cgpu get and cgpu set do the same without it", at.display())
    })
}

/// Has the successor answer.
fn pass_on(path: &Path, request: &Request, may_write: bool) -> Reply {
    let answer = Client::connect(path).and_then(|mut client| client.pass_on(request, may_write));
    answer.unwrap_or_else(|failure| Reply::Refused(Refusal::new(Errno::EIO, failure.to_string())))
}

/// Why a monitor ends.
enum End {
    Stopped,
    Succeeded,
}

/// What a signal asks for.
const STOP: u64 = 0;
const RELOAD: u64 = 1;
const UPGRADE: u64 = 2;
const SIGNALS: [(i32, u64); 4] = [(SIGTERM, STOP), (SIGINT, STOP), (SIGHUP, RELOAD), (SIGUSR2, UPGRADE)];

struct Daemon {
    host: Host,
    socket: Socket,
    desk: Desk,
    poll: Poll,
    config: Config,
    /// Readable once a signal of the kind has come.
    signals: Vec<UnixStream>,
    next_beat: Nanos,
    next_scan: Nanos,
    /// Bells that are not listened to.
    muted: Vec<TenantId>,
}

impl Daemon {
    fn new(host: Host, socket: Socket, desk: Desk, config: Config) -> Result<Self> {
        let poll = Poll::new()?;
        let mut signals = Vec::new();
        for kind in [STOP, RELOAD, UPGRADE] {
            let (heard, told) = UnixStream::pair()?;
            heard.set_nonblocking(true)?;
            for (signal, _) in SIGNALS.iter().filter(|(_, of)| *of == kind) {
                signal_hook::low_level::pipe::register(*signal, told.try_clone()?)?;
            }
            poll.add(&heard, Source::Signal(kind))?;
            signals.push(heard);
        }
        poll.add(socket.listener(), Source::Listener)?;
        poll.add(&desk, Source::Tree)?;
        Ok(Self {
            host,
            socket,
            desk,
            poll,
            config,
            signals,
            next_beat: Nanos::ZERO,
            next_scan: Nanos::ZERO,
            muted: Vec::new(),
        })
    }

    fn serve(&mut self) -> Result<End> {
        let mut heard = Vec::new();
        loop {
            let time = now();
            if time >= self.next_beat {
                self.keep_house(time);
            }
            self.host.run_due(time);
            self.listen();
            let behind = self.socket.is_behind();
            let until = if behind { time } else { self.host.next_step().min(self.next_beat) };
            self.poll.wait(until, &mut heard)?;
            let time = now();
            if behind {
                self.socket.catch_up(&mut self.host, time);
                if self.has_handed_over() {
                    return Ok(End::Succeeded);
                }
            }
            for source in heard.drain(..) {
                match source {
                    Source::Signal(STOP) => return Ok(End::Stopped),
                    Source::Signal(kind) => self.obey(time, kind),
                    Source::Tree => {
                        let host = &mut self.host;
                        self.desk.answer(|request, may_write| socket::answer(host, time, request, may_write));
                    }
                    Source::Listener => {
                        if let Some((number, stream)) = self.socket.accept()
                            && let Err(error) = self.poll.add(stream, Source::Connection(number))
                        {
                            tracing::warn!("a client cannot be listened to: {error}");
                            self.socket.dismiss(number);
                        }
                    }
                    Source::Connection(number) => {
                        self.socket.serve(number, &mut self.host, time);
                        if self.has_handed_over() {
                            return Ok(End::Succeeded);
                        }
                    }
                    Source::Bell(number) => self.hear(time, TenantId(number)),
                    Source::Death(number) => self.host.maker_died(time, i32::try_from(number).unwrap_or(0)),
                    Source::Process(number) => self.host.process_died(time, Process::of_number(number)),
                    Source::Timer => {}
                }
            }
        }
    }

    /// Whether a successor has asked for everything, and has got it.
    fn has_handed_over(&mut self) -> bool {
        if self.host.is_succeeded && self.socket.leave(LAST_WORDS) {
            return true;
        }
        // Whoever asked has not taken it: there is nobody who goes on.
        self.host.is_succeeded = false;
        false
    }

    /// Does what a signal asks for.
    fn obey(&mut self, time: Nanos, kind: u64) {
        if let Some(heard) = self.signals.get_mut(usize::try_from(kind).unwrap_or(usize::MAX)) {
            // However often it was asked for, it is done once.
            let _ = heard.read(&mut [0; 64]);
        }
        if kind == RELOAD {
            self.reload(time);
        } else if let Err(refusal) = self.host.succession.begin() {
            tracing::warn!("no successor: {refusal}");
        }
    }

    /// Reads the configuration again. A bad one changes nothing.
    fn reload(&mut self, time: Nanos) {
        let config = match Config::load(self.config.source.clone()) {
            Ok(config) => config,
            Err(error) => {
                tracing::error!("the old configuration stays in force: {error:#}");
                return;
            }
        };
        for sentence in self.host.restart(time, config.start.clone()) {
            tracing::error!("{sentence}");
        }
        let fixed = |config: &Config| {
            (config.root.clone(), config.state.clone(), config.tree.clone(), config.nvml.clone())
        };
        if fixed(&config) != fixed(&self.config) {
            tracing::warn!("root, state, tree and nvml stay as they are until the next start");
        }
        self.config.start = config.start;
        tracing::info!("the configuration was read again");
    }

    fn keep_house(&mut self, time: Nanos) {
        self.next_beat = time + BEAT;
        self.host.succession.check();
        if time >= self.next_scan {
            self.next_scan = time + SCAN;
            self.host.scan(time);
        }
        self.host.hear_news(time);
        self.host.look_after(time);
        self.host.beat(time);
        self.socket.flush();
        for tenant in std::mem::take(&mut self.muted) {
            match self.host.containers.get(&tenant) {
                Some(container) if container.ear.mute > time => self.muted.push(tenant),
                Some(_) => {
                    self.host.unmuted(time, tenant);
                    self.host.changes.push(Change::Bell(tenant));
                }
                None => {}
            }
        }
    }

    fn hear(&mut self, time: Nanos, tenant: TenantId) {
        self.host.rung(time, tenant);
        let container = self.host.containers.get(&tenant);
        if let Some(container) = container.filter(|container| container.ear.mute > time)
            && let Some(bell) = container.region.as_ref().and_then(|region| region.bell.as_ref())
        {
            self.poll.remove(bell);
            self.muted.push(tenant);
        }
    }

    /// Listens to what has come. What has gone closed its descriptor, which the poll notices by itself.
    fn listen(&mut self) {
        for change in std::mem::take(&mut self.host.changes) {
            let (Change::Bell(tenant) | Change::Maker(tenant, _) | Change::Process(Process { tenant, .. })) =
                change;
            let Some(container) = self.host.containers.get(&tenant) else { continue };
            let heard = match change {
                Change::Bell(_) => match container.region.as_ref().and_then(|region| region.bell.as_ref()) {
                    Some(bell) => self.poll.add(bell, Source::Bell(tenant.0)),
                    None => Ok(()),
                },
                Change::Maker(_, pid) => match (container.makers.get(&pid), u64::try_from(pid)) {
                    (Some(maker), Ok(number)) => self.poll.add(&maker.pidfd, Source::Death(number)),
                    _ => Ok(()),
                },
                Change::Process(process) => match container.deaths.get(&process.slot) {
                    Some((_, pidfd)) => self.poll.add(pidfd, Source::Process(process.number())),
                    None => Ok(()),
                },
            };
            if let Err(error) = heard
                && error.kind() != ErrorKind::AlreadyExists
            {
                tracing::warn!("container {}: cannot be listened to: {error}", container.id);
            }
        }
    }
}
