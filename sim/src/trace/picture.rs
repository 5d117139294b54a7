//! The trace as a picture: a self-contained SVG.
//!
//! Each GPU has a broad lane for its compute engine, then a narrow one for each process, in which
//! its turns are tinted, and one for each copy engine that was used. Spans that are too close to
//! distinguish are drawn as one.

use core::fmt::Write as _;
use std::collections::BTreeMap;

use cgpu_shm::units::Nanos;

use super::{Interval, Trace};
use crate::timeline::{Span, SpanKind};

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 24.0;
const HEAD: f64 = 64.0;
const GPU: f64 = 30.0;
const ENGINE: f64 = 34.0;
const PROCESS: f64 = 20.0;
const COPIES: f64 = 12.0;
const GAP: f64 = 6.0;
const AXIS: f64 = 32.0;

/// Spans closer than this, in pixels, are drawn as one.
const GRAIN: f64 = 0.4;

/// Colours of processes, in order of their ids, repeated.
const COLOURS: [&str; 8] =
    ["#3b6fd4", "#2f9e63", "#9457d6", "#d6498f", "#1f9bb3", "#8a5a3c", "#6b7a1f", "#5b5bd6"];
const BUBBLE: &str = "#f5a623";
const SWITCH: &str = "#5d6470";
const COPY: &str = "#8fa3bf";
const INK: &str = "#1f2430";
const FAINT: &str = "#6b7280";
const GRID: &str = "#e5e8ee";
const LANE: &str = "#f4f6f9";

/// The picture while it is drawn.
struct Canvas {
    text: String,
    from: Nanos,
    /// Pixels per nanosecond.
    scale: f64,
}

impl Canvas {
    #[allow(clippy::cast_precision_loss)] // pixels are coarser
    fn x(&self, at: Nanos) -> f64 {
        LEFT + (at - self.from).0 as f64 * self.scale
    }

    fn rectangle(
        &mut self,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        fill: &str,
        more: &str,
    ) {
        let _ = writeln!(
            self.text,
            "<rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" \
             height=\"{height:.1}\" fill=\"{fill}\"{more}/>"
        );
    }

    fn write(&mut self, (x, y): (f64, f64), class: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ =
            writeln!(self.text, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{text}</text>");
    }

    /// Draws spans of one colour in a lane as one path, merging those that are too close.
    fn intervals(
        &mut self,
        (y, height): (f64, f64),
        fill: &str,
        more: &str,
        intervals: impl IntoIterator<Item = Interval>,
    ) {
        let mut drawn: Vec<(f64, f64)> = Vec::new();
        for (from, to) in intervals {
            let (from, to) = (self.x(from), self.x(to));
            match drawn.last_mut() {
                Some(last) if from - last.1 < GRAIN => last.1 = last.1.max(to),
                _ => drawn.push((from, to)),
            }
        }
        if drawn.is_empty() {
            return;
        }
        let mut path = String::new();
        for (from, to) in drawn {
            // At least visible.
            let width = (to - from).max(GRAIN);
            let _ = write!(path, "M{from:.2} {y:.1}h{width:.2}v{height:.1}h-{width:.2}z");
        }
        let _ = writeln!(self.text, "<path fill=\"{fill}\"{more} d=\"{path}\"/>");
    }

    fn lane(&mut self, y: f64, height: f64, label: &str) {
        self.rectangle((LEFT, y), (WIDTH - LEFT - RIGHT, height), LANE, "");
        self.write((LEFT - 10.0, y + height / 2.0 + 4.0), "lane", label);
    }
}

impl Trace {
    /// Returns the trace as an SVG, 1200 pixels wide.
    #[must_use]
    pub fn picture(&self) -> String {
        let (from, to) = self.extent();
        let length = (to - from).max(Nanos(1));
        #[allow(clippy::cast_precision_loss)] // pixels are coarser
        let scale = (WIDTH - LEFT - RIGHT) / length.0 as f64;
        let mut canvas = Canvas { text: String::new(), from, scale };
        let colours: BTreeMap<u32, &str> =
            self.all_pids().into_iter().zip(COLOURS.into_iter().cycle()).collect();
        let mut y = self.head(&mut canvas, &colours, length);
        let top = y;
        // The grid is drawn behind the lanes, but its height is only known after them.
        let lanes = core::mem::take(&mut canvas.text);
        for gpu in self.gpus() {
            y = self.gpu(&mut canvas, gpu, y, &colours);
        }
        let drawn = core::mem::replace(&mut canvas.text, lanes);
        axis(&mut canvas, length, top, y);
        let height = y + AXIS;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" \
             viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
             height=\"{height:.0}\" \
             font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\">\n<style>\n\
             .title{{font-size:17px;font-weight:600;fill:{INK}}} \
             .gpu{{font-size:14px;font-weight:600;fill:{INK}}} \
             .note{{font-size:12px;fill:{FAINT}}} \
             .end{{font-size:12px;fill:{FAINT};text-anchor:end}} \
             .tick{{font-size:11px;fill:{FAINT};text-anchor:middle}} \
             .lane{{font-size:12px;fill:{INK};text-anchor:end}} \
             .key{{font-size:12px;fill:{INK}}}\n</style>\n\
             <rect width=\"{WIDTH}\" height=\"{height:.0}\" rx=\"8\" \
             fill=\"#ffffff\"/>\n{}{drawn}</svg>\n",
            canvas.text
        )
    }

