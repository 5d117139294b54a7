//! Waits for errors (XID) of the cards, on a thread of its own: [`crate::health`] says why.

use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use parking_lot::Mutex;

use crate::daemon::poll::now;
use crate::health::{Listener, Reports};

/// How long one wait is; as often it is looked whether anybody still wants to know.
const PATIENCE: Duration = Duration::from_secs(10);

/// Listens until nobody has the reports any more.
///
/// # Errors
/// When no thread can be made.
pub(super) fn listen(library: String) -> io::Result<Arc<Mutex<Reports>>> {
    let reports = Arc::default();
    let told = Arc::downgrade(&reports);
    thread::Builder::new().name("errors".into()).spawn(move || run(&library, &told))?;
    Ok(reports)
}

fn run(library: &str, told: &Weak<Mutex<Reports>>) {
    let mut said = String::new();
    while let Some(why) = hear(library, told).err() {
        let Some(reports) = told.upgrade() else { return };
        reports.lock().listens = false;
        drop(reports);
        // That there is no NVML at all whoever samples says.
        let is_there = !matches!(why, NvmlError::LibloadingError(_));
        let why = why.to_string();
        if is_there && said != why {
            tracing::warn!("{library} does not tell of errors (XID) of the cards: {why}");
            said = why;
        }
        thread::sleep(PATIENCE);
    }
}

/// Until nobody wants to know.
///
/// # Errors
/// NVML is not there, or tells of no more.
fn hear(library: &str, told: &Weak<Mutex<Reports>>) -> Result<(), NvmlError> {
    // Its own: what is waited for here keeps nobody else from asking.
    let nvml = Nvml::builder().lib_path(library.as_ref()).init()?;
    let listener = Listener::new(&nvml)?;
    loop {
        let Some(reports) = told.upgrade() else { return Ok(()) };
        reports.lock().listens = true;
        drop(reports);
        let Some(report) = listener.wait(PATIENCE)? else { continue };
        match report.card {
            Some(card) => tracing::warn!(card, xid = report.xid, "a card has reported an error"),
            None => tracing::warn!(xid = report.xid, "a card has reported an error, and nobody knows which"),
        }
        let Some(reports) = told.upgrade() else { return Ok(()) };
        reports.lock().add(report, now());
    }
}
