//! Columns as in gpushare's tables: those of Go's `text/tabwriter` with padding 2.
//!
//! A tab ends a cell. Cells at the same position of consecutive lines form a column, which is 2
//! blanks wider than its widest cell. Text after a line's last tab belongs to no column. Trailing
//! blanks are removed.

/// Blanks between columns.
const PADDING: usize = 2;

/// Replaces tabs by blanks.
#[must_use]
pub fn aligned(text: &str) -> String {
    let lines: Vec<Vec<&str>> = text.split('\n').map(|line| line.split('\t').collect()).collect();
    let mut out = String::with_capacity(text.len() * 2);
    // Width of each column, and the first line that is not part of it.
    let mut columns: Vec<(usize, usize)> = Vec::new();
    for (row, line) in lines.iter().enumerate() {
        let start = out.len();
        let (last, cells) = line.split_last().expect("split gives at least one");
        for (column, cell) in cells.iter().enumerate() {
            columns
                .truncate(columns.iter().position(|(_, end)| *end <= row).unwrap_or(columns.len()));
            if column == columns.len() {
                columns.push(measure_column(&lines, row, column));
            }
            out.push_str(cell);
            let width = columns.get(column).map_or(0, |(width, _)| *width);
            out.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.chars().count())));
        }
        columns.truncate(cells.len());
        out.push_str(last);
        out.truncate(start + out[start..].trim_end_matches(' ').len());
        if row + 1 < lines.len() {
            out.push('\n');
        }
    }
    out
}

/// Returns the width of the column that begins in line `from`, and the first line that is not part
/// of it.
fn measure_column(lines: &[Vec<&str>], from: usize, column: usize) -> (usize, usize) {
    let run = lines[from..].iter().take_while(|line| line.len() > column + 1);
    let (mut width, mut end) = (0, from);
    for line in run {
        width = width.max(line[column].chars().count());
        end += 1;
    }
    (width + PADDING, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_as_those_of_tabwriter() {
        assert_eq!(aligned("a\tb\tc\naaa\tbb\tcc\n"), "a    b   c\naaa  bb  cc\n");
        // A line without a tab ends the columns.
        assert_eq!(aligned("a\tb\n\nlonger\tb\n"), "a  b\n\nlonger  b\n");
        assert_eq!(aligned("a\tb\nline\nlonger\tb\n"), "a  b\nline\nlonger  b\n");
        // A column ends at the first line without it.
        assert_eq!(aligned("a\tbbbb\tc\nd\te\nf\tg\th\n"), "a  bbbb  c\nd  e\nf  g  h\n");
        // Empty cells keep their padding; trailing blanks are removed.
        assert_eq!(aligned("a\t\tc\nb\t\t\n"), "a    c\nb\n");
        assert_eq!(aligned("ä\tb\naa\tb"), "ä   b\naa  b");
        assert_eq!(aligned(""), "");
    }
}
