//! The node's GPUs and their health, from NVML or from the monitor, whichever is available.
//!
//! Both report the same ([`cgpu_inventory::health`]): which GPUs exist, whether they answer, and
//! which errors (XID) they report. [`Health`] decides what follows from an error.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use cgpu_client::health as monitor_health;
use cgpu_client::inventory::HostDevice;
use cgpu_client::message::Errno;
use cgpu_inventory as inventory;
use cgpu_inventory::health::{HealthCheck, Listener, Report};
use nvml_wrapper::Nvml;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::health::{Health, Uptime};
use crate::monitor;

const NVML: &str = "libnvidia-ml.so.1";
/// Timeout for an event, and interval of health checks.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before a failed attempt is repeated, and interval of requests to the monitor.
const RETRY_BACKOFF: Duration = Duration::from_secs(2);
/// Time without a health report after which all GPUs count as unhealthy. A monitor polls the driver
/// every second; a report of this age means that the driver hangs, as it does when a GPU has fallen
/// off the bus.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// Suffix of the message if the monitor is older, or NVML reports no errors to it.
const ERRORS_UNREPORTED: &str = ", but does not report their errors";

/// A GPU or MIG instance, and whether new pods may be placed on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeGpu {
    /// The device.
    pub device: HostDevice,
    /// Whether it is healthy.
    pub is_healthy: bool,
}

/// The GPUs by index; `None` before the first report.
pub type Gpus = Option<Vec<NodeGpu>>;

/// What is known of the GPUs from an earlier program.
#[derive(Clone, Debug, Default)]
pub struct Earlier {
    /// The last complete list; empty: not known.
    pub devices: Vec<HostDevice>,
    /// Names of the GPUs that were unhealthy when they were last checked.
    pub unhealthy: BTreeSet<String>,
}

/// Starts a thread that watches the GPUs until all receivers are gone.
pub fn start_watcher(
    root: &Path,
    mut health: Health,
    earlier: Earlier,
    sender: watch::Sender<Gpus>,
) {
    let root = root.to_owned();
    earlier.unhealthy.iter().for_each(|gpu| health.record_problem(gpu, Uptime::ZERO));
    let mut watcher = DeviceWatcher::new(health, sender);
    watcher.earlier = earlier.devices;
    std::thread::spawn(move || {
        while !watcher.sender.is_closed() {
            let why = match Nvml::builder().lib_path(NVML.as_ref()).init() {
                Ok(nvml) => watcher.poll_nvml(&nvml),
                Err(error) => {
                    let why = format!("NVML ({NVML}) does not report this node's GPUs: {error}");
                    match watcher.poll_monitor(&root) {
                        Ok(note) => format!("{why}; the monitor reports them{note}"),
                        Err(other) => format!("{why}; {other}"),
                    }
                }
            };
            watcher.check_silence(watcher.now());
            watcher.warn_on_change(why);
            std::thread::sleep(RETRY_BACKOFF);
        }
    });
}

/// State of the GPUs, from either source.
struct DeviceWatcher {
    start: Instant,
    /// The GPUs of the last complete list: no list is available while one of them does not answer.
    known: Vec<HostDevice>,
    /// The last complete list of an earlier program.
    earlier: Vec<HostDevice>,
    health: Health,
    last_report: Uptime,
    last_message: String,
    sender: watch::Sender<Gpus>,
}

impl DeviceWatcher {
    fn new(health: Health, sender: watch::Sender<Gpus>) -> Self {
        let (known, last_message) = (Vec::new(), String::new());
        Self {
            start: Instant::now(),
            known,
            earlier: Vec::new(),
            health,
            last_report: Uptime::ZERO,
            last_message,
            sender,
        }
    }

    fn now(&self) -> Uptime {
        self.start.elapsed()
    }

    /// Logs a message unless it is the last one.
    fn warn_on_change(&mut self, what: String) {
        if self.last_message != what {
            warn!("{what}");
            self.last_message = what;
        }
    }

