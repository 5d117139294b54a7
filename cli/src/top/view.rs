//! Renders the model for any size of the terminal.

use cgpu_text::printable;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::model::{Mode, Model, Note, warnings};
use crate::table;
use crate::theme::Theme;

mod dialogs;
#[cfg(test)]
pub(super) mod fixtures;
mod gpus;
mod tenants;

/// Smallest size that is rendered.
const MIN_SIZE: (u16, u16) = (40, 9);

pub(crate) fn render(model: &Model, theme: &Theme, frame: &mut Frame<'_>) {
    let area = frame.area();
    if area.width < MIN_SIZE.0 || area.height < MIN_SIZE.1 {
        let message = format!("{} x {} is too small: use 80 x 24", area.width, area.height);
        frame.render_widget(Paragraph::new(message), area);
        return;
    }
    let (text, style) = footer(model, theme);
    // Long messages are wrapped.
    let lines = Span::raw(text.as_str()).width().div_ceil(usize::from(area.width)).clamp(1, 3);
    // GPUs get at most half of the height.
    let gpus = gpus::height(model)
        .min((area.height - 4) / 2 / gpus::GPU_LINES * gpus::GPU_LINES)
        .max(gpus::GPU_LINES);
    let has_wall = model.rows().iter().any(|row| row.share.wall.is_some());
    let [top, middle, rule, table, detail, bottom] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(gpus),
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(u16::from(area.height >= 16) * (2 + u16::from(has_wall))),
        Constraint::Length(if lines == 1 { 1 } else { 3 }),
    ])
    .areas(area);
    title(model, theme, frame, top);
    gpus::render(model, theme, frame, middle);
    frame.render_widget(
        Paragraph::new(theme.rule().repeat(usize::from(rule.width))).style(theme.faint()),
        rule,
    );
    tenants::render(model, theme, frame, table);
    if detail.height > 0 {
        tenants::render_detail(model, theme, frame, detail);
    }
    frame.render_widget(Paragraph::new(text).style(style).wrap(Wrap { trim: true }), bottom);
    dialogs::render(model, theme, frame, area);
}

fn title(model: &Model, theme: &Theme, frame: &mut Frame<'_>, area: Rect) {
    let status = &model.sample.status;
    let up = table::duration(status.uptime_ms / 1000);
    let containers = status.containers.len();
    let mut spans = vec![
        Span::styled("cgpu top", theme.title()),
        Span::raw(format!(
            "  monitor {} ({})  up {up}  containers {containers}",
            status.version, status.pid
        )),
    ];
    if !model.filter.is_empty() {
        spans.push(Span::styled(format!("  filter {}", printable(&model.filter)), theme.title()));
    }
    if let Some(gpu) = model.gpu {
        spans.push(Span::styled(format!("  GPU {gpu}"), theme.title()));
    }
    if model.paused {
        spans.push(Span::styled("  paused", theme.warning()));
    }
    let pace = format!("every {} s", model.interval.as_secs_f64());
    let line = Line::from(spans);
    let [left, right] = Layout::horizontal([
        Constraint::Min(0),
        Constraint::Length(u16::try_from(pace.len()).unwrap_or(0)),
    ])
    .areas(area);
    let fits = line.width() < usize::from(left.width);
    frame.render_widget(Paragraph::new(line), if fits { left } else { area });
    if fits {
        frame.render_widget(Paragraph::new(pace).style(theme.faint()), right);
    }
}

/// Returns the most important message: the lost connection, the outcome of a write, a warning, or
/// the keys.
fn footer(model: &Model, theme: &Theme) -> (String, Style) {
    match (&model.lost, &model.note, &model.mode) {
        (Some(message), _, _) => (printable(message), theme.warning()),
        (_, _, Mode::Filter) => {
            (format!("filter: {}_  Enter keeps it, Esc clears it", model.filter), theme.title())
        }
        (_, Some(Note::Refused(message)), _) => (printable(message), theme.warning()),
        (_, Some(Note::Done(message)), _) => (message.clone(), theme.title()),
        _ => match warnings(model).into_iter().next() {
            Some(message) => (message, theme.warning()),
            None => (keys(model), Style::new()),
        },
    }
}

fn keys(model: &Model) -> String {
    let order = model.order.name();
    format!("q quit  ? keys  / filter  s sort: {order}  r reverse  c GPU  p policy  w weight")
}

