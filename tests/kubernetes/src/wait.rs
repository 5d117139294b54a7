//! Waiting for what must come.

use std::time::{Duration, Instant};

/// After so long it will not come. The machine may be busy with others.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until there is something, and returns it.
///
/// # Panics
/// If it does not come.
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

/// Waits until it holds.
///
/// # Panics
/// If it never does.
pub fn until_holds(what: &str, mut holds: impl FnMut() -> bool) {
    until(what, || holds().then_some(()));
}