    /// Reports the health of the GPUs until NVML fails as a whole. Returns the reason.
    fn poll_nvml(&mut self, nvml: &Nvml) -> String {
        let unknown = match inventory::read_devices(nvml) {
            Ok(found) => {
                if self.known != found {
                    info!(gpus = found.len(), "found");
                }
                self.known = found;
                None
            }
            Err(unknown) if self.known.is_empty() => {
                let Some(known) = inventory::complete_devices(nvml, &self.earlier) else {
                    return unknown.to_string();
                };
                info!(gpus = known.len(), "known from an earlier list");
                self.known = known;
                Some(unknown.to_string())
            }
            // Health checks tell which GPU does not answer; errors of the others are still
            // received.
            Err(unknown) => Some(unknown.to_string()),
        };
        let mut listener = Listener::new(nvml);
        if let Some(unknown) = &unknown {
            self.warn_on_change(unknown.clone());
        } else if let Err(error) = &listener {
            self.warn_on_change(format!("NVML does not report errors (XID) of the GPUs: {error}"));
        }
        let mut errors = Vec::new();
        loop {
            self.record(
                &inventory::health::health_checks(nvml).unwrap_or_default(),
                &errors,
                self.now(),
            );
            errors.clear();
            if self.sender.is_closed() {
                return String::new();
            }
            match &mut listener {
                Ok(listener) => match listener.wait(POLL_INTERVAL) {
                    Ok(report) => errors.extend(report.map(|report| (report, Duration::ZERO))),
                    Err(error) => {
                        let why = format!("NVML has stopped reporting errors of the GPUs: {error}");
                        return unknown.unwrap_or(why);
                    }
                },
                Err(_) => {
                    std::thread::sleep(POLL_INTERVAL);
                    listener = Listener::new(nvml);
                }
            }
            if unknown.is_some() && inventory::read_devices(nvml).is_ok() {
                return "NVML reports all GPUs again".to_owned();
            }
        }
    }

