//! Dialogs: choose a policy, type a weight, confirm, help.

use cgpu_client::device_id::DeviceId;
use cgpu_text::printable;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use crate::table;
use crate::theme::Theme;
use crate::top::model::{Mode, Model};
use crate::top::update::POLICIES;

const HELP: &[&str] = &[
    "up down k j     select a container      q Esc   quit",
    "/               filter by id or name    space   pause",
    "s r             sort by, reverse        c Tab   one GPU, all GPUs",
    "p               the GPU's policy        Ctrl-L  redraw",
    "w               the container's weight  Ctrl-Z  suspend",
    "",
    "SET: guaranteed share while busy. GOT: share of the last second.",
    "PR: live processes. WAITED: time at the gate.",
    "Turns: a letter for each container.",
];

pub(super) fn render(model: &Model, theme: &Theme, frame: &mut Frame<'_>, area: Rect) {
    let (title, lines) = match &model.mode {
        Mode::Table | Mode::Filter => return,
        Mode::Help => ("keys", HELP.iter().map(|line| Line::raw(*line)).collect()),
        Mode::Policy { gpu, choice } => ("policy", policies(model, theme, *gpu, *choice)),
        Mode::Weight { row: (id, gpu), text } => {
            let of = format!("weight of {} on GPU {gpu}: {text}_", printable(id));
            ("weight", vec![Line::raw(of), Line::raw("1 to 25, then Enter; Esc: cancel")])
        }
        Mode::Confirm(write) => (
            "confirm",
            vec![
                Line::raw(write.meaning.clone()),
                Line::styled("y: change   n: cancel", theme.title()),
            ],
        ),
    };
    let widest = lines.iter().map(Line::width).max().unwrap_or(0);
    // Long lines are wrapped.
    let inner = widest.min(usize::from(area.width).saturating_sub(4)).max(1);
    let wrapped: usize = lines.iter().map(|line| line.width().div_ceil(inner).max(1)).sum();
    let side = |length: usize, most: u16| u16::try_from(length).unwrap_or(most).min(most);
    let (width, height) = (side(inner + 4, area.width), side(wrapped + 2, area.height));
    let area = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    let block = Block::bordered().title(format!(" {title} ")).border_set(theme.border());
    let text = Paragraph::new(lines)
        .wrap(Wrap { trim: false })
        .block(block.padding(ratatui::widgets::Padding::horizontal(1)));
    frame.render_widget(Clear, area);
    frame.render_widget(text, area);
}

fn policies<'a>(model: &Model, theme: &Theme, gpu: DeviceId, choice: u32) -> Vec<Line<'a>> {
    let present = model.gpu(gpu).map(|gpu| gpu.policy);
    let mut lines = vec![Line::raw(format!("policy of GPU {gpu}"))];
    lines.extend((0..POLICIES).map(|policy| {
        let mark = if policy == choice { theme.cursor() } else { ' ' };
        let is = if present == Some(policy) { " (current)" } else { "" };
        let line = Line::raw(format!("{mark} {policy} {}{is}", table::policy(policy)));
        if policy == choice { line.style(theme.selected()) } else { line }
    }));
    lines.push(Line::raw("Enter: choose; Esc: cancel"));
    lines
}
