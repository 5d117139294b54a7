//! The daemon: sleeps until something is heard or due, and does it.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};
use cgpu_proto::paths;
use cgpu_proto::units::Nanos;

pub(crate) mod poll;

use poll::{Poll, Source, now};

use crate::config::Config;
use crate::controller::tenants::TenantId;
use crate::host::{Change, Host};
use crate::scout::Scout;
use crate::settings::Settings;
use crate::socket::Socket;

/// Hearts beat, lives are looked at.
const BEAT: Nanos = Nanos::from_millis(100);
/// The root is looked through.
const SCAN: Nanos = Nanos::from_millis(500);

/// Runs a monitor until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start: another monitor runs, the root cannot be made, the settings are broken. Once it runs, it does not end by
/// itself.
pub fn run(config: &Config) -> Result<()> {
    // Sleeping to a predicted time is what we do; the default slack is 50 us.
    if let Err(error) = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)) {
        tracing::warn!("timer slack cannot be set: {error}");
    }
    cgpu_proto::cut::outlive().context("no handler for files that are cut short")?;
    let containers = paths::containers(&config.root);
    std::fs::create_dir_all(&containers).with_context(|| format!("cannot make {}", containers.display()))?;
    let path = paths::socket(&config.root);
    let socket = match Socket::open(&path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            bail!("another monitor answers at {}: stop it first", path.display())
        }
        other => other.with_context(|| format!("cannot open {}", path.display()))?,
    };
    let settings = Settings::load(&config.state).with_context(|| {
        format!("the settings in {} are not understood: mend or remove settings.json", config.state.display())
    })?;
    let scout =
        Scout::send_out(config.nvml.clone(), config.state.clone()).context("no thread for the scout")?;
    let mut host = Host::new(config.root.clone(), settings, config.tuning, scout, now());
    // Whoever connects meanwhile waits for the answer.
    host.hear_first(now());
    let mut daemon = Daemon::new(host, socket)?;
    tracing::info!("monitor of {}", config.root.display());
    let end = daemon.serve();
    daemon.host.open_gates();
    end
}

struct Daemon {
    host: Host,
    socket: Socket,
    poll: Poll,
    /// Readable once a signal has come; kept so that it can be.
    _signals: UnixStream,
    next_beat: Nanos,
    next_scan: Nanos,
    /// Bells that are not listened to.
    muted: Vec<TenantId>,
}

impl Daemon {
    fn new(host: Host, socket: Socket) -> Result<Self> {
        let poll = Poll::new()?;
        let (signals, told) = UnixStream::pair()?;
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            signal_hook::low_level::pipe::register(signal, told.try_clone()?)?;
        }
        poll.add(&signals, Source::Signal)?;
        poll.add(socket.listener(), Source::Listener)?;
        Ok(Self {
            host,
            socket,
            poll,
            _signals: signals,
            next_beat: Nanos::ZERO,
            next_scan: Nanos::ZERO,
            muted: Vec::new(),
        })
    }

    fn serve(&mut self) -> Result<()> {
        let mut heard = Vec::new();
        loop {
            let time = now();
            if time >= self.next_beat {
                self.keep_house(time);
            }
            self.host.run_due(time);
            self.listen();
            let until = self.host.next_step().min(self.next_beat);
            self.poll.wait(until, &mut heard)?;
            let time = now();
            for source in heard.drain(..) {
                match source {
                    Source::Signal => return Ok(()),
                    Source::Listener => {
                        if let Some((number, stream)) = self.socket.accept() {
                            self.poll.add(stream, Source::Connection(number))?;
                        }
                    }
                    Source::Connection(number) => {
                        self.socket.serve(number, &mut self.host, time);
                    }
                    Source::Bell(number) => self.hear(time, TenantId(number)),
                    Source::Death(number) => self.host.maker_died(i32::try_from(number).unwrap_or(0)),
                    Source::Timer => {}
                }
            }
        }
    }

    fn keep_house(&mut self, time: Nanos) {
        self.next_beat = time + BEAT;
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
                Some(container) if container.mute > time => self.muted.push(tenant),
                Some(_) => self.host.changes.push(Change::Bell(tenant)),
                None => {}
            }
        }
    }

    fn hear(&mut self, time: Nanos, tenant: TenantId) {
        self.host.rung(time, tenant);
        let container = self.host.containers.get(&tenant);
        if let Some(container) = container.filter(|container| container.mute > time)
            && let Some(bell) = container.region.as_ref().and_then(|region| region.bell.as_ref())
        {
            self.poll.remove(bell);
            self.muted.push(tenant);
        }
    }

    /// Listens to what has come. What has gone closed its descriptor, which the poll notices by itself.
    fn listen(&mut self) {
        for change in std::mem::take(&mut self.host.changes) {
            let (tenant, maker) = match change {
                Change::Bell(tenant) => (tenant, None),
                Change::Maker(tenant, pid) => (tenant, Some(pid)),
            };
            let Some(container) = self.host.containers.get(&tenant) else { continue };
            let heard = match maker {
                None => match container.region.as_ref().and_then(|region| region.bell.as_ref()) {
                    Some(bell) => self.poll.add(bell, Source::Bell(tenant.0)),
                    None => Ok(()),
                },
                Some(pid) => match (container.makers.get(&pid), u64::try_from(pid)) {
                    (Some(pidfd), Ok(number)) => self.poll.add(pidfd, Source::Death(number)),
                    _ => Ok(()),
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
