//! Text in the columns of a terminal. Wide characters take two, combining ones none.

use ratatui::text::Span;

/// Columns that output fits into: those of the narrowest usual terminal.
pub(crate) const WIDTH: usize = 80;

/// Ends a text that was cut.
const ELLIPSIS: &str = "..";

/// Returns the columns that a text takes.
pub(crate) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Splits a text before the first character that does not fit into `columns`.
fn split(text: &str, columns: usize) -> (&str, &str) {
    let ends = text.char_indices().map(|(at, letter)| at + letter.len_utf8());
    let end = ends.take_while(|end| width(&text[..*end]) <= columns).last().unwrap_or(0);
    text.split_at(end)
}

/// Cuts a text to `columns`.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let room = columns.saturating_sub(ELLIPSIS.len());
    split(text, room).0.to_owned() + &ELLIPSIS[..columns.min(ELLIPSIS.len())]
}

/// Cuts a text to `columns`, or fills it up at its right.
pub(crate) fn left(text: &str, columns: usize) -> String {
    let text = cut(text, columns);
    let gap = columns - width(&text);
    text + &" ".repeat(gap)
}

/// Cuts a text to `columns`, or fills it up at its left.
pub(crate) fn right(text: &str, columns: usize) -> String {
    let text = cut(text, columns);
    " ".repeat(columns - width(&text)) + &text
}

/// Joins parts to lines of at most [`WIDTH`] columns, each with a line break. The first line is
/// indented by `first`, the others by `rest`. A part that is longer than a line is split.
pub(crate) fn wrap<'a>(
    parts: impl IntoIterator<Item = &'a str>,
    separator: &str,
    first: usize,
    rest: usize,
) -> String {
    let (mut text, mut line, mut is_empty) = (String::new(), " ".repeat(first), true);
    let mut end = |line: &mut String| {
        text += line.trim_end();
        text.push('\n');
        *line = " ".repeat(rest);
    };
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        // The separator may also end the line.
        let needed = width(separator) + width(part) + width(separator.trim_end());
        if !is_empty && width(&line) + needed > WIDTH {
            line += separator;
            end(&mut line);
        } else if !is_empty {
            line += separator;
        }
        let mut left_over = part;
        while width(&line) + width(left_over) > WIDTH {
            let (fits, over) = split(left_over, WIDTH - width(&line));
            line += fits;
            left_over = over;
            end(&mut line);
        }
        line += left_over;
        is_empty = false;
    }
    if !is_empty {
        end(&mut line);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_and_filled_by_the_columns_that_it_takes() {
        assert_eq!([left("ab", 4), right("ab", 4), cut("ab", 4)], ["ab  ", "  ab", "ab"]);
        assert_eq!([left("abcdef", 4), cut("abcd", 4), cut("ab", 1)], ["ab..", "abcd", "."]);
        // Two columns each.
        assert_eq!([left("漢字漢字", 5), right("漢", 3)], ["漢.. ", " 漢"]);
    }

    #[test]
    fn wrapped_lines_are_full_but_not_longer() {
        assert_eq!(wrap(["a", "", "b"], ", ", 1, 4), " a, b\n");
        assert_eq!(wrap([], ", ", 1, 4), "");
        let (long, letter) = ("x".repeat(200), "y".repeat(76));
        let text = wrap(["a", &long, "b", &letter, "c"], ", ", 0, 2);
        let widths: Vec<usize> = text.lines().map(width).collect();
        assert_eq!(widths, [2, 80, 80, 50, 79, 3], "{text}");
        assert_eq!(text.replace(['\n', ' '], ""), format!("a,{long},b,{letter},c"));
    }
}
