//! Polling for conditions.

use std::time::{Duration, Instant};

/// Timeout of waits on a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Polls until there is a result, and returns it.
///
/// # Panics
/// If the timeout passes.
pub fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Polls until the condition holds.
///
/// # Panics
/// If the timeout passes.
pub fn until_holds(what: &str, mut holds: impl FnMut() -> bool) {
    until(what, || holds().then_some(()));
}
