//! Applies events to the model, and returns what to do outside of it.

use cgpu_client::device_id::DeviceId;
use cgpu_text::printable;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::history::RowKey;
use super::model::{Mode, Model, Note, Order, Sample, Write};
use crate::table;

#[derive(Debug)]
pub(crate) enum Event {
    Key(KeyEvent),
    Resize,
    /// A reply of the monitor.
    Sample(Box<Sample>),
    /// The monitor did not reply; it is polled again.
    Lost(String),
    /// The monitor did not reply within the timeout.
    Gone(String),
    /// The outcome of a write.
    Answered(Note),
    Signal(i32),
    /// A thread has ended.
    Ended(&'static str),
}

/// What to do after an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Stay,
    /// Draw the whole screen again.
    Redraw,
    /// Restore the terminal and stop.
    Suspend,
    /// Write a node.
    Write(Write),
    Quit,
    Signal(i32),
    Fail(String),
}

#[expect(clippy::cast_possible_truncation, reason = "a handful")]
pub(crate) const POLICIES: u32 = table::POLICIES.len() as u32;
/// Digits of the largest weight.
const MAX_WEIGHT_DIGITS: usize = 2;

pub(crate) fn update(model: &mut Model, event: Event) -> Step {
    match event {
        Event::Key(key) => return press(model, key),
        Event::Resize => {}
        Event::Sample(sample) => model.apply(*sample),
        Event::Lost(message) => model.lost = Some(message),
        Event::Answered(note) => model.note = Some(note),
        Event::Gone(message) => return Step::Fail(message),
        Event::Signal(number) => return Step::Signal(number),
        Event::Ended(what) => return Step::Fail(what.into()),
    }
    Step::Stay
}

fn press(model: &mut Model, key: KeyEvent) -> Step {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Step::Quit,
            KeyCode::Char('z') => Step::Suspend,
            KeyCode::Char('l') => Step::Redraw,
            _ => Step::Stay,
        };
    }
    model.note = None;
    match std::mem::take(&mut model.mode) {
        Mode::Table => return navigate(model, key.code),
        Mode::Filter => type_filter(model, key.code),
        Mode::Policy { gpu, choice } => choose_policy(model, key.code, gpu, choice),
        Mode::Weight { row, text } => type_weight(model, key.code, row, text),
        Mode::Confirm(write) => match key.code {
            KeyCode::Char('y' | 'Y') => return Step::Write(write),
            KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc => {
                model.note = Some(Note::Done("nothing was changed".into()));
            }
            // Other keys, typed or pasted, neither confirm nor cancel.
            _ => model.mode = Mode::Confirm(write),
        },
        Mode::Help => {}
    }
    Step::Stay
}

fn navigate(model: &mut Model, key: KeyCode) -> Step {
    match key {
        KeyCode::Char('q') => return Step::Quit,
        // Esc first clears filter and GPU.
        KeyCode::Esc if model.filter.is_empty() && model.gpu.is_none() => return Step::Quit,
        KeyCode::Esc => (model.filter, model.gpu) = (String::new(), None),
        KeyCode::Up | KeyCode::Char('k') => select(model, -1),
        KeyCode::Down | KeyCode::Char('j') => select(model, 1),
        KeyCode::PageUp => select(model, -10),
        KeyCode::PageDown => select(model, 10),
        KeyCode::Home | KeyCode::Char('g') => select(model, isize::MIN),
        KeyCode::End | KeyCode::Char('G') => select(model, isize::MAX),
        KeyCode::Char('s') => sort(model, model.order.next()),
        KeyCode::Char('r') => model.descending = !model.descending,
        KeyCode::Char('/') => model.mode = Mode::Filter,
        KeyCode::Char('c') | KeyCode::Tab => next_gpu(model),
        KeyCode::Char(' ') => model.paused = !model.paused,
        KeyCode::Char('p') => {
            if let Some((gpu, choice)) = gpu_to_change(model) {
                model.mode = Mode::Policy { gpu, choice };
            }
        }
        KeyCode::Char('w') => {
            let rows = model.rows();
            if let Some(at) = model.selection(&rows) {
                model.mode = Mode::Weight { row: rows[at].key(), text: String::new() };
            }
        }
        KeyCode::Char('?' | 'h') => model.mode = Mode::Help,
        _ => {}
    }
    Step::Stay
}

fn sort(model: &mut Model, order: Order) {
    (model.order, model.descending) = (order, order.descends());
}

fn select(model: &mut Model, by: isize) {
    let rows = model.rows();
    let Some(at) = model.selection(&rows) else { return };
    let to = at.saturating_add_signed(by).min(rows.len() - 1);
    model.selected = Some(rows[to].key());
}