    /// Requests GPUs and health from the monitor. Returns a suffix for the log message.
    fn poll_monitor(&mut self, root: &Path) -> Result<&'static str, String> {
        let mut monitor = monitor::connect(root, RETRY_BACKOFF)?;
        let lists = match monitor.inventory() {
            Ok(inventory) => {
                let found =
                    inventory.gpus.iter().map(HostDevice::try_from).collect::<Result<_, _>>();
                self.known =
                    found.map_err(|_| "the monitor reports a GPU without a UUID".to_owned())?;
                true
            }
            Err(failure) if self.known.is_empty() => return Err(failure.to_string()),
            // A GPU does not answer. The health report tells which.
            Err(_) => false,
        };
        match monitor.health() {
            Ok(report) => {
                self.record_monitor(&report, self.now());
                Ok(if report.listening { "" } else { ERRORS_UNREPORTED })
            }
            // An older monitor does not know the request.
            Err(failure) if lists && failure.errno() == Some(Errno::EINVAL) => {
                self.last_report = self.now();
                self.publish(self.last_report);
                Ok(ERRORS_UNREPORTED)
            }
            Err(failure) => Err(failure.to_string()),
        }
    }

    fn record_monitor(&mut self, report: &monitor_health::Health, now: Uptime) {
        let is_silent = Duration::from_millis(report.age_ms) >= SILENCE_TIMEOUT;
        let health_check = |gpu: &monitor_health::GpuHealth| HealthCheck {
            index: gpu.index,
            answers: gpu.answers && !is_silent,
            needs_reset: gpu.needs_reset,
        };
        let errors = report.gpus.iter().flat_map(|gpu| {
            gpu.errors.iter().map(|error| {
                let report = Report { gpu: Some(gpu.index), xid: error.xid };
                (report, Duration::from_millis(error.ago_ms))
            })
        });
        let health_checks: Vec<HealthCheck> = report.gpus.iter().map(health_check).collect();
        self.record(&health_checks, &errors.collect::<Vec<_>>(), now);
    }

    /// Records which GPUs answer, and the errors that they reported, with their ages.
    fn record(
        &mut self,
        health_checks: &[HealthCheck],
        errors: &[(Report, Duration)],
        now: Uptime,
    ) {
        for gpu in &self.known {
            let (index, uuid) = (gpu.id.gpu(), gpu.name());
            // A GPU that does not answer has fallen off the bus. One with pages to retire needs a
            // reset first.
            let health_check =
                health_checks.iter().find(|health_check| health_check.index == index);
            if health_check
                .is_none_or(|health_check| !health_check.answers || health_check.needs_reset)
            {
                self.health.record_problem(&uuid, now);
            }
            for (Report { gpu: reported, xid }, ago) in errors {
                // An error of a MIG instance is reported for its GPU. An error without a GPU may be
                // of any.
                if reported.is_none_or(|reported| reported == index)
                    && self.health.report(&uuid, *xid, *ago, now)
                {
                    warn!(
                        gpu = %gpu.id,
                        uuid,
                        xid,
                        "an error was reported: no pods are placed on the GPU for a while"
                    );
                }
            }
        }
        self.last_report = now;
        self.publish(now);
    }

    /// Marks all GPUs as unhealthy if no health report came for [`SILENCE_TIMEOUT`].
    fn check_silence(&mut self, now: Uptime) {
        if !self.known.is_empty() && now.saturating_sub(self.last_report) >= SILENCE_TIMEOUT {
            self.known.iter().for_each(|gpu| self.health.record_problem(&gpu.name(), now));
            self.publish(now);
        }
    }

    fn publish(&self, now: Uptime) {
        // A partitioned GPU without named instances cannot be shared.
        let is_healthy =
            |gpu: &HostDevice| !gpu.is_partitioned && self.health.is_healthy(&gpu.name(), now);
        let gpus: Vec<NodeGpu> = self
            .known
            .iter()
            .map(|gpu| NodeGpu { device: *gpu, is_healthy: is_healthy(gpu) })
            .collect();
        self.sender.send_if_modified(|known| {
            let changes = known.as_ref() != Some(&gpus);
            if changes {
                *known = Some(gpus);
            }
            changes
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    use cgpu_client::inventory::{Inventory, ListedDevice};
    use cgpu_client::message::{Refusal, Reply};
    use cgpu_shm::paths;
    use cgpu_shm::units::Bytes;
    use cgpu_shm::uuid::Uuid;

    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// A GPU, and two MIG instances of another one, which share the health of their GPU.
    fn found() -> [HostDevice; 3] {
        [("0", 1), ("1.0", 2), ("1.2", 3)].map(|(number, byte)| HostDevice {
            uuid: Uuid([byte; 16]),
            id: number.parse().unwrap(),
            total: Bytes(1 << 20),
            is_partitioned: false,
        })
    }

    fn healthy() -> monitor_health::Health {
        let gpu = |index| monitor_health::GpuHealth {
            index,
            answers: true,
            needs_reset: false,
            errors: Vec::new(),
        };
        monitor_health::Health { gpus: vec![gpu(0), gpu(1)], age_ms: 0, listening: true }
    }

    fn watcher() -> (DeviceWatcher, watch::Receiver<Gpus>) {
        let (sender, receiver) = watch::channel(None);
        (DeviceWatcher::new(Health::new(seconds(300), [94]), sender), receiver)
    }

    fn healthy_gpus(receiver: &watch::Receiver<Gpus>) -> Vec<bool> {
        receiver.borrow().iter().flatten().map(|gpu| gpu.is_healthy).collect()
    }

    #[test]
    fn errors_from_the_monitor_make_gpus_unhealthy() {
        let becomes = |change: &dyn Fn(&mut monitor_health::Health), now: u64| {
            let ((mut watcher, receiver), mut report) = (watcher(), healthy());
            watcher.known = found().to_vec();
            change(&mut report);
            watcher.record_monitor(&report, seconds(now));
            healthy_gpus(&receiver)
        };
        let reports = |gpu: usize, xid, ago: u64| {
            move |report: &mut monitor_health::Health| {
                report.gpus[gpu].errors.push(monitor_health::GpuError { xid, ago_ms: ago * 1000 });
            }
        };
        assert_eq!(becomes(&|_| {}, 1000), [true; 3]);
        assert_eq!(becomes(&|report| report.gpus[0].answers = false, 1000), [false, true, true]);
        assert_eq!(
            becomes(&|report| report.gpus[1].needs_reset = true, 1000),
            [true, false, false]
        );
        assert_eq!(becomes(&|report| report.age_ms = 60_000, 1000), [false; 3]);
        assert_eq!(becomes(&|report| drop(report.gpus.pop()), 1000), [true, false, false]);
        assert_eq!(becomes(&reports(1, 48, 299), 1000), [true, false, false]);
        assert_eq!(becomes(&reports(1, 48, 300), 1000), [true; 3]);
        // An error of a program, and one that the options ignore.
        assert_eq!(becomes(&reports(0, 31, 1), 1000), [true; 3]);
        assert_eq!(becomes(&reports(0, 94, 1), 1000), [true; 3]);
        // Errors from before the start of this plugin: recent and old.
        assert_eq!(becomes(&reports(0, 48, 299), 1), [false, true, true]);
        assert_eq!(becomes(&reports(0, 48, 300), 1), [true; 3]);
    }

    /// Polls a fake monitor that answers two requests, for the inventory and the health.
    fn poll(watcher: &mut DeviceWatcher, replies: [Reply; 2]) -> Result<&'static str, String> {
        let root = tempfile::tempdir().unwrap();
        let socket = UnixListener::bind(paths::socket(root.path())).unwrap();
        let monitor = std::thread::spawn(move || {
            let (mut stream, _) = socket.accept().unwrap();
            let mut requests = BufReader::new(stream.try_clone().unwrap());
            for reply in replies {
                let mut line = String::new();
                if requests.read_line(&mut line).unwrap() == 0 {
                    return;
                }
                writeln!(stream, "{}", serde_json::to_string(&reply).unwrap()).unwrap();
            }
        });
        let note = watcher.poll_monitor(root.path());
        monitor.join().unwrap();
        note
    }

    #[test]
    fn silent_monitor_makes_no_gpu_healthy() {
        let refuses = |errno| Reply::Refused(Refusal::new(errno, "no"));
        let lists = || {
            let gpus = found().iter().map(ListedDevice::from).collect();
            Reply::Inventory(Inventory {
                gpus,
                age_ms: 0,
                simulated: None,
                allow_overcommit: false,
            })
        };
        let (mut watcher, receiver) = watcher();
        assert!(poll(&mut watcher, [refuses(Errno::ENOENT), refuses(Errno::ENOENT)]).is_err());
        assert_eq!(*receiver.borrow(), None);
        watcher.health.record_problem(&found()[0].name(), Uptime::ZERO);
        assert_eq!(poll(&mut watcher, [lists(), Reply::Health(healthy())]), Ok(""));
        assert_eq!(healthy_gpus(&receiver), [false, true, true]);

        // The next monitor gets no data, or only the list of GPUs, from its driver. The last health
        // stays, however much time passes.
        watcher.start -= seconds(400);
        let last_report = watcher.last_report;
        for gpus in [refuses(Errno::ENOENT), refuses(Errno::EINVAL), lists()] {
            assert!(poll(&mut watcher, [gpus, refuses(Errno::ENOENT)]).is_err());
        }
        assert!(poll(&mut watcher, [refuses(Errno::ENOENT), refuses(Errno::EINVAL)]).is_err());
        assert_eq!(
            (healthy_gpus(&receiver), watcher.last_report),
            (vec![false, true, true], last_report)
        );
        watcher.check_silence(last_report + SILENCE_TIMEOUT - seconds(1));
        assert_eq!(healthy_gpus(&receiver), [false, true, true]);
        watcher.check_silence(last_report + SILENCE_TIMEOUT);
        assert_eq!(healthy_gpus(&receiver), [false; 3]);

        // One GPU does not answer, and the report says which. An older monitor only lists the GPUs.
        let (mut watcher, receiver) = self::watcher();
        assert_eq!(poll(&mut watcher, [lists(), refuses(Errno::EINVAL)]), Ok(ERRORS_UNREPORTED));
        assert_eq!(healthy_gpus(&receiver), [true; 3]);
        let mut lost = healthy();
        lost.gpus[0].answers = false;
        assert_eq!(poll(&mut watcher, [refuses(Errno::ENOENT), Reply::Health(lost)]), Ok(""));
        assert_eq!(healthy_gpus(&receiver), [false, true, true]);
    }
}