/// Returns a line of the last values, newest at the right.
fn spark(theme: &Theme, values: impl Iterator<Item = Option<f64>>, width: usize) -> String {
    let text: String = values.map(|value| theme.level(value)).collect();
    format!("{text:>width$}")
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::top::model::Write;
    use cgpu_client::message::{Cause, Finding, Shim};
    use cgpu_client::wall::{WallState, WallStatus};

    fn screen(model: &Model, theme: Theme, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| render(model, &theme, frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| -> String { (0..width).map(|x| buffer[(x, y)].symbol()).collect() };
        (0..height).map(line).map(|line| line.trim_end().to_owned()).collect()
    }

    fn plain(model: &Model, width: u16, height: u16) -> Vec<String> {
        screen(model, Theme::new(false, true), width, height)
    }

    /// Compares a screen with a file; `BLESS=1` writes the file.
    fn check(model: &Model, width: u16, height: u16) {
        let screen = plain(model, width, height).join("\n") + "\n";
        let path = format!("{}/src/top/view/{width}x{height}.txt", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, screen).unwrap();
        } else {
            assert_eq!(
                screen,
                std::fs::read_to_string(path).unwrap(),
                "{width}x{height}: run with BLESS=1 to update the file"
            );
        }
    }

    #[test]
    fn screens_equal_their_files() {
        check(&fixtures::one_gpu(), 80, 24);
        check(&fixtures::two_gpus(), 120, 40);
    }

    #[test]
    fn containers_whose_names_look_alike_have_their_ids() {
        let mut model = fixtures::one_gpu();
        for container in &mut model.sample.status.containers {
            container.name = format!("job-of-the-host-{}", container.id);
        }
        let screen = plain(&model, 80, 24).join("\n");
        assert!(screen.contains("A alpha ") && screen.contains("B bravo "), "{screen}");
    }

    #[test]
    fn render_draws_every_size() {
        let mut models = vec![
            fixtures::one_gpu(),
            fixtures::two_gpus(),
            fixtures::many(),
            Model::new(Default::default(), std::time::Duration::ZERO),
        ];
        for mode in [
            Mode::Help,
            Mode::Filter,
            Mode::Policy { gpu: 0.into(), choice: 9 },
            Mode::Weight { row: ("a".into(), 0.into()), text: "12".into() },
            Mode::Confirm(Write { path: "x".into(), value: "y".into(), meaning: "z".repeat(300) }),
        ] {
            models.push(Model { mode, ..fixtures::two_gpus() });
        }
        for model in &models {
            for (width, height) in
                [(1, 1), (39, 8), (40, 9), (60, 12), (80, 24), (100, 30), (120, 40), (300, 90)]
            {
                screen(model, Theme::new(true, true), width, height);
            }
        }
    }

    #[test]
    fn render_scrolls_to_the_selected_row() {
        let mut model = fixtures::many();
        model.selected = Some(("tenant-39".into(), 0.into()));
        let screen = plain(&model, 80, 24);
        assert!(
            screen.iter().any(|line| line.starts_with('▸') && line.contains("tenant-39")),
            "{screen:#?}"
        );
    }

    #[test]
    fn render_uses_colours_only_if_enabled() {
        for (coloured, expected) in [(true, true), (false, false)] {
            let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
            let model =
                Model { mode: Mode::Policy { gpu: 0.into(), choice: 2 }, ..fixtures::one_gpu() };
            terminal.draw(|frame| render(&model, &Theme::new(coloured, true), frame)).unwrap();
            let cells = terminal.backend().buffer().content();
            let any = cells.iter().any(|cell| {
                (cell.fg, cell.bg) != (ratatui::style::Color::Reset, ratatui::style::Color::Reset)
            });
            assert_eq!(any, expected);
        }
    }

    #[test]
    fn render_without_unicode_is_ascii() {
        let screen = screen(&fixtures::one_gpu(), Theme::new(false, false), 80, 24).join("");
        assert!(screen.is_ascii(), "{screen}");
    }

    #[test]
    fn footer_shows_warnings_and_refusals_first() {
        let mut model = fixtures::one_gpu();
        model.sample.status.findings.push(Finding {
            gpu: 0.into(),
            pid: 99,
            comm: "train".into(),
            cause: Cause::Unshimmed,
            container: None,
            shim: Shim::Unknown,
            memory: None,
            container_memory: 0,
            since_ms: 0,
        });
        assert!(plain(&model, 80, 24)[23].contains("without the shim: 99"));
        model.note = Some(Note::Refused("Expected 1 to 25.".into()));
        assert_eq!(plain(&model, 80, 24)[23], "Expected 1 to 25.");
        model.lost = Some("no monitor at /x".into());
        assert_eq!(plain(&model, 80, 24)[23], "no monitor at /x");
    }

    #[test]
    fn detail_shows_name_and_image() {
        let mut model = fixtures::one_gpu();
        model.sample.status.containers[0].image = Some("local/cuda:1".into());
        let screen = plain(&model, 120, 40).join("\n");
        assert!(screen.contains(" (local/cuda:1): "), "{screen}");
    }

    #[test]
    fn detail_shows_what_holds_the_limit() {
        let mut model = fixtures::one_gpu();
        let mut details = |wall: WallStatus| {
            for container in &mut model.sample.status.containers {
                container.gpus[0].wall = Some(wall.clone());
            }
            plain(&model, 80, 24)[20..23].to_vec()
        };
        let driver = WallStatus {
            state: WallState::DriverExceptManaged,
            hard: Some(9 << 30),
            margin: 1 << 30,
            ..WallStatus::default()
        };
        let seen = details(driver);
        assert!(seen[0].starts_with("alpha-job: "), "{seen:#?}");
        let held = "limit held by: driver, except managed memory (9216 MiB, margin 1024 MiB)";
        assert_eq!(seen[1], held, "{seen:#?}");
        assert!(seen[2].starts_with("trainer (4711) "), "{seen:#?}");
        let absent = Some("old_driver".into());
        let seen = details(WallStatus { absent, ..WallStatus::default() });
        assert_eq!(seen[1], "limit held by: shim (driver older than r615)");
    }

    #[test]
    fn names_of_containers_cannot_control_the_terminal() {
        let mut model = fixtures::one_gpu();
        model.sample.status.containers[0].id = "\x1b[2Jalpha".into();
        model.sample.status.containers[0].name = "\x07\n\u{202e}".into();
        model.sample.status.containers[0].image = Some("\x1b[2J\u{2028}".into());
        let screen = plain(&model, 120, 40).join("");
        let forbidden = ['\x1b', '\x07', '\u{202e}', '\u{2028}'];
        assert!(!screen.contains(forbidden), "{screen:?}");
    }
}
