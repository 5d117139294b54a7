//! Chrome's trace format, which Perfetto (ui.perfetto.dev) reads.
//!
//! Each GPU is a group of tracks: turns with their bubbles, switches, the copy engines, and a track
//! for each stream that computed. Each process is a group with a track for each calling thread. An
//! arrow leads from the call that enqueued a kernel or copy to its begin. Times are microseconds
//! from the trace's first instant.

use std::collections::{BTreeMap, HashSet};

use cgpu_shm::units::Nanos;
use serde_json::{Map, Value, json};

use super::Trace;
use crate::timeline::{Span, SpanKind};

/// Group numbers of GPUs, above all process ids of Linux.
const GPUS: u64 = 1 << 22;

const TURNS: u64 = 1;
const SWITCHES: u64 = 2;
const UP: u64 = 3;
const DOWN: u64 = 4;
/// The first of the streams' tracks.
const STREAMS: u64 = 10;

/// The text while it is written.
struct Events {
    text: String,
    start: Nanos,
}

impl Events {
    fn add(&mut self, event: &Value) {
        if !self.text.ends_with('[') {
            self.text.push(',');
        }
        self.text.push('\n');
        self.text.push_str(&event.to_string());
    }

    /// Returns microseconds since the start. A trace is short enough for exact nanoseconds in a
    /// float.
    fn at(&self, instant: Nanos) -> f64 {
        micros(instant - self.start)
    }

    fn name_group(&mut self, group: u64, order: u64, name: &str) {
        self.add(&json!({"ph": "M", "name": "process_name", "pid": group, "args": {"name": name}}));
        let order = json!({"sort_index": order});
        self.add(&json!({"ph": "M", "name": "process_sort_index", "pid": group, "args": order}));
    }

    fn name_track(&mut self, group: u64, track: u64, name: &str) {
        let name = json!({"name": name});
        self.add(
            &json!({"ph": "M", "name": "thread_name", "pid": group, "tid": track, "args": name}),
        );
        self.add(&json!({
            "ph": "M", "name": "thread_sort_index", "pid": group, "tid": track,
            "args": {"sort_index": track},
        }));
    }

    fn slice(
        &mut self,
        (group, track): (u64, u64),
        name: &str,
        (from, to): (Nanos, Nanos),
        arguments: &Map<String, Value>,
    ) {
        let (at, length) = (self.at(from), micros(to - from));
        self.add(&json!({
            "ph": "X", "name": name, "pid": group, "tid": track, "ts": at, "dur": length,
            "args": arguments,
        }));
    }

    /// Adds one end of an arrow, `s` or `f`.
    fn arrow(&mut self, end: &str, (group, track): (u64, u64), at: Nanos, command: (u64, u64)) {
        let at = self.at(at);
        let id = format!("{}:{}", command.0, command.1);
        self.add(&json!({
            "ph": end, "bp": "e", "cat": "enqueued", "name": "enqueued", "id": id,
            "pid": group, "tid": track, "ts": at,
        }));
    }
}

#[allow(clippy::cast_precision_loss)] // below 2^53 for 104 days
fn micros(span: Nanos) -> f64 {
    span.0 as f64 / 1_000.0
}

impl Trace {
    /// Returns the trace as a JSON object in Chrome's format.
    #[must_use]
    pub fn chrome(&self) -> String {
        let calls = self.calls.first().map(|call| Nanos(call.from));
        let (start, _) = self.extent();
        let mut events = Events {
            text: "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[".to_owned(),
            start: calls.unwrap_or(start).min(start),
        };
        let mut begun = HashSet::new();
        for gpu in self.gpus() {
            self.gpu_tracks(&mut events, gpu, &mut begun);
        }
        self.call_tracks(&mut events, &begun);
        events.text.push_str("\n]}\n");
        events.text
    }

    fn gpu_tracks(&self, events: &mut Events, gpu: usize, begun: &mut HashSet<(u64, u64)>) {
        let group = GPUS + gpu as u64;
        let name = self.gpu_name(gpu).map_or(String::new(), |name| format!(" · {name}"));
        events.name_group(group, gpu as u64, &format!("GPU {gpu}{name}"));
        for (track, name) in [
            (TURNS, "turns"),
            (SWITCHES, "switches"),
            (UP, "copies to the GPU"),
            (DOWN, "copies from it"),
        ] {
            events.name_track(group, track, name);
        }
        let mut streams: BTreeMap<(u32, u64, u64), u64> = BTreeMap::new();
        let spans = || self.spans.iter().filter(move |span| span.gpu == gpu);
        for span in spans().filter(|span| span.kind.computes()) {
            streams.insert((span.pid, span.context, span.stream), 0);
        }
        for (place, ((pid, context, stream), track)) in (STREAMS..).zip(&mut streams) {
            *track = place;
            let name = format!("{} · context {context} · stream {stream}", self.process_name(*pid));
            events.name_track(group, place, &name);
        }
        for turn in self.turns(gpu) {
            events.slice(
                (group, TURNS),
                &self.process_name(turn.pid),
                (turn.from, turn.to),
                &object(json!({"pid": turn.pid})),
            );
        }
        for bubble in self.bubbles(gpu) {
            events.slice((group, TURNS), "bubble", bubble, &Map::new());
        }
        for span in spans() {
            let track = match span.kind {
                SpanKind::Switch => SWITCHES,
                SpanKind::Up => UP,
                SpanKind::Down => DOWN,
                _ => streams[&(span.pid, span.context, span.stream)],
            };
            let name = match span.kind {
                SpanKind::Switch => format!("to {}", self.process_name(span.pid)),
                _ => self.span_name(span).to_owned(),
            };
            events.slice((group, track), &name, (span.from, span.to), &arguments(span));
            if span.stream != 0 && begun.insert((span.stream, span.number)) && self.is_called(span)
            {
                events.arrow("f", (group, track), span.from, (span.stream, span.number));
            }
        }
    }

    /// Returns whether the journal can have the call that enqueued it.
    fn is_called(&self, span: &Span) -> bool {
        !self.calls.is_empty()
            && matches!(span.kind, SpanKind::Kernel | SpanKind::Up | SpanKind::Down)
    }

    fn call_tracks(&self, events: &mut Events, begun: &HashSet<(u64, u64)>) {
        let mut named = HashSet::new();
        let copies: HashSet<(u64, u64)> = self
            .spans
            .iter()
            .filter(|span| self.is_called(span))
            .map(|span| (span.stream, span.number))
            .collect();
        for call in &self.calls {
            let (group, track) = (u64::from(call.pid), u64::from(call.thread));
            if named.insert((group, 0)) {
                events.name_group(group, 1_000 + group, &self.process_name(call.pid));
            }
            if named.insert((group, track)) {
                events.name_track(group, track, &format!("thread {track}"));
            }
            let mut arguments = call.arguments.clone();
            arguments.insert("answer".to_owned(), call.answer.into());
            events.slice(
                (group, track),
                &call.name,
                (Nanos(call.from), Nanos(call.to)),
                &arguments,
            );
            for &command in &call.enqueued {
                if begun.contains(&command) && copies.contains(&command) {
                    events.arrow("s", (group, track), Nanos(call.from), command);
                }
            }
        }
    }
}

fn arguments(span: &Span) -> Map<String, Value> {
    object(match span.kind {
        SpanKind::Switch => json!({"pid": span.pid, "context": span.context}),
        _ => {
            json!({"pid": span.pid, "context": span.context, "stream": span.stream,
            "number": span.number,
            "done": span.done})
        }
    })
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
