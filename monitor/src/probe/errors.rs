//! Waits for errors (XID) of the GPUs on a thread of its own: [`cgpu_inventory::health`] has the
//! reason.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use cgpu_inventory::health::{Listener, Report};
use cgpu_shm::clock::{Clock, Monotonic};
use cgpu_shm::units::Nanos;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use parking_lot::Mutex;

use super::health::Reports;

/// Timeout of one wait, and the interval at which the thread checks whether it must end.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Listens until the reports are dropped. `opened` receives NVML each time that the sampling thread
/// has opened it. NVML counts its users in a process and cannot be opened anew while one is left,
/// so this thread releases it when the sampling thread has.
///
/// # Errors
/// When no thread can be created.
pub(super) fn listen(
    library: String,
    opened: Receiver<Weak<Nvml>>,
) -> io::Result<Arc<Mutex<Reports>>> {
    let reports = Arc::default();
    let weak = Arc::downgrade(&reports);
    thread::Builder::new().name("errors".into()).spawn(move || run(&library, &opened, &weak))?;
    Ok(reports)
}

fn run(library: &str, opened: &Receiver<Weak<Nvml>>, weak: &Weak<Mutex<Reports>>) {
    let (mut nvml, mut reported_reason) = (Weak::new(), String::new());
    while weak.strong_count() > 0 {
        let outcome =
            Weak::upgrade(&nvml).map(|nvml| wait_for_errors(&nvml, weak, &mut reported_reason));
        if let Some(reports) = weak.upgrade() {
            reports.lock().listening = false;
        }
        if let Some(Err(error)) = outcome
            && reported_reason != error.to_string()
        {
            reported_reason = error.to_string();
            tracing::warn!("{library} does not report errors (XID) of the GPUs: {reported_reason}");
        }
        match opened.recv_timeout(WAIT_TIMEOUT) {
            Ok(newer) => nvml = newer,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Collects errors until the reports are dropped or the sampling thread has released NVML. Clears
/// `reported_reason` once a wait succeeds.
///
/// # Errors
/// When NVML no longer reports errors.
fn wait_for_errors(
    nvml: &Arc<Nvml>,
    weak: &Weak<Mutex<Reports>>,
    reported_reason: &mut String,
) -> Result<(), NvmlError> {
    let mut listener = Listener::new(nvml)?;
    let mut logged = LogLimit::default();
    loop {
        let Some(reports) = weak.upgrade() else { return Ok(()) };
        reports.lock().listening = true;
        drop(reports);
        if Arc::strong_count(nvml) == 1 {
            return Ok(());
        }
        let report = listener.wait(WAIT_TIMEOUT)?;
        reported_reason.clear();
        let Some(report) = report else { continue };
        let (now, xid) = (Monotonic.now(), report.xid);
        if logged.is_due(report, now) {
            match report.gpu {
                Some(gpu) => tracing::warn!(gpu, xid, "a GPU has reported an error"),
                None => tracing::warn!(xid, "an unknown GPU has reported an error"),
            }
        }
        let Some(reports) = weak.upgrade() else { return Ok(()) };
        reports.lock().add(report, now);
    }
}

/// Limits the log to one line a minute for each error: a container may fault in a loop. The socket
/// reports every error.
#[derive(Debug, Default)]
struct LogLimit(BTreeMap<Report, Nanos>);

impl LogLimit {
    const MINUTE: Nanos = Nanos(60_000_000_000);

    fn is_due(&mut self, report: Report, now: Nanos) -> bool {
        self.0.retain(|_, at| now - *at < Self::MINUTE);
        let is_due = !self.0.contains_key(&report);
        if is_due {
            self.0.insert(report, now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_error_is_logged_once_a_minute() {
        let mut logged = LogLimit::default();
        let mut due = |gpu, xid, second: u64| {
            logged.is_due(Report { gpu, xid }, Nanos(second * 1_000_000_000))
        };
        let same = (0..180).filter(|second| due(Some(0), 31, *second)).count();
        assert_eq!(same, 3);
        assert!(due(Some(0), 43, 180) && due(Some(1), 31, 180) && due(None, 31, 180));
        assert!(!due(Some(0), 43, 181));
    }
}
