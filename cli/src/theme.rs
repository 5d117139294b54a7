//! Colours and characters that the terminal supports.

use std::env;
use std::io::{self, IsTerminal};

use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::border;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    coloured: bool,
    /// Whether block and line characters can be used; else ASCII.
    unicode: bool,
}

// Of the 256 colours that all terminals show alike, some that are legible on white and on black.
const TITLE: Color = Color::Indexed(30);
const MEMORY: Color = Color::Indexed(28);
const FAINT: Color = Color::Indexed(244);
const WARNING: Color = Color::Indexed(160);

/// Colours of containers.
const TENANTS: [Color; 8] = [
    Color::Indexed(32),
    Color::Indexed(130),
    Color::Indexed(133),
    Color::Indexed(28),
    Color::Indexed(61),
    Color::Indexed(166),
    Color::Indexed(30),
    Color::Indexed(100),
];

impl Theme {
    #[cfg(test)]
    pub(crate) const fn new(coloured: bool, unicode: bool) -> Self {
        Self { coloured, unicode }
    }

    /// Reads NO_COLOR and the locale.
    pub(crate) fn of_environment() -> Self {
        let set = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default();
        let locale = locale.to_ascii_lowercase();
        Self {
            coloured: set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb"),
            unicode: locale.ends_with("utf-8") || locale.ends_with("utf8"),
        }
    }

    /// Reads NO_COLOR and the locale for text on standard output, which may be no terminal.
    pub(crate) fn of_output() -> Self {
        let theme = Self::of_environment();
        Self { coloured: theme.coloured && io::stdout().is_terminal(), ..theme }
    }

    /// Returns text with the control sequences of a style.
    pub(crate) fn paint(self, style: Style, text: &str) -> String {
        let bold = style.add_modifier.contains(Modifier::BOLD).then(|| "1".to_owned());
        let colour = match style.fg {
            Some(Color::Indexed(number)) => Some(format!("38;5;{number}")),
            _ => None,
        };
        let codes: Vec<String> = bold.into_iter().chain(colour).collect();
        if !self.coloured || codes.is_empty() {
            return text.to_owned();
        }
        let paint = |line: &str| format!("\x1b[{}m{line}\x1b[0m", codes.join(";"));
        text.split('\n')
            .map(|line| if line.is_empty() { String::new() } else { paint(line) })
            .collect::<Vec<_>>()
            .join("\n")
    }

    pub(crate) const fn title(self) -> Style {
        self.with(TITLE).add_modifier(Modifier::BOLD)
    }

    pub(crate) const fn heading(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(crate) const fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(crate) const fn faint(self) -> Style {
        self.with(FAINT)
    }

    pub(crate) const fn warning(self) -> Style {
        self.with(WARNING).add_modifier(Modifier::BOLD)
    }

    pub(crate) const fn memory(self) -> Style {
        self.with(MEMORY)
    }

    /// Returns the style of the container with this index.
    pub(crate) fn tenant(self, number: usize) -> Style {
        self.with(TENANTS[number % TENANTS.len()])
    }

    const fn with(self, color: Color) -> Style {
        if self.coloured { Style::new().fg(color) } else { Style::new() }
    }

    /// Returns a character for a value from 0 to 1, a blank for `None`.
    pub(crate) fn level(self, value: Option<f64>) -> char {
        let Some(value) = value else { return ' ' };
        let levels: &[char] = if self.unicode {
            &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
        } else {
            &['_', '.', ':', '-', '=', '+', '*', '#']
        };
        let mark = levels.iter().zip(1_u32..).find(|(_, number)| value <= f64::from(*number) / 8.0);
        mark.map_or(levels[7], |(level, _)| *level)
    }

    pub(crate) const fn cursor(self) -> char {
        if self.unicode { '▸' } else { '>' }
    }

    pub(crate) const fn border(self) -> border::Set<'static> {
        if self.unicode {
            return border::PLAIN;
        }
        border::Set {
            top_left: "+",
            top_right: "+",
            bottom_left: "+",
            bottom_right: "+",
            vertical_left: "|",
            vertical_right: "|",
            horizontal_top: "-",
            horizontal_bottom: "-",
        }
    }

    pub(crate) const fn rule(self) -> &'static str {
        if self.unicode { "─" } else { "-" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the relative luminance of a colour, as the W3C's guidelines (WCAG) define it.
    /// Indexes 16 to 231 are a cube of six levels of red, green and blue, the rest are grays.
    fn luminance(colour: Color) -> f64 {
        let Color::Indexed(number @ 16..) = colour else {
            panic!("{colour:?} differs from terminal to terminal");
        };
        let level = |step: u8| if step == 0 { 0 } else { 55 + 40 * step };
        let [red, green, blue] = match number - 16 {
            cube @ ..216 => [cube / 36, cube / 6 % 6, cube % 6].map(level),
            gray => [8 + 10 * (gray - 216); 3],
        };
        let linear = |value: u8| {
            let value = f64::from(value) / 255.0;
            if value <= 0.04 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
    }

    /// The guidelines require a contrast of 3 for large and bold text, and for figures.
    #[test]
    fn colours_are_legible_on_white_and_on_black() {
        let theme = Theme::new(true, true);
        let styles = [theme.title(), theme.faint(), theme.warning(), theme.memory()];
        let tenants = (0..TENANTS.len()).map(|number| theme.tenant(number));
        for style in styles.into_iter().chain(tenants) {
            let colour = style.fg.expect("a colour");
            let (white, black) =
                (1.05 / (luminance(colour) + 0.05), (luminance(colour) + 0.05) / 0.05);
            assert!(
                white >= 3.5 && black >= 3.0,
                "{colour:?}: {white:.1} on white, {black:.1} on black"
            );
        }
    }

    #[test]
    fn painted_text_is_plain_without_colours() {
        let paint = |coloured| {
            let theme = Theme::new(coloured, true);
            theme.paint(theme.warning(), "a\nb\n")
        };
        assert_eq!(paint(true), "\x1b[1;38;5;160ma\x1b[0m\n\x1b[1;38;5;160mb\x1b[0m\n");
        assert_eq!(paint(false), "a\nb\n");
    }

    #[test]
    fn theme_without_colours_has_none() {
        let plain = Theme::new(false, true);
        for style in [
            plain.title(),
            plain.heading(),
            plain.faint(),
            plain.warning(),
            plain.memory(),
            plain.tenant(3),
        ] {
            assert_eq!((style.fg, style.bg), (None, None));
        }
    }

    #[test]
    fn level_spans_empty_to_full() {
        let theme = Theme::new(true, true);
        let levels: String = [None, Some(0.0), Some(0.5), Some(1.0)]
            .map(|value| theme.level(value))
            .iter()
            .collect();
        assert_eq!(levels, " ▁▄█");
        assert_eq!(Theme::new(true, false).level(Some(9.0)), '#');
    }
}