    fn all_pids(&self) -> Vec<u32> {
        let pids: std::collections::BTreeSet<u32> =
            self.spans.iter().map(|span| span.pid).collect();
        pids.into_iter().collect()
    }

    /// Draws title and legend; returns where the lanes begin.
    fn head(&self, canvas: &mut Canvas, colours: &BTreeMap<u32, &str>, length: Nanos) -> f64 {
        let processes = if colours.len() == 1 {
            "1 process".to_owned()
        } else {
            format!("{} processes", colours.len())
        };
        canvas.write((20.0, 28.0), "title", &format!("GPU use: {processes}, {}", readable(length)));
        let mut keys: Vec<(&str, String)> =
            colours.iter().map(|(&pid, &colour)| (colour, self.process_name(pid))).collect();
        keys.push((SWITCH, "context switches".to_owned()));
        keys.push((BUBBLE, "bubble: the GPU is idle".to_owned()));
        let (mut x, mut y) = (20.0, HEAD - 14.0);
        for (colour, name) in keys {
            let width = 34.0 + 6.6 * chars(&name);
            if x + width > WIDTH - RIGHT {
                (x, y) = (20.0, y + 20.0);
            }
            canvas.rectangle((x, y - 10.0), (12.0, 12.0), colour, " rx=\"2\"");
            canvas.write((x + 18.0, y), "key", &name);
            x += width;
        }
        y + 10.0
    }

