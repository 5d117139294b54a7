//! The table with a line for each node.

use super::{NodeView, Overview};
use crate::tabs::aligned;
use crate::unit::Unit;

/// By so much, the line of dashes is longer than the first node's line before alignment.
const EXTRA_DASHES: usize = 20;

pub(super) fn of(overview: &Overview) -> String {
    let most = overview.shared().map(|node| node.gpus.len()).max().unwrap_or(0);
    let pending = overview.shared().any(has_pending);
    let mut text = String::from("NAME\tIPADDRESS\t");
    for index in 0..most {
        text += &format!("GPU{index}(Allocated/Total)\t");
    }
    if pending {
        text += "PENDING(Allocated)\t";
    }
    text += &format!("GPU Memory({})\n", unit(overview));
    let rows: Vec<String> = overview.shared().map(|node| row(node, most, pending)).collect();
    text += &rows.concat();
    text += &"-".repeat(rows.first().map_or(0, |row| row.len() + EXTRA_DASHES));
    text += "\nAllocated/Total GPU Memory In Cluster:\n";
    text += &overview.usage();
    text.push('\n');
    aligned(&text)
}

pub(super) fn has_pending(node: &NodeView) -> bool {
    node.pods.iter().any(|pod| pod.reason.is_some())
}

/// Returns the unit in the table's header: `units` if nodes have different ones.
fn unit(overview: &Overview) -> &'static str {
    match overview.unit {
        Some(unit) => unit.name(),
        None if overview.shared().next().is_none() => Unit::Gib.name(),
        None => "units",
    }
}

fn row(node: &NodeView, most: usize, pending: bool) -> String {
    let mut row = format!("{}\t{}\t", node.name, node.address);
    for position in 0..most {
        row += &node
            .gpus
            .get(position)
            .map_or_else(|| "0/0\t".to_owned(), |gpu| format!("{}/{}\t", gpu.allocated, gpu.total));
    }
    if pending {
        row += &if has_pending(node) { format!("{}\t", node.pending) } else { "\t".to_owned() };
    }
    row + &format!("{}/{}\n", node.allocated, node.total)
}
