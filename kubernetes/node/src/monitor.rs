//! The connection to the node's monitor.

use std::path::Path;
use std::time::Duration;

use cgpu_client::Client;
use cgpu_shm::paths;

/// Timeout for asking the monitor whether GPUs are simulated.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Connects to the monitor of this root, if it runs as root or as our own user: another user's
/// would report any GPUs.
///
/// # Errors
/// There is no such monitor, or it does not answer within the timeout.
pub fn connect(root: &Path, timeout: Duration) -> Result<Client, String> {
    let monitor = Client::connect_within(&paths::socket(root), timeout)
        .map_err(|failure| failure.to_string())?;
    let own = rustix::process::geteuid().as_raw();
    if !monitor.monitor_user().is_some_and(|user| [0, own].contains(&user)) {
        return Err(format!("the monitor at {} does not run as root", root.display()));
    }
    Ok(monitor)
}

/// Returns whether the GPUs are simulated, as this process's environment or the monitor says.
#[must_use]
pub fn are_simulated(root: &Path) -> bool {
    let by_monitor = || connect(root, TIMEOUT).ok()?.inventory().ok()?.simulated;
    cgpu_inventory::simulated().or_else(by_monitor).is_some()
}
