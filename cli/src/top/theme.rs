//! Colours and characters that the terminal supports.

use std::env;

use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::border;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    coloured: bool,
    /// Whether block and line characters can be used; else ASCII.
    unicode: bool,
}

/// Colours of containers: of the sixteen of every terminal, those readable on any background.
const TENANTS: [Color; 8] = [
    Color::Cyan,
    Color::Yellow,
    Color::Magenta,
    Color::Green,
    Color::Blue,
    Color::LightRed,
    Color::LightCyan,
    Color::LightYellow,
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
            coloured: set("NO_COLOR").is_none(),
            unicode: locale.ends_with("utf-8") || locale.ends_with("utf8"),
        }
    }

    pub(crate) const fn title(self) -> Style {
        self.with(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    pub(crate) const fn heading(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(crate) const fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(crate) const fn faint(self) -> Style {
        if self.coloured { Style::new().fg(Color::DarkGray) } else { Style::new() }
    }

    pub(crate) const fn warning(self) -> Style {
        self.with(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(crate) const fn memory(self) -> Style {
        self.with(Color::Green)
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
