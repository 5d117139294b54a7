//! The event loop: sleeps until an event arrives or a deadline is reached, and handles it.
//!
//! This thread gives the turns, so nothing here may block. NVML, `/proc` searches and syncing the
//! disk are the prober's work (`probe.rs`); FUSE and the metrics endpoint have threads of their
//! own; sockets and doorbells are never waited for. The following can still take time. All of it is
//! rare, and none of it happens in a step of a GPU:
//!
//! | what | when |
//! |---|---|
//! | `settings.json` is written, but not synced | a setting, or a removed container with settings |
//! | the configuration is read | SIGHUP |
//! | a registered directory and `/proc/PID/stat` are read | a registration |
//! | containers' small files are read, in memory if below the root | a scan (500 ms), a status |
//! | a successor is started | an upgrade |
//! | a line of the log is written | standard error is a pipe or a socket that is full |

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
use crate::service::Watchdog;

/// Interval at which heartbeats are written and containers refreshed.
const HEARTBEAT_INTERVAL: Nanos = Nanos::from_millis(100);
const SCAN_INTERVAL: Nanos = Nanos::from_millis(500);

/// Timeout for the successor to receive the state and take over.
pub(super) const TRANSFER_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) enum End {
    Stopped,
    Transferred,
}

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
    /// One for each action; readable after a signal for it.
    signals: Vec<UnixStream>,
    next_heartbeat: Nanos,
    watchdog: Watchdog,
    next_scan: Nanos,
    muted: Vec<TenantId>,
    accept_fails: bool,
    /// Whether the listener is not polled until the next heartbeat.
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
            watchdog: Watchdog::from_environment(),
            next_scan: Nanos::ZERO,
            muted: Vec::new(),
            accept_fails: false,
            accept_paused: false,
        })
    }

    pub(super) fn serve(&mut self) -> Result<End> {
        let mut ready = Vec::new();
        loop {
            let time = Monotonic.now();
            if time >= self.next_heartbeat {
                self.run_housekeeping(time);
            }
            self.host.turns().run_due(time);
            self.apply_changes();
            let behind = self.socket.is_behind();
            let until =
                if behind { time } else { self.host.turns().next_step().min(self.next_heartbeat) };
            self.poll.wait(until, &mut ready)?;
            let time = Monotonic.now();
            if behind {
                self.socket.catch_up(&mut self.host, time);
                if self.has_transferred() {
                    return Ok(End::Transferred);
                }
            }
            for source in ready.drain(..) {
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
                if self.host.turns().next_step() <= time {
                    self.host.turns().run_due(time);
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

    /// Whether a successor has requested the state and received it.
    fn has_transferred(&mut self) -> bool {
        if self.host.is_transferred && self.socket.leave(TRANSFER_TIMEOUT) {
            return true;
        }
        // The client did not receive it, so there is no successor.
        self.host.is_transferred = false;
        false
    }

    fn handle_signal(&mut self, time: Nanos, kind: u64) {
        if let Some(signal) = self.signals.get_mut(usize::try_from(kind).unwrap_or(usize::MAX)) {
            // Several signals of one kind are one action.
            let _ = signal.read(&mut [0; 64]);
        }
        if kind == RELOAD {
            self.reload(time);
        } else if let Err(refusal) = self.host.successor.begin() {
            tracing::warn!("cannot start a successor: {refusal}");
        }
    }

    /// Reads the configuration again. An invalid one changes nothing.
    fn reload(&mut self, time: Nanos) {
        let config = match Config::load(self.config.source.clone()) {
            Ok(config) => config,
            Err(error) => {
                tracing::error!(
                    "cannot reload the configuration, the old one stays in force: {error:#}"
                );
                return;
            }
        };
        for message in self.host.reconfigure(time, config.start.clone()) {
            tracing::error!("{message}");
        }
        let fixed = |config: &Config| {
            (config.root.clone(), config.state.clone(), config.tree.clone(), config.nvml.clone())
        };
        if fixed(&config) != fixed(&self.config) {
            tracing::warn!("changes of root, state, tree and nvml apply from the next start");
        }
        self.config.start = config.start;
        tracing::info!("configuration reloaded");
    }

    fn run_housekeeping(&mut self, time: Nanos) {
        self.next_heartbeat = time + HEARTBEAT_INTERVAL;
        self.watchdog.feed(time);
        self.host.successor.check();
        if time >= self.next_scan {
            self.next_scan = time + SCAN_INTERVAL;
            self.host.scan(time);
        }
        self.host.take_probe_results(time);
        self.host.refresh_containers(time);
        self.host.turns().beat(time);
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
                    self.host.turns().unmuted(time, tenant);
                    self.host.changes.push(Change::Doorbell(tenant));
                }
                None => {}
            }
        }
    }

    fn handle_doorbell(&mut self, tenant: TenantId) {
        self.host.turns().notified(tenant);
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

    /// Polls new sources of events. Removed ones have closed their descriptors, which ends their
    /// polling.
    fn apply_changes(&mut self) {
        for change in std::mem::take(&mut self.host.changes) {
            let (Change::Doorbell(tenant)
            | Change::Registrant(tenant, _)
            | Change::Process(Process { tenant, .. })) = change;
            let Some(container) = self.host.containers.get(&tenant) else { continue };
            let added = match change {
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
            if let Err(error) = added
                && error.kind() != ErrorKind::AlreadyExists
            {
                tracing::warn!("cannot poll for events of container {}: {error}", container.id);
            }
        }
    }
}
