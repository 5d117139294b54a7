//! Claims that the other engine, cgpu's DRA driver, has prepared on this node.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use tracing::{info, warn};

/// Interval at which prepared claims are looked for.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Waits until no claim is prepared: one engine gives out a node's GPUs, or they are oversold.
pub(crate) async fn wait_until_unprepared(root: &Path) {
    let folder = cgpu_shm::paths::shares(root);
    let mut waits = false;
    while has_files(&folder) {
        if !waits {
            warn!(
                "claims are prepared on this node, so its GPUs are not offered as units yet: label \
                 the node cgpu.dev/engine=dra, drain it, and remove the label ({} has a file for \
                 each share)",
                folder.display()
            );
        }
        waits = true;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    if waits {
        info!("no claim is prepared any more");
    }
}

/// Returns whether a folder has files, or cannot be read.
fn has_files(folder: &Path) -> bool {
    match fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_that_cannot_be_read_counts_as_claims() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("shares");
        assert!(!has_files(&folder));
        fs::create_dir(&folder).unwrap();
        assert!(!has_files(&folder));
        fs::write(folder.join("u-0"), "").unwrap();
        assert!(has_files(&folder));
        assert!(has_files(&folder.join("u-0")));
    }
}
