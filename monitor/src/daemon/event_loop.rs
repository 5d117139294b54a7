//! The event loop: sleeps until an event arrives or a deadline is reached, and handles it.
//!
//! This thread gives the turns, so nothing here may block. NVML, `/proc` searches and syncing the
//! disk are the prober's work (`probe.rs`); FUSE and the metrics endpoint have threads of their
//! own; sockets are never waited for. Doorbells are polled here, and accessed by threads of their
//! own (`host/doorbell_pipe.rs`). Workers open and close containers' files, and query their locks
//! (`host/file_workers.rs`): a container can make so many locks that each of these takes seconds.
//! What containers and other users can repeat without end is bounded by its CPU time
//! (`throttle.rs`, `host/doorbell.rs`). The following can still take time. All of it is rare, and
//! none of it happens in a step of a GPU:
//!
//! | what | when |
//! |---|---|
//! | `settings.json` is written, but not synced | a setting, or a removed container with settings |
//! | the configuration is read | SIGHUP |
//! | a registered directory and `/proc/PID/stat` are read | a registration |
//! | the files of a registered directory are waited for, 5 ms at most | a registration |
//! | the files `limits` and `container` of a new directory are read | a scan, a registration |
//! | a successor is started | an upgrade |
//! | a line of the log is written | standard error is a pipe or a socket that is full |

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::Result;
use cgpu_scheduler::TenantId;
use cgpu_shm::clock::{Clock, Monotonic, thread_cpu};
use cgpu_shm::units::Nanos;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};

use super::poll::{Poll, Source};
use crate::config::Config;
use crate::control::answer;
use crate::control::socket::{Door, Socket};
use crate::control::tree::channel::RequestReceiver;
use crate::host::{Change, Host, Process};
use crate::service::Watchdog;
use crate::throttle::Throttle;

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
    /// Connections of users that may not write.
    users: Poll,
    shared: [SharedSource; 4],
}

/// A source of events that any user of the host can cause. Those of users that may not write take
/// a bounded part of the time.
struct SharedSource {
    source: Source,
    throttle: Throttle,
    /// Whether it is not polled until it is due.
    is_paused: bool,
}

