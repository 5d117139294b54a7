//! Waits for errors (XID) of the cards, on a thread of its own: [`crate::health`] says why.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use cgpu_proto::atomic::{AtomicU64, Ordering};
use cgpu_proto::units::Nanos;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use parking_lot::Mutex;

use crate::daemon::poll::now;
use crate::health::{Listener, Report, Reports};

/// How long one wait is; as often it is looked whether anybody still wants to know.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often somebody else in this process has let go of NVML because it had lost its cards.
///
/// Users of NVML are counted, per process: as long as one is left nobody opens it anew, so all have to let go.
pub(super) type Losses = Arc<AtomicU64>;

/// Listens until nobody has the reports any more.
///
/// # Errors
/// When no thread can be made.
pub(super) fn listen(library: String, losses: Losses) -> io::Result<Arc<Mutex<Reports>>> {
    let reports = Arc::default();
    let told = Arc::downgrade(&reports);
    thread::Builder::new().name("errors".into()).spawn(move || run(&library, &losses, &told))?;
    Ok(reports)
}

fn run(library: &str, losses: &Losses, told: &Weak<Mutex<Reports>>) {
    let mut said = String::new();
    while told.strong_count() > 0 {
        let heard = hear(library, losses, told, &mut said);
        if let Some(reports) = told.upgrade() {
            reports.lock().listens = false;
        }
        let Err(why) = heard else { continue };
        if let Some(why) = why
            && said != why.to_string()
        {
            said = why.to_string();
            tracing::warn!("{library} does not tell of errors (XID) of the cards: {said}");
        }
        thread::sleep(PATIENCE);
    }
}

/// Until nobody wants to know, or NVML has to be opened anew. What was `said` of errors before is over when it listens.
///
/// # Errors
/// NVML tells of no more; none: it is not there, as whoever samples says.
fn hear(
    library: &str,
    losses: &Losses,
    told: &Weak<Mutex<Reports>>,
    said: &mut String,
) -> Result<(), Option<NvmlError>> {
    let before = losses.load(Ordering::Acquire);
    let nvml = Nvml::builder().lib_path(library.as_ref()).init().map_err(|_| None)?;
    let mut listener = Listener::new(&nvml)?;
    let mut lines = Lines::default();
    loop {
        let Some(reports) = told.upgrade() else { return Ok(()) };
        reports.lock().listens = true;
        drop(reports);
        if losses.load(Ordering::Acquire) != before {
            return Ok(());
        }
        let report = listener.wait(PATIENCE)?;
        said.clear();
        let Some(report) = report else { continue };
        let (now, xid) = (now(), report.xid);
        if lines.is_due(report, now) {
            match report.card {
                Some(card) => tracing::warn!(card, xid, "a card has reported an error"),
                None => tracing::warn!(xid, "a card has reported an error, and nobody knows which"),
            }
        }
        let Some(reports) = told.upgrade() else { return Ok(()) };
        reports.lock().add(report, now);
    }
}

/// What was written to the log in the last minute. A container that faults in a loop is told of on the socket.
#[derive(Debug, Default)]
struct Lines(BTreeMap<Report, Nanos>);

impl Lines {
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
    fn of_an_error_that_goes_on_there_is_a_line_a_minute() {
        let mut lines = Lines::default();
        let mut due =
            |card, xid, second: u64| lines.is_due(Report { card, xid }, Nanos(second * 1_000_000_000));
        let same = (0..180).filter(|second| due(Some(0), 31, *second)).count();
        assert_eq!(same, 3);
        assert!(due(Some(0), 43, 180) && due(Some(1), 31, 180) && due(None, 31, 180));
        assert!(!due(Some(0), 43, 181));
    }
}
