//! A table for each node, with a line for each pod.

use super::summary::has_pending;
use super::{NodeView, Overview, percent};
use crate::tabs::aligned;

/// By so much, the line of dashes is longer than all lines of the first node's pods before
/// alignment.
const EXTRA_DASHES: usize = 10;
/// Maximum number of dashes. gpushare's line grows with the number of pods beyond any terminal.
const MAX_DASHES: usize = 200;

pub(super) fn of(overview: &Overview) -> String {
    let mut text = String::new();
    let mut dashes = None;
    for node in overview.shared() {
        text += &format!("\nNAME:\t{}\nIPADDRESS:\t{}\n\n", node.name, node.address);
        let pending = has_pending(node);
        text += "NAME\tNAMESPACE\t";
        for gpu in &node.gpus {
            text += &format!("GPU{}(Allocated)\t", gpu.index);
        }
        if pending {
            text += "Pending(Allocated)\t";
        }
        text.push('\n');
        let rows = rows(node, pending);
        text += &rows;
        let dashes = *dashes.get_or_insert((rows.len() + EXTRA_DASHES).min(MAX_DASHES));
        text += &format!(
            "Allocated :\t{} ({}%)\t\n",
            node.allocated,
            percent(node.allocated, node.total)
        );
        text += &format!("Total :\t{} \t\n", node.total);
        text += &"-".repeat(dashes);
        text.push('\n');
    }
    text += &format!("\n\nAllocated/Total GPU Memory In Cluster:\t{}\t\n", overview.usage());
    aligned(&text)
}

fn rows(node: &NodeView, pending: bool) -> String {
    let mut rows = String::new();
    for pod in &node.pods {
        rows += &format!("{}\t{}\t", pod.name, pod.namespace);
        for units in &pod.units {
            rows += &format!("{units}\t");
        }
        if pending {
            rows += &format!("{}\t", pod.pending);
        }
        rows.push('\n');
    }
    rows
}