    /// Draws one GPU's lanes; returns where the next one's begin.
    fn gpu(&self, canvas: &mut Canvas, gpu: usize, y: f64, colours: &BTreeMap<u32, &str>) -> f64 {
        let summary = self.gpu_summary(gpu);
        let all = summary.busy_ns + summary.switching_ns + summary.bubble_ns;
        let percent = |part: u64| {
            let tenths = (part * 1_000).checked_div(all).unwrap_or(0);
            format!("{}.{} %", tenths / 10, tenths % 10)
        };
        let name = self.gpu_name(gpu).map_or(String::new(), |name| format!(" · {name} MiB"));
        canvas.write((20.0, y + 20.0), "gpu", &format!("GPU {gpu}{name}"));
        let note = format!(
            "computing {} · switching {} ({} times) · bubbles {}",
            percent(summary.busy_ns),
            percent(summary.switching_ns),
            summary.switches,
            percent(summary.bubble_ns)
        );
        canvas.write((WIDTH - RIGHT, y + 20.0), "end", &note);
        let mut y = y + GPU;
        let spans = || self.spans.iter().filter(move |span| span.gpu == gpu);
        let interval = |span: &Span| (span.from, span.to);
        let of = |kind| spans().filter(move |span| span.kind == kind).map(interval);
        let computing =
            |pid| spans().filter(move |span| span.kind.computes() && span.pid == pid).map(interval);
        canvas.lane(y, ENGINE, "engine");
        canvas.intervals((y, ENGINE), BUBBLE, "", self.bubbles(gpu));
        canvas.intervals((y, ENGINE), SWITCH, "", of(SpanKind::Switch));
        for process in &summary.processes {
            let colour = colours.get(&process.pid).copied().unwrap_or(INK);
            canvas.intervals((y, ENGINE), colour, "", computing(process.pid));
        }
        y += ENGINE + GAP;
        let turns = self.turns(gpu);
        for process in &summary.processes {
            let colour = colours.get(&process.pid).copied().unwrap_or(INK);
            let name = shortened(&process.name);
            canvas.lane(y, PROCESS, &format!("{name} · {}", percent(process.busy_ns)));
            let its = turns
                .iter()
                .filter(|turn| turn.pid == process.pid)
                .map(|turn| (turn.from, turn.to));
            canvas.intervals((y, PROCESS), colour, " opacity=\"0.25\"", its);
            canvas.intervals((y + 4.0, PROCESS - 8.0), colour, "", computing(process.pid));
            y += PROCESS + GAP;
        }
        for (label, way) in
            [("copies to the GPU", SpanKind::Up), ("copies from it", SpanKind::Down)]
        {
            let copies: Vec<Interval> = of(way).collect();
            if !copies.is_empty() {
                canvas.lane(y, COPIES, label);
                canvas.intervals((y, COPIES), COPY, "", copies);
                y += COPIES + GAP;
            }
        }
        y + GAP
    }
}

/// Draws ticks under the lanes, and a grid behind them.
fn axis(canvas: &mut Canvas, length: Nanos, top: f64, bottom: f64) {
    // About ten ticks, at 1, 2 or 5 times a power of ten.
    let step = [1, 2, 5]
        .into_iter()
        .cycle()
        .zip((0..).flat_map(|power| [10_u64.pow(power); 3]).take(3 * 18))
        .map(|(one, power)| one * power)
        .find(|step| length.0 / step <= 12)
        .unwrap_or(length.0);
    let unit = Unit::of(step);
    for tick in 0..=length.0 / step {
        let at = Nanos(tick * step);
        let x = canvas.x(canvas.from + at);
        let _ = writeln!(
            canvas.text,
            "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"{GRID}\"/>",
            top + GPU - 4.0,
            bottom + 4.0
        );
        canvas.write((x, bottom + 18.0), "tick", &unit.write(at));
    }
}

/// A readable unit of time.
struct Unit {
    name: &'static str,
    nanos: u64,
}

impl Unit {
    fn of(nanos: u64) -> Self {
        match nanos {
            1_000_000_000.. => Self { name: "s", nanos: 1_000_000_000 },
            100_000.. => Self { name: "ms", nanos: 1_000_000 },
            100.. => Self { name: "µs", nanos: 1_000 },
            _ => Self { name: "ns", nanos: 1 },
        }
    }

    fn write(&self, at: Nanos) -> String {
        let tenths = at.0 * 10 / self.nanos;
        match tenths % 10 {
            0 => format!("{} {}", tenths / 10, self.name),
            rest => format!("{}.{rest} {}", tenths / 10, self.name),
        }
    }
}

/// Shortens a name to fit the margin: keeps its beginning and its end, the process's id.
fn shortened(name: &str) -> String {
    let all: Vec<char> = name.chars().collect();
    match all.len() {
        0..=19 => name.to_owned(),
        length => all[..9].iter().chain(&['…']).chain(&all[length - 9..]).collect(),
    }
}

fn readable(length: Nanos) -> String {
    Unit::of(length.0).write(length)
}

#[allow(clippy::cast_precision_loss)] // names are short
fn chars(text: &str) -> f64 {
    text.chars().count() as f64
}
