//! The tables of `cgpu smi`. Memory in MiB, shares in percent of the card.

use std::fmt::Write;

use cgpu_monitor::message::{
    CardStatus, ContainerStatus, ProcessCard, ProcessStatus, ShareStatus, Sharing, Status,
};
use comfy_table::{Cell, CellAlignment, Row, Table, presets};

use crate::report::Report;

/// Everything as text: a line per card, a table of containers and their processes, and what is wrong.
pub(crate) fn render(report: &Report) -> String {
    let status = &report.status;
    let mut text = String::new();
    if !report.monitor {
        text.push_str("no monitor: memory as the containers tell it, time is not shared out\n");
    }
    for card in &status.cards {
        let _ = writeln!(text, "{}", if report.monitor { card_line(card) } else { bare_card_line(card) });
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(heading());
    for container in &status.containers {
        for share in &container.cards {
            table.add_row(container_row(container, share, report));
            for process in &container.processes {
                if let Some(part) = process.cards.iter().find(|part| part.card == share.card) {
                    table.add_row(process_row(process, part));
                }
            }
        }
    }
    if table.is_empty() {
        text.push_str("no containers\n");
    } else {
        let _ = writeln!(text, "\n{}", table.trim_fmt());
    }
    for line in troubles(status) {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn card_line(card: &CardStatus) -> String {
    let name = if card.name.is_empty() { "unknown card" } else { &card.name };
    let used = card.memory_used.map_or_else(|| "?".to_owned(), mib);
    let sharing = match card.sharing {
        Sharing::Open => "open",
        Sharing::Watched => "watched",
        Sharing::Contended => "contended",
    };
    format!(
        "card {}  {name}  {used} / {} MiB  policy {} ({})  {sharing}  {}",
        card.index,
        mib(card.memory_total),
        card.policy,
        policy(card.policy),
        card.uuid
    )
}

fn bare_card_line(card: &CardStatus) -> String {
    format!("card {}  {} MiB  {}", card.index, mib(card.memory_total), card.uuid)
}

fn heading() -> Row {
    let left = ["CONTAINER", "PID", "PROGRAM"].map(Cell::new);
    let right = ["CARD", "USED MiB", "IMPLICIT", "LIMIT", "SHARE SET", "MEASURED", "POLICY"];
    let right = right.map(|name| Cell::new(name).set_alignment(CellAlignment::Right));
    Row::from(left.into_iter().chain(right).collect::<Vec<_>>())
}

fn container_row(container: &ContainerStatus, share: &ShareStatus, report: &Report) -> Row {
    let card = report.status.cards.iter().find(|card| card.index == share.card);
    let limit = if share.limit == 0 { "-".to_owned() } else { mib(share.limit) };
    let name = if container.name.is_empty() { &container.id } else { &container.name };
    row(
        [plain(name), String::new(), String::new()],
        [
            share.card.to_string(),
            mib(share.used + share.orphan),
            mib(share.implicit),
            limit,
            percent(report.monitor.then_some(share.share_set)),
            percent(share.share_second),
            card.map(|card| card.policy.to_string()).unwrap_or_default(),
        ],
    )
}

fn process_row(process: &ProcessStatus, part: &ProcessCard) -> Row {
    let pid = process.host_pid.unwrap_or(process.pid).to_string();
    let comm = plain(&process.comm);
    let program = if process.live { comm } else { format!("{comm} (dead)") };
    let none = String::new;
    row(
        [none(), pid, program],
        [part.card.to_string(), mib(part.used), mib(part.implicit), none(), none(), none(), none()],
    )
}

fn row(left: [String; 3], right: [String; 7]) -> Row {
    let right = right.map(|text| Cell::new(text).set_alignment(CellAlignment::Right));
    Row::from(left.into_iter().map(Cell::new).chain(right).collect::<Vec<_>>())
}

/// One line for everything that somebody should look at.
fn troubles(status: &Status) -> Vec<String> {
    let mut lines = Vec::new();
    for container in &status.containers {
        let name = plain(&container.name);
        if let Some(sentence) = &container.refused {
            lines.push(format!("{name}: refused to start: {}", plain(sentence.trim_end())));
        }
        lines.extend(container.faults.values().map(|sentence| format!("{name}: {}", plain(sentence))));
    }
    for card in status.cards.iter().filter(|card| !card.strangers.is_empty()) {
        let pids: Vec<String> = card.strangers.iter().map(u32::to_string).collect();
        lines.push(format!("card {}: on it without the shim: process {}", card.index, pids.join(", ")));
    }
    lines
}

/// Containers write their names themselves: nothing of it may steer the terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Rounded up, so that nothing in use reads as nothing.
fn mib(bytes: u64) -> String {
    bytes.div_ceil(1 << 20).to_string()
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{share:.1} %"))
}

fn policy(number: u32) -> &'static str {
    match number {
        0 => "fair",
        1 => "preemptive",
        2 => "weighted",
        3 => "fixed",
        4 => "soft",
        5 => "native",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Report {
        let share = ShareStatus {
            limit: 8 << 30,
            used: (2 << 30) + 1,
            implicit: 256 << 20,
            share_set: 33.333,
            share_second: Some(33.1),
            ..ShareStatus::default()
        };
        let part = ProcessCard { used: 2 << 30, implicit: 256 << 20, ..ProcessCard::default() };
        let process = ProcessStatus {
            pid: 7,
            host_pid: Some(4711),
            comm: "trainer".into(),
            live: true,
            cards: vec![part],
            ..ProcessStatus::default()
        };
        let container = ContainerStatus {
            id: "0123456789ab".into(),
            name: "a".into(),
            cards: vec![share],
            processes: vec![process],
            refused: Some("NVML is missing.\n".into()),
            ..ContainerStatus::default()
        };
        let card = CardStatus {
            name: "NVIDIA A10".into(),
            uuid: "GPU-1".into(),
            memory_total: 23028 << 20,
            policy: 2,
            strangers: vec![99],
            ..CardStatus::default()
        };
        let status = Status { cards: vec![card], containers: vec![container], ..Status::default() };
        Report { monitor: true, status }
    }

    #[test]
    fn a_row_for_each_container_and_each_process() {
        let text = render(&sample());
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(
            text.starts_with("card 0  NVIDIA A10  ? / 23028 MiB  policy 2 (weighted)  open  GPU-1\n"),
            "{text}"
        );
        assert!(
            lines.contains(&vec!["a", "0", "2049", "256", "8192", "33.3", "%", "33.1", "%", "2"]),
            "{text}"
        );
        assert!(lines.contains(&vec!["4711", "trainer", "0", "2048", "256"]), "{text}");
    }

    #[test]
    fn what_is_wrong_is_told() {
        let text = render(&sample());
        assert!(text.contains("a: refused to start: NVML is missing.\n"), "{text}");
        assert!(text.contains("card 0: on it without the shim: process 99\n"), "{text}");
    }

    #[test]
    fn nothing_is_a_sentence_too() {
        let nothing = Report { monitor: true, status: Status::default() };
        assert_eq!(render(&nothing), "no containers\n");
    }

    #[test]
    fn a_container_cannot_write_to_the_terminal() {
        let mut report = sample();
        report.status.containers[0].name = "a\x1b[2J".into();
        report.status.containers[0].processes[0].comm = "b\x07\n".into();
        assert!(!render(&report).contains(['\x1b', '\x07']));
    }

    #[test]
    fn without_a_monitor_there_are_no_shares() {
        let report = Report { monitor: false, ..sample() };
        let text = render(&report);
        assert!(text.starts_with("no monitor: "), "{text}");
        assert!(!text.contains("33.3"), "{text}");
    }
}