/// Shows the next GPU alone; after the last one, all.
fn next_gpu(model: &mut Model) {
    let mut indexes = model.sample.status.gpus.iter().map(|gpu| gpu.index);
    model.gpu = match model.gpu {
        None => indexes.next(),
        Some(shown) => indexes.skip_while(|index| *index != shown).nth(1),
    };
}

/// Returns the GPU of the selected row, else the first GPU shown, and its policy.
fn gpu_to_change(model: &Model) -> Option<(DeviceId, u32)> {
    let rows = model.rows();
    let of_row = model.selection(&rows).and_then(|at| model.gpu(rows[at].share.gpu));
    of_row.or_else(|| model.gpus().next()).map(|gpu| (gpu.index, gpu.policy))
}

fn type_filter(model: &mut Model, key: KeyCode) {
    match key {
        KeyCode::Enter => return,
        KeyCode::Esc => {
            model.filter.clear();
            return;
        }
        KeyCode::Backspace => drop(model.filter.pop()),
        KeyCode::Char(letter) if !letter.is_control() => model.filter.push(letter),
        _ => {}
    }
    model.mode = Mode::Filter;
}

fn choose_policy(model: &mut Model, key: KeyCode, gpu: DeviceId, choice: u32) {
    let choice = match key {
        KeyCode::Esc | KeyCode::Char('q') => return,
        KeyCode::Up | KeyCode::Char('k') => choice.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => (choice + 1).min(POLICIES - 1),
        KeyCode::Char(digit) => digit.to_digit(POLICIES).unwrap_or(choice),
        KeyCode::Enter => {
            let from = model.gpu(gpu).map_or("?", |gpu| table::policy(gpu.policy));
            let meaning =
                format!("GPU {gpu}: policy {choice} ({}) instead of {from}", table::policy(choice));
            let (path, value) = (format!("{gpu}/policy"), choice.to_string());
            model.mode = Mode::Confirm(Write { path, value, meaning });
            return;
        }
        _ => choice,
    };
    model.mode = Mode::Policy { gpu, choice };
}

