//! The event loop: sleeps until something is heard or due, and does it.
//!
//! Turns are given by this thread, so nothing in here may wait for anybody. NVML, `/proc`, the disk's acknowledgement are the work of the prober
//! (`probe.rs`), FUSE has a thread, and so has the metrics endpoint; sockets and bells are never waited for. What can still take its time, all of it rare, and
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
use std::time::Duration;

use anyhow::Result;
use cgpu_scheduler::TenantId;
use cgpu_shm::clock::{Clock, Monotonic};
use cgpu_shm::units::Nanos;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};

use super::poll::{Poll, Source};
use crate::config::Config;
use crate::control::answer;
use crate::control::socket::Socket;
use crate::control::tree::channel::RequestReceiver;
use crate::host::{Change, Host, Process};

/// Hearts beat, lives are looked at.
const HEARTBEAT_INTERVAL: Nanos = Nanos::from_millis(100);
/// The root is looked through.
const SCAN_INTERVAL: Nanos = Nanos::from_millis(500);

/// Whether the last words reach a successor within this.
pub(super) const TRANSFER_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a monitor ends.
pub(super) enum End {
    Stopped,
    Transferred,
}

/// What a signal asks for.
const STOP: u64 = 0;
const RELOAD: u64 = 1;
const UPGRADE: u64 = 2;
const SIGNALS: [(i32, u64); 4] =
    [(SIGTERM, STOP), (SIGINT, STOP), (SIGHUP, RELOAD), (SIGUSR2, UPGRADE)];

pub(super) struct EventLoop {
    pub(super) host: Host,
    pub(super) socket: Socket,
    pub(super) tree_requests: RequestReceiver,
    poll: Poll,
    config: Config,
    /// Readable once a signal of the kind has come.
    signals: Vec<UnixStream>,
    next_heartbeat: Nanos,
    next_scan: Nanos,
    /// Containers whose doorbells are not polled.
    muted: Vec<TenantId>,
    /// The last client could not be accepted.
    accept_fails: bool,
    /// The listener is not polled until the next heartbeat.
    accept_paused: bool,
}

impl EventLoop {
    pub(super) fn new(
        host: Host,
        socket: Socket,
        tree_requests: RequestReceiver,
        config: Config,
    ) -> Result<Self> {
        let poll = Poll::new()?;
        let mut signals = Vec::new();
        for kind in [STOP, RELOAD, UPGRADE] {
            let (reader, writer) = UnixStream::pair()?;
            reader.set_nonblocking(true)?;
            for (signal, _) in SIGNALS.iter().filter(|(_, of)| *of == kind) {
                signal_hook::low_level::pipe::register(*signal, writer.try_clone()?)?;
            }
            poll.add(&reader, Source::Signal(kind))?;
            signals.push(reader);
        }
        poll.add(socket.listener(), Source::Listener)?;
        poll.add(&tree_requests, Source::Tree)?;
        Ok(Self {
            host,
            socket,
            tree_requests,
            poll,
            config,
            signals,
            next_heartbeat: Nanos::ZERO,
            next_scan: Nanos::ZERO,
            muted: Vec::new(),
            accept_fails: false,
            accept_paused: false,
        })
    }

    pub(super) fn serve(&mut self) -> Result<End> {
        let mut heard = Vec::new();
        loop {
            let time = Monotonic.now();
            if time >= self.next_heartbeat {
                self.run_housekeeping(time);
            }
            self.host.run_due(time);
            self.apply_changes();
            let behind = self.socket.is_behind();
            let until = if behind { time } else { self.host.next_step().min(self.next_heartbeat) };
            self.poll.wait(until, &mut heard)?;
            let time = Monotonic.now();
            if behind {
                self.socket.catch_up(&mut self.host, time);
                if self.has_transferred() {
                    return Ok(End::Transferred);
                }
            }
            for source in heard.drain(..) {
                let time = Monotonic.now();
                match source {
                    Source::Signal(STOP) => return Ok(End::Stopped),
                    Source::Signal(kind) => self.handle_signal(time, kind),
                    Source::Tree => {
                        let host = &mut self.host;
                        self.tree_requests
                            .answer(|request, may_write| answer(host, time, request, may_write));
                    }
                    Source::Listener => self.accept(time),
                    Source::Connection(number) => {
                        self.socket.serve(number, &mut self.host, time);
                        if self.has_transferred() {
                            return Ok(End::Transferred);
                        }
                    }
                    Source::Doorbell(number) => self.handle_doorbell(TenantId(number)),
                    Source::RegistrantExit(number) => {
                        self.host.registrant_exited(time, i32::try_from(number).unwrap_or(0))
                    }
                    Source::ProcessExit(number) => {
                        self.host.process_exited(time, Process::of_number(number))
                    }
                    Source::Timer => {}
                }
                // The end of a turn does not wait for the other events.
                let time = Monotonic.now();
                if self.host.next_step() <= time {
                    self.host.run_due(time);
                }
            }
        }
    }

