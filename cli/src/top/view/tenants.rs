//! A line for each container on each GPU, with histories of its share and memory, and details of
//! the selected one.

use cgpu_client::message::{ContainerStatus, Gate};
use cgpu_text::printable;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::spark;
use crate::columns::left;
use crate::table;
use crate::theme::Theme;
use crate::top::history::Track;
use crate::top::model::{Model, Order, Row, letter};

/// Width of the terminal from which names and compute limits are shown.
const WIDE_COLUMNS: u16 = 110;
/// Width of the columns that are always shown, without the two histories.
const FIXED_COLUMNS: usize = 68;
/// Widths of the columns for name and compute limit.
const EXTRA_COLUMNS: (usize, usize) = (13, 10);

pub(super) fn render(model: &Model, theme: &Theme, frame: &mut Frame<'_>, area: Rect) {
    let wide = area.width >= WIDE_COLUMNS;
    let fixed = FIXED_COLUMNS + if wide { EXTRA_COLUMNS.0 + EXTRA_COLUMNS.1 } else { 0 };
    let history = usize::from(area.width).saturating_sub(fixed) / 2;
    let rows = model.rows();
    let mut lines = vec![heading(model, theme, wide, history, usize::from(area.width))];
    let room = usize::from(area.height.saturating_sub(1)).max(1);
    let selected = model.selection(&rows).unwrap_or(0);
    // Scrolls no further than needed.
    let first = (selected + 1).saturating_sub(room);
    for (at, row) in rows.iter().enumerate().skip(first).take(room) {
        lines.push(line(model, row, at == selected, theme, wide, history));
    }
    if rows.is_empty() {
        let any = !model.sample.status.containers.is_empty();
        lines.push(Line::raw(if any {
            "no container matches the filter"
        } else {
            "no containers"
        }));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn heading<'a>(model: &Model, theme: &Theme, wide: bool, history: usize, width: usize) -> Line<'a> {
    let mark = |order, text: &str| {
        let arrow = if model.descending { "-" } else { "+" };
        if model.order == order { format!("{text}{arrow}") } else { text.to_owned() }
    };
    let (name, compute) = if wide {
        (left("NAME", EXTRA_COLUMNS.0), left("COMPUTE", EXTRA_COLUMNS.1))
    } else {
        Default::default()
    };
    let text = format!(
        "    {}{name}{}{compute}{:>5} {:>5} {} {:>6} {:>6} {} {:>2} {:>6} {:<5}{:<4}",
        left(&mark(Order::Id, "CONTAINER"), LABEL + 1),
        left(&mark(Order::Gpu, "GPU"), 4),
        mark(Order::Set, "SET"),
        mark(Order::Measured, "GOT"),
        left(&mark(Order::Time, if history > 9 { "% of time" } else { "time" }), history),
        mark(Order::Memory, "MiB"),
        "LIMIT",
        left("memory", history),
        "PR",
        "WAITED",
        "GATE",
        "PRIO",
    );
    Line::styled(left(&text, width), theme.heading())
}

/// Columns of a container's name or id.
const LABEL: usize = 12;

/// Returns a container's name, or its id if the name would look like that of another container.
fn label(model: &Model, container: &ContainerStatus) -> String {
    let cut = |one: &ContainerStatus| left(&printable(&one.name), LABEL);
    let same = model.sample.status.containers.iter().filter(|one| cut(one) == cut(container));
    if container.name.is_empty() || same.count() > 1 {
        left(&printable(&container.id), LABEL)
    } else {
        cut(container)
    }
}

fn line<'a>(
    model: &Model,
    row: &Row<'_>,
    selected: bool,
    theme: &Theme,
    wide: bool,
    history: usize,
) -> Line<'a> {
    let (container, share) = (row.container, row.share);
    let track = model.history.container(&row.key()).cloned().unwrap_or_default();
    let Track { time, memory } = &track;
    let colour = theme.tenant(row.number);
    let plain = if selected { theme.selected() } else { ratatui::style::Style::new() };
    let live = container.processes.iter().filter(|process| process.live).count();
    let cursor = if selected { theme.cursor() } else { ' ' };
    // A wide screen has the name beside the id.
    let label = if wide { left(&printable(&container.id), LABEL) } else { label(model, container) };
    let mut spans = vec![
        Span::styled(format!("{cursor} "), plain),
        Span::styled(format!("{} ", letter(row.number)), colour),
        Span::styled(label + " ", plain),
    ];
    if wide {
        spans.push(Span::styled(
            left(&printable(&container.name), EXTRA_COLUMNS.0 - 1) + " ",
            plain,
        ));
    }
    spans.push(Span::styled(format!("{:>3} ", share.gpu), plain));
    if wide {
        let gpu = model.gpu(share.gpu);
        let compute = gpu.map(|gpu| table::compute(container, share, gpu)).unwrap_or_default();
        spans.push(Span::styled(left(&compute, EXTRA_COLUMNS.1), plain));
    }
    let limit = if share.limit == 0 { "-".into() } else { table::mib(share.limit) };
    spans.extend([
        Span::styled(
            format!("{:>5.1} {:>5} ", share.share_set, table::measured(share, brief)),
            plain,
        ),
        Span::styled(spark(theme, time.last(history), history), colour),
        Span::styled(format!(" {:>6} {limit:>6} ", table::mib(row.used())), plain),
        Span::styled(spark(theme, memory.last(history), history), theme.memory()),
        Span::styled(
            format!(
                " {live:>2} {:>6} {:<5}{}",
                table::waited(share.waited_ms),
                gate(share.gate),
                priority(container.high_priority)
            ),
            plain,
        ),
    ]);
    Line::from(spans)
}

/// Renders what does not fit into the row.
pub(super) fn render_detail(model: &Model, theme: &Theme, frame: &mut Frame<'_>, area: Rect) {
    let rows = model.rows();
    let Some(row) = model.selection(&rows).map(|at| &rows[at]) else { return };
    let (container, share) = (row.container, row.share);
    let compute =
        model.gpu(share.gpu).map(|gpu| table::compute(container, share, gpu)).unwrap_or_default();
    let first = format!(
        "{}{}: {compute}, implicit {} MiB, turns {}, waits {}, GPU {:.1} s",
        printable(if container.name.is_empty() { &container.id } else { &container.name }),
        container
            .image
            .as_ref()
            .map(|image| format!(" ({})", printable(image)))
            .unwrap_or_default(),
        table::mib(share.implicit),
        share.turns,
        share.waits,
        share.gpu_time_ms / 1000.0,
    );
    let live = container.processes.iter().filter(|process| process.live);
    let named = live.map(|process| {
        let pid = process.host_pid.unwrap_or(process.pid);
        let used: u64 =
            process.gpus.iter().filter(|part| part.gpu == share.gpu).map(|part| part.used).sum();
        format!("{} ({pid}) {} MiB", printable(&process.comm), table::mib(used))
    });
    let second = named.collect::<Vec<_>>().join(", ");
    let wall = table::wall(share).map(Line::raw);
    let second = Line::styled(second, theme.faint());
    let lines: Vec<Line<'_>> = [Line::raw(first)].into_iter().chain(wall).chain([second]).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

/// Formats a percentage in at most four characters.
fn brief(percent: f64) -> String {
    if percent < 99.95 { format!("{percent:.1}") } else { "100".into() }
}

const fn gate(gate: Gate) -> &'static str {
    match gate {
        Gate::Open => "open",
        Gate::Yours => "turn",
        Gate::Wait => "wait",
    }
}

const fn priority(high: bool) -> &'static str {
    if high { "high" } else { "-" }
}
