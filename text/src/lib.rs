//! Makes text that another party wrote safe to show on a terminal.
//!
//! Containers choose their names, the names of their processes, and the reasons of refusals. Such
//! text must neither control the terminal nor look like a line of ours: no control characters, no
//! separators of lines, no characters that are invisible or change the direction of what follows.
//!
//! [`wall`] has the words for what holds a memory limit, for all programs that show it.

#![forbid(unsafe_code)]

pub mod wall;

/// Returns the text as one line: tabs and line breaks become blanks, other characters that are not
/// [printable](is_printable) become `?`.
#[must_use]
pub fn printable(text: &str) -> String {
    let printable = |c: char| match c {
        '\t' | '\n' | '\r' => ' ',
        c if is_printable(c) => c,
        _ => '?',
    };
    text.chars().map(printable).collect()
}

/// Whether a character is visible, or a blank. Not printable are Unicode's categories of control
/// (Cc) and format characters (Cf), of separators except the blank (Zl, Zp, Zs), and what has no
/// meaning (Co, Cn).
#[must_use]
pub fn is_printable(c: char) -> bool {
    // The standard library has no look-up for it, but escapes such characters. It also escapes
    // quotes, and a combining mark that stands first.
    let mut bytes = [b'a'; 5];
    let length = c.encode_utf8(&mut bytes[1..]).len();
    let text = str::from_utf8(&bytes[..=length]).unwrap_or_default();
    matches!(c, '"' | '\'') || text.escape_debug().nth(1) == Some(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The categories Cc, Cf, Zl and Zp of Unicode 16.0 (`DerivedGeneralCategory.txt`).
    const FORBIDDEN: [(u32, u32); 26] = [
        (0x00, 0x1f),
        (0x7f, 0x9f),
        (0xad, 0xad),
        (0x600, 0x605),
        (0x61c, 0x61c),
        (0x6dd, 0x6dd),
        (0x70f, 0x70f),
        (0x890, 0x891),
        (0x8e2, 0x8e2),
        (0x180e, 0x180e),
        (0x200b, 0x200f),
        (0x2028, 0x2029),
        (0x202a, 0x202e),
        (0x2060, 0x2064),
        (0x2066, 0x206f),
        (0xfeff, 0xfeff),
        (0xfff9, 0xfffb),
        (0x110bd, 0x110bd),
        (0x110cd, 0x110cd),
        (0x13430, 0x1343f),
        (0x1bca0, 0x1bca3),
        (0x1d173, 0x1d17a),
        (0xe0001, 0xe0001),
        (0xe0020, 0xe007f),
        // Without a meaning: a noncharacter, and one for private use.
        (0xffff, 0xffff),
        (0xe000, 0xe000),
    ];

    #[test]
    fn control_and_format_characters_are_not_printable() {
        for c in FORBIDDEN.into_iter().flat_map(|(first, last)| first..=last) {
            let c = char::from_u32(c).unwrap();
            assert!(!is_printable(c), "{c:?}");
        }
    }

    #[test]
    fn letters_marks_and_symbols_are_printable() {
        for c in ('\u{20}'..'\u{7f}').chain("äßжλ日本語हिन्दीe\u{301}한국어עבריתعربي€—…▁█🙂".chars())
        {
            assert!(is_printable(c), "{c:?}");
        }
    }

    #[test]
    fn printable_text_is_one_line() {
        let text = "a\nb\t\x1b[2J\r\u{202e}c\u{2028}\"d'\\";
        assert_eq!(printable(text), "a b ?[2J ?c?\"d'\\");
    }
}
