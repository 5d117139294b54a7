//! Four lines a GPU: its name and policy; the figures of its board; its utilization and memory; its
//! last turns.

use cgpu_client::message::{GpuStatus, Sharing, TurnStatus};
use cgpu_text::printable;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::spark;
use crate::table;
use crate::theme::Theme;
use crate::top::model::{Model, letter};

/// Lines of each GPU.
pub(super) const GPU_LINES: u16 = 4;

/// Columns for each slice in the line of turns.
const COLUMNS_PER_SLICE: u64 = 3;

pub(super) fn height(model: &Model) -> u16 {
    u16::try_from(model.gpus().count()).unwrap_or(u16::MAX).saturating_mul(GPU_LINES)
}

pub(super) fn render(model: &Model, theme: &Theme, frame: &mut Frame<'_>, area: Rect) {
    let room = usize::from(area.height / GPU_LINES);
    let gpus: Vec<&GpuStatus> = model.gpus().collect();
    let shown = gpus.len().min(room);
    let areas = Layout::vertical(vec![Constraint::Length(GPU_LINES); shown]).split(area);
    for (at, (gpu, area)) in gpus.iter().zip(areas.iter()).enumerate() {
        let hidden = if at + 1 == shown { gpus.len() - shown } else { 0 };
        let width = usize::from(area.width);
        let lines = vec![
            about(gpu, hidden, theme, width),
            board(gpu, theme),
            gauges(model, gpu, theme, width),
            strip(model, gpu, theme, width),
        ];
        frame.render_widget(Paragraph::new(lines), *area);
    }
    if gpus.is_empty() {
        frame.render_widget(Paragraph::new("no GPUs"), area);
    }
}

fn about<'a>(gpu: &GpuStatus, hidden: usize, theme: &Theme, width: usize) -> Line<'a> {
    let name = if gpu.name.is_empty() { "unknown GPU" } else { &gpu.name };
    let mut line = Line::from(vec![
        Span::styled(format!("GPU {} {}", gpu.index, printable(name)), theme.title()),
        Span::raw(format!(
            "  policy {} ({})  {}  slice {}",
            gpu.policy,
            table::policy(gpu.policy),
            table::sharing(gpu.sharing),
            table::millis(gpu.slice_us)
        )),
    ]);
    let more = match hidden {
        0 => gpu.switch_us.map(|cost| format!("  switch {}", table::millis(cost))),
        hidden => Some(format!("  +{hidden} GPUs: c")),
    };
    if let Some(more) = more.filter(|more| line.width() + more.len() <= width) {
        line.push_span(Span::raw(more));
    }
    line
}

fn board<'a>(gpu: &GpuStatus, theme: &Theme) -> Line<'a> {
    let figures = table::board(&gpu.board);
    let label = Span::raw(" board ");
    if figures.is_empty() {
        return Line::from(vec![label, Span::styled("not reported by NVML", theme.faint())]);
    }
    Line::from(vec![label, Span::raw(figures.join(", "))])
}

fn gauges<'a>(model: &Model, gpu: &GpuStatus, theme: &Theme, width: usize) -> Line<'a> {
    let busy = gpu.utilization.map_or_else(|| "    -".into(), |percent| format!("{percent:>3} %"));
    let used = gpu.memory_used.map_or_else(|| "?".into(), table::mib);
    let total = Some(gpu.memory_total).filter(|total| *total > 0);
    let memory = format!("  memory {used} / {} MiB ", total.map_or_else(|| "?".into(), table::mib));
    let label = format!(" busy {busy} ");
    let room = width.saturating_sub(label.len() + memory.len());
    let (first, second) = (room / 2, room - room / 2);
    let track = model.history.gpu(gpu.index).cloned().unwrap_or_default();
    Line::from(vec![
        Span::raw(label),
        Span::styled(spark(theme, track.time.last(first), first), theme.title()),
        Span::raw(memory),
        Span::styled(spark(theme, track.memory.last(second), second), theme.memory()),
    ])
}

/// Returns the line of turns: a column is a third of a slice, with the letter of the container that
/// had the GPU for most of it.
fn strip<'a>(model: &Model, gpu: &GpuStatus, theme: &Theme, width: usize) -> Line<'a> {
    let column = (gpu.slice_us / COLUMNS_PER_SLICE).max(100);
    let (label, scale) = (" turns ", format!(" {} each", table::millis(column)));
    let room = width.saturating_sub(label.len() + scale.len());
    let reported = model.sample.turns.iter().find(|turns| turns.gpu == gpu.index);
    let turns = reported.map_or(&[][..], |reported| &reported.turns);
    if turns.is_empty() || gpu.sharing != Sharing::Contended {
        let why = match gpu.sharing {
            Sharing::Open => "none: at most one container uses the GPU",
            Sharing::Watched => "none: at most one container is active",
            Sharing::Contended => "not reported by this monitor",
        };
        return Line::from(vec![Span::raw(label), Span::styled(why, theme.faint())]);
    }
    let mut spans = vec![Span::raw(label)];
    spans.extend(columns(turns, column, room).into_iter().map(|holder| {
        match holder.and_then(|holder| model.number(holder)) {
            Some(number) => Span::styled(letter(number).to_string(), theme.tenant(number)),
            None => Span::styled(".", theme.faint()),
        }
    }));
    spans.push(Span::styled(scale, theme.faint()));
    Line::from(spans)
}

/// Returns the container that had the GPU for at least half of each column, newest at the right.
fn columns(turns: &[TurnStatus], column: u64, count: usize) -> Vec<Option<&str>> {
    (0..count as u64)
        .rev()
        .map(|at| {
            // Microseconds before now.
            let (from, to) = ((at + 1) * column, at * column);
            let overlap = |turn: &TurnStatus| {
                let end = turn.ago_us.saturating_sub(turn.us);
                turn.ago_us.min(from).saturating_sub(end.max(to))
            };
            let most =
                turns.iter().map(|turn| (overlap(turn), turn)).max_by_key(|(overlap, _)| *overlap);
            most.filter(|(overlap, _)| overlap * 2 >= column)
                .map(|(_, turn)| turn.container.as_str())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_shows_the_longest_turn() {
        let turn =
            |container: &str, ago_us, us| TurnStatus { container: container.into(), ago_us, us };
        let turns = [turn("a", 10_000, 4_000), turn("b", 6_000, 2_500), turn("a", 1_000, 1_000)];
        let strip: String =
            columns(&turns, 1000, 12).into_iter().map(|holder| holder.unwrap_or(".")).collect();
        assert_eq!(strip, "..aaaabbb..a");
    }

    #[test]
    fn turn_older_than_the_strip_is_left_out() {
        let turn = TurnStatus { container: "a".into(), ago_us: 99_000, us: 1_000 };
        assert_eq!(columns(&[turn], 1000, 3), [None; 3]);
    }
}
