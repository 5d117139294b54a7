//! The live table.

use cgpu_client::message::{ShareStatus, Status};
use std::fmt::Write;
use std::time::Duration;

/// Formats a measured share: `~` marks an estimate, `-` that nothing was measured.
fn measured(share: &ShareStatus) -> String {
    let sign = if share.share_estimated { "~" } else { "" };
    let percent =
        share.share_second.map_or_else(|| "-".into(), |percent| format!("{sign}{percent:.1} %"));
    format!("{percent:>8}")
}

/// Returns one line for each tenant, `elapsed` after both began.
pub(crate) fn lines(elapsed: Duration, status: &Status) -> String {
    let mut text = String::new();
    for container in &status.containers {
        for share in &container.gpus {
            let launches: u64 = container
                .processes
                .iter()
                .flat_map(|process| &process.gpus)
                .filter(|gpu| gpu.gpu == share.gpu)
                .map(|gpu| gpu.launches)
                .sum();
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "  {:>4.1} s  tenant {:<4} weight {:<2} memory {:>6} of {:>6} MiB   \
                 share set {:>5.1} %  measured {}  turns {:>5}  launches {:>7}",
                elapsed.as_secs_f64(),
                container.name,
                container.weight,
                (share.used + share.implicit) >> 20,
                share.limit >> 20,
                share.share_set,
                measured(share),
                share.turns,
                launches,
            );
        }
    }
    text
}
