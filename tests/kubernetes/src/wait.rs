//! Polling for conditions.

use std::time::{Duration, Instant};

/// More than a real control plane takes to start on a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

/// Polls until there is a result, and returns it.
pub fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Polls until the condition holds.
pub fn until_holds(what: &str, mut holds: impl FnMut() -> bool) {
    until(what, || holds().then_some(()));
}