fn type_weight(model: &mut Model, key: KeyCode, row: RowKey, mut text: String) {
    match key {
        KeyCode::Esc | KeyCode::Char('q') => return,
        KeyCode::Backspace => drop(text.pop()),
        KeyCode::Char(digit) if digit.is_ascii_digit() && text.len() < MAX_WEIGHT_DIGITS => {
            text.push(digit)
        }
        KeyCode::Enter if !text.is_empty() => {
            let (id, gpu) = &row;
            let meaning = format!("{} on GPU {gpu}: weight {text}", printable(id));
            let path = format!("{gpu}/{id}/weight");
            model.mode = Mode::Confirm(Write { path, value: text, meaning });
            return;
        }
        _ => {}
    }
    model.mode = Mode::Weight { row, text };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::view::fixtures;

    fn keys(model: &mut Model, text: &str) -> Vec<Step> {
        let key = |letter| match letter {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            'v' => KeyCode::Down,
            '^' => KeyCode::Up,
            letter => KeyCode::Char(letter),
        };
        let press =
            |letter| update(model, Event::Key(KeyEvent::new(key(letter), KeyModifiers::NONE)));
        text.chars().map(press).filter(|step| *step != Step::Stay).collect()
    }

    fn ids(model: &Model) -> Vec<String> {
        model.rows().iter().map(|row| format!("{}/{}", row.share.gpu, row.container.id)).collect()
    }

    #[test]
    fn policy_is_written_only_after_confirmation() {
        let mut model = fixtures::two_gpus();
        assert_eq!(keys(&mut model, "p3\n"), []);
        let Mode::Confirm(write) = model.mode.clone() else { panic!("{:?}", model.mode) };
        assert_eq!((write.path.as_str(), write.value.as_str()), ("0/policy", "3"));
        assert_eq!(write.meaning, "GPU 0: policy 3 (fixed) instead of weighted");
        // Neighbouring keys and Enter do nothing.
        assert_eq!(keys(&mut model, "\ntu "), []);
        assert_eq!(keys(&mut model, "n"), []);
        assert_eq!(model.mode, Mode::Table);
        assert_eq!(keys(&mut model, "p3\ny"), [Step::Write(write)]);
        assert_eq!(model.mode, Mode::Table);
    }

    #[test]
    fn weight_is_written_for_the_selected_row() {
        let mut model = fixtures::two_gpus();
        let steps = keys(&mut model, "vw1\x0823x4\ny");
        let [Step::Write(write)] = &steps[..] else { panic!("{steps:?}") };
        assert_eq!((write.path.as_str(), write.value.as_str()), ("0/bravo/weight", "23"));
        assert_eq!(keys(&mut model, "w\x1b"), [], "no weight was typed");
    }

    #[test]
    fn note_is_shown_until_the_next_key() {
        let mut model = fixtures::two_gpus();
        update(&mut model, Event::Answered(Note::Refused("Expected 1 to 25.".into())));
        assert!(model.note.is_some());
        keys(&mut model, "v");
        assert!(model.note.is_none());
    }

    #[test]
    fn rows_are_sorted_and_reversed() {
        let mut model = fixtures::two_gpus();
        let by_id = ["0/alpha", "0/bravo", "1/bravo", "1/charlie"];
        assert_eq!(ids(&model), by_id);
        keys(&mut model, "r");
        assert_eq!(ids(&model), ["1/charlie", "1/bravo", "0/bravo", "0/alpha"]);
        keys(&mut model, "s");
        assert_eq!((model.order, model.descending), (Order::Gpu, false));
        keys(&mut model, "ss");
        assert_eq!((model.order, model.descending), (Order::Measured, true));
        assert_eq!(ids(&model)[0], "1/charlie");
        keys(&mut model, "s");
        assert_eq!(ids(&model)[0], "0/bravo", "{:?}", model.order);
        keys(&mut model, "ss");
        assert_eq!(ids(&model), by_id);
    }

    #[test]
    fn filter_narrows_while_typed_and_ends_with_escape() {
        let mut model = fixtures::two_gpus();
        keys(&mut model, "/BRA");
        assert_eq!(ids(&model), ["0/bravo", "1/bravo"]);
        keys(&mut model, "q\x08\n");
        assert_eq!((model.filter.as_str(), &model.mode), ("BRA", &Mode::Table));
        assert_eq!(keys(&mut model, "\x1b"), []);
        assert_eq!(ids(&model).len(), 4);
        assert_eq!(keys(&mut model, "\x1b"), [Step::Quit]);
    }

    #[test]
    fn next_gpu_cycles_through_gpus() {
        let mut model = fixtures::two_gpus();
        keys(&mut model, "cc");
        assert_eq!(ids(&model), ["1/bravo", "1/charlie"]);
        keys(&mut model, "c");
        assert_eq!(model.gpu, None);
    }

    #[test]
    fn selection_follows_its_row() {
        let mut model = fixtures::two_gpus();
        keys(&mut model, "v");
        keys(&mut model, "r");
        let rows = model.rows();
        assert_eq!(rows[model.selection(&rows).unwrap()].container.id, "bravo");
        drop(rows);
        keys(&mut model, "^^^^^^");
        assert_eq!(model.selected, Some(("charlie".into(), 1.into())));
        keys(&mut model, "gG");
        assert_eq!(model.selected, Some(("alpha".into(), 0.into())));
        model.sample.status.containers.remove(0);
        let rows = model.rows();
        assert_eq!(model.selection(&rows), Some(0), "the selected row is gone");
    }

    #[test]
    fn quit_keys_and_signals_end_the_program() {
        let mut model = fixtures::two_gpus();
        assert_eq!(keys(&mut model, "q"), [Step::Quit]);
        let control =
            |letter| Event::Key(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL));
        // Control keys work in every mode.
        model.mode = Mode::Filter;
        assert_eq!(update(&mut model, control('c')), Step::Quit);
        assert_eq!(update(&mut model, control('z')), Step::Suspend);
        assert_eq!(update(&mut model, Event::Signal(15)), Step::Signal(15));
        assert_eq!(update(&mut model, Event::Gone("x".into())), Step::Fail("x".into()));
        assert_eq!(update(&mut model, Event::Ended("y")), Step::Fail("y".into()));
    }

    #[test]
    fn samples_are_ignored_while_paused() {
        let mut model = fixtures::two_gpus();
        keys(&mut model, " ");
        update(&mut model, Event::Sample(Box::default()));
        assert_eq!(ids(&model).len(), 4);
        keys(&mut model, " ");
        update(&mut model, Event::Sample(Box::default()));
        assert_eq!(ids(&model).len(), 0);
        assert_eq!(keys(&mut model, "vwp\n"), [], "there is no row");
    }

    #[test]
    fn sample_clears_the_lost_state() {
        let mut model = fixtures::two_gpus();
        update(&mut model, Event::Lost("no monitor".into()));
        assert!(model.lost.is_some());
        update(&mut model, Event::Sample(Box::default()));
        assert!(model.lost.is_none());
    }
}