impl SharedSource {
    fn new(source: Source) -> Self {
        Self { source, throttle: Throttle::default(), is_paused: false }
    }
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
        let users = Poll::new()?;
        for door in [Door::All, Door::Owner] {
            poll.add(socket.listener(door), Source::Listener(door))?;
        }
        poll.add(&users, Source::Users)?;
        poll.add(&tree_requests, Source::Tree)?;
        poll.add(&host.files, Source::Files)?;
        poll.add(&host.prober, Source::Prober)?;
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
            users,
            shared: [
                Source::Listener(Door::All),
                Source::Listener(Door::Owner),
                Source::Users,
                Source::Tree,
            ]
            .map(SharedSource::new),
        })
    }

    pub(super) fn serve(&mut self) -> Result<End> {
        let mut ready = Vec::new();
        loop {
            let time = Monotonic.now();
            if time >= self.next_heartbeat {
                self.run_housekeeping(time);
            }
            // The sleep and what precedes it are part of an event's cost.
            let mut start = thread_cpu();
            self.host.turns().run_due(time);
            self.apply_changes();
            let resumed = self.resume(time);
            let behind = self.socket.is_behind(true);
            let users_behind = self.socket.is_behind(false) && !self.is_paused(Source::Users);
            let until = if behind || users_behind {
                time
            } else {
                self.host.turns().next_step().min(self.next_heartbeat).min(resumed)
            };
            self.poll.wait(until, &mut ready)?;
            let time = Monotonic.now();
            if behind {
                self.socket.catch_up(&mut self.host, time, true);
                if self.has_transferred() {
                    return Ok(End::Transferred);
                }
            }
            if users_behind {
                self.socket.catch_up(&mut self.host, time, false);
                self.charge(Source::Users, &mut start);
            }
            for source in ready.drain(..) {
                let time = Monotonic.now();
                match source {
                    Source::Signal(STOP) => return Ok(End::Stopped),
                    Source::Signal(kind) => self.handle_signal(time, kind),
                    Source::Tree | Source::Listener(_) | Source::Users => {
                        if !self.serve_shared(time, source)? {
                            self.charge(source, &mut start);
                        }
                    }
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
                    Source::Files => self.host.take_file_results(time),
                    Source::Prober => {
                        self.host.take_probe_results(time);
                        self.socket.send_deferred(&self.host, time, false);
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

    /// Serves one event of a source that any user can cause. Returns whether its user may write.
    fn serve_shared(&mut self, time: Nanos, source: Source) -> Result<bool> {
        Ok(match source {
            Source::Listener(door) => self.accept(time, door),
            Source::Users => {
                if let Some(Source::Connection(number)) = self.users.next_ready()? {
                    self.socket.serve(number, &mut self.host, time);
                }
                false
            }
            _ => {
                let host = &mut self.host;
                self.tree_requests
                    .answer_one(|request, may_write| {
                        answer(host, time, request, may_write).now(host)
                    })
                    .unwrap_or(true)
            }
        })
    }

    /// Accepts a client. Where the system is out of descriptors, tries again with the next
    /// heartbeat: the listener stays readable. Returns whether the client may write.
    fn accept(&mut self, time: Nanos, door: Door) -> bool {
        match self.socket.accept(time, door) {
            Ok(accepted) => {
                self.accept_fails = false;
                let poll = if accepted.may_write { &self.poll } else { &self.users };
                let may_write = accepted.may_write;
                if let Some((number, stream)) = accepted.client
                    && let Err(error) = poll.add(stream, Source::Connection(number))
                {
                    tracing::warn!("cannot poll a client's connection: {error}");
                    self.socket.dismiss(number);
                }
                may_write
            }
            Err(error) => {
                if !std::mem::replace(&mut self.accept_fails, true) {
                    tracing::warn!("cannot accept clients on the control socket: {error}");
                }
                let next = self.next_heartbeat;
                self.pause(Source::Listener(door), |throttle| throttle.pause(next));
                true
            }
        }
    }

    /// Charges a source for the CPU time since `start`, which becomes the present one.
    fn charge(&mut self, source: Source, start: &mut Nanos) {
        let cpu = thread_cpu();
        let (now, used) = (Monotonic.now(), cpu - std::mem::replace(start, cpu));
        self.pause(source, |throttle| throttle.charge(now, used));
    }

    /// Changes a source's throttle, and polls the source no longer if it is not due.
    fn pause(&mut self, source: Source, change: impl FnOnce(&mut Throttle)) {
        let Some(shared) = self.shared.iter_mut().find(|shared| shared.source == source) else {
            return;
        };
        change(&mut shared.throttle);
        if !shared.is_paused && shared.throttle.due() > Monotonic.now() {
            shared.is_paused = true;
            self.poll.remove(self.descriptor(source));
        }
    }

    /// Polls the paused sources that are due. Returns when the next one is.
    fn resume(&mut self, time: Nanos) -> Nanos {
        let mut next = Nanos::MAX;
        for at in 0..self.shared.len() {
            let SharedSource { source, ref throttle, is_paused } = self.shared[at];
            if !is_paused {
                continue;
            }
            if throttle.due() > time {
                next = next.min(throttle.due());
                continue;
            }
            match self.poll.add(self.descriptor(source), source) {
                Ok(()) => self.shared[at].is_paused = false,
                Err(error) => {
                    tracing::warn!("cannot poll the control interface: {error}");
                    self.shared[at].throttle.pause(self.next_heartbeat);
                }
            }
        }
        next
    }

    fn is_paused(&self, source: Source) -> bool {
        self.shared.iter().any(|shared| shared.source == source && shared.is_paused)
    }

    fn descriptor(&self, source: Source) -> BorrowedFd<'_> {
        match source {
            Source::Listener(door) => self.socket.listener(door).as_fd(),
            Source::Users => self.users.as_fd(),
            _ => self.tree_requests.as_fd(),
        }
    }

    /// Whether a successor has requested the state and received it.
    fn has_transferred(&mut self) -> bool {
        if self.host.is_transferred {
            self.socket.send_deferred(&self.host, Monotonic.now(), true);
        }
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
            let Config { root, state, tree, nvml, metrics, .. } = config;
            (root.clone(), state.clone(), tree.clone(), nvml.clone(), metrics.clone())
        };
        if fixed(&config) != fixed(&self.config) {
            tracing::warn!(
                "changes of root, state, tree, nvml, metrics, metrics_hami and page apply from the \
                 next start"
            );
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
        self.host.take_file_results(time);
        self.host.refresh_containers(time);
        self.host.turns().beat(time);
        self.socket.send_deferred(&self.host, time, false);
        self.socket.flush();
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
            && let Some(doorbell) = container.doorbell_file()
        {
            self.poll.remove(doorbell);
            self.muted.push(tenant);
        }
    }

    /// Polls new sources of events, and no longer those that are gone. Closed descriptors are no
    /// longer polled.
    fn apply_changes(&mut self) {
        for request in std::mem::take(&mut self.host.closed) {
            if let Some(doorbell) = request.doorbell() {
                self.poll.remove(doorbell);
            }
            self.host.files.send(request);
        }
        for change in std::mem::take(&mut self.host.changes) {
            let (Change::Doorbell(tenant)
            | Change::Registrant(tenant, _)
            | Change::Process(Process { tenant, .. })) = change;
            let Some(container) = self.host.containers.get(&tenant) else { continue };
            let added = match change {
                Change::Doorbell(_) => match container.doorbell_file() {
                    Some(doorbell) => self.poll.add_pipe(doorbell, Source::Doorbell(tenant.0)),
                    None => Ok(()),
                },
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
