//! Output for people.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

/// Returns a table without lines: the first `words` columns are aligned left, figures right.
pub(crate) fn table(heads: &[&str], words: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(heads);
    for column in table.column_iter_mut().skip(words) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Formats nanoseconds as milliseconds.
pub(crate) fn millis(nanos: u64) -> String {
    let micros = nanos / 1_000;
    format!("{}.{:03} ms", micros / 1_000, micros % 1_000)
}

/// Formats a part of a whole in percent.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    let tenths = u128::from(part) * 1_000 / u128::from(whole.max(1));
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// Formats bytes as mebibytes, rounded down.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