    /// Accepts a client. Where the system is out of descriptors, tries again with the next
    /// heartbeat: the listener stays readable.
    fn accept(&mut self, time: Nanos) {
        match self.socket.accept(time) {
            Ok(client) => {
                self.accept_fails = false;
                if let Some((number, stream)) = client
                    && let Err(error) = self.poll.add(stream, Source::Connection(number))
                {
                    tracing::warn!("cannot poll a client's connection: {error}");
                    self.socket.dismiss(number);
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.accept_fails, true) {
                    tracing::warn!("cannot accept clients on the control socket: {error}");
                }
                self.poll.remove(self.socket.listener());
                self.accept_paused = true;
            }
        }
    }

    /// Whether a successor has asked for everything, and has got it.
    fn has_transferred(&mut self) -> bool {
        if self.host.is_transferred && self.socket.leave(TRANSFER_TIMEOUT) {
            return true;
        }
        // The caller has not taken it: there is no successor.
        self.host.is_transferred = false;
        false
    }

    /// Does what a signal asks for.
    fn handle_signal(&mut self, time: Nanos, kind: u64) {
        if let Some(heard) = self.signals.get_mut(usize::try_from(kind).unwrap_or(usize::MAX)) {
            // However often it was asked for, it is done once.
            let _ = heard.read(&mut [0; 64]);
        }
        if kind == RELOAD {
            self.reload(time);
        } else if let Err(refusal) = self.host.successor.begin() {
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

    fn run_housekeeping(&mut self, time: Nanos) {
        self.next_heartbeat = time + HEARTBEAT_INTERVAL;
        self.host.successor.check();
        if time >= self.next_scan {
            self.next_scan = time + SCAN_INTERVAL;
            self.host.scan(time);
        }
        self.host.take_probe_results(time);
        self.host.refresh_containers(time);
        self.host.beat(time);
        self.socket.flush();
        if std::mem::take(&mut self.accept_paused)
            && let Err(error) = self.poll.add(self.socket.listener(), Source::Listener)
        {
            tracing::warn!("cannot poll the control socket: {error}");
            self.accept_paused = true;
        }
        for tenant in std::mem::take(&mut self.muted) {
            match self.host.containers.get(&tenant) {
                Some(container) if container.doorbell.muted_until > time => self.muted.push(tenant),
                Some(_) => {
                    self.host.unmuted(time, tenant);
                    self.host.changes.push(Change::Doorbell(tenant));
                }
                None => {}
            }
        }
    }

    fn handle_doorbell(&mut self, tenant: TenantId) {
        self.host.notified(tenant);
        let time = Monotonic.now();
        let container = self.host.containers.get(&tenant);
        if let Some(container) = container.filter(|container| container.doorbell.muted_until > time)
            && let Some(doorbell) =
                container.region.as_ref().and_then(|region| region.doorbell.as_ref())
        {
            self.poll.remove(doorbell);
            self.muted.push(tenant);
        }
    }

    /// Listens to what has come. What has gone closed its descriptor, which the poll notices by itself.
    fn apply_changes(&mut self) {
        for change in std::mem::take(&mut self.host.changes) {
            let (Change::Doorbell(tenant)
            | Change::Registrant(tenant, _)
            | Change::Process(Process { tenant, .. })) = change;
            let Some(container) = self.host.containers.get(&tenant) else { continue };
            let heard = match change {
                Change::Doorbell(_) => {
                    match container.region.as_ref().and_then(|region| region.doorbell.as_ref()) {
                        Some(doorbell) => self.poll.add(doorbell, Source::Doorbell(tenant.0)),
                        None => Ok(()),
                    }
                }
                Change::Registrant(_, pid) => {
                    match (container.registrants.get(&pid), u64::try_from(pid)) {
                        (Some(registrant), Ok(number)) => {
                            self.poll.add(&registrant.pidfd, Source::RegistrantExit(number))
                        }
                        _ => Ok(()),
                    }
                }
                Change::Process(process) => match container.exits.get(&process.slot) {
                    Some((_, pidfd)) => self.poll.add(pidfd, Source::ProcessExit(process.number())),
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
