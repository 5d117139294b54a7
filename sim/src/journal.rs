//! The journal (`CGPU_SIM_JOURNAL`): a line of JSON for every call of a program and span of a GPU.
//!
//! ```text
//! {"what":"process","pid":71,"time_scale_milli":1000,"gpus":["A10:23028"],"at":81000000000000}
//! {"what":"call","from":81000000001000,"to":81000000003600,"pid":71,"thread":71,
//!  "name":"cuLaunchKernel","answer":0,"arguments":{"stream":"0x0","kernel":"spin_50us"},
//!  "enqueued":[[7,12]]}
//! {"what":"span","kind":"kernel","gpu":0,"pid":71,"context":1,"stream":7,"number":12,
//!  "from":81000000009600,"to":...,"done":true}
//! ```
//!
//! Times are in nanoseconds. Those of calls and processes are of `CLOCK_MONOTONIC`; those of spans
//! are device time, which is the same divided by the time scale. `enqueued` names the call's
//! commands by stream and number, as spans do.
//!
//! Every line is one write to the end of the file, so several processes can share one. A process
//! that dies while writing leaves a partial line; readers skip invalid lines.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::timeline::{Span, SpanKind};

/// A line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub enum Line {
    /// A process has opened the machine.
    Process(Process),
    /// A program has called the driver or NVML.
    Call(Call),
    /// An engine of a GPU has done something.
    Span(SpanLine),
    /// Spans that were overwritten before they were read.
    Lost {
        /// Their number.
        spans: u64,
    },
}

/// A process that uses the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Its process id.
    pub pid: u32,
    /// Its program.
    pub program: String,
    /// Real time per device time, in thousandths.
    pub time_scale_milli: u64,
    /// The GPUs, as in `CGPU_SIM_GPUS`.
    pub gpus: Vec<String>,
    /// When it opened the machine, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at: u64,
}

/// A call of the driver or NVML.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Its begin, in nanoseconds of `CLOCK_MONOTONIC`.
    pub from: u64,
    /// Its end.
    pub to: u64,
    /// The process id.
    pub pid: u32,
    /// The thread id.
    pub thread: u32,
    /// The function's symbol.
    pub name: String,
    /// The result: a CUresult or an nvmlReturn_t.
    pub answer: u32,
    /// The arguments that are values: numbers, and handles in hexadecimal. Also `kernel`, the
    /// function's name, or `steps`, those of a graph.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub arguments: Map<String, Value>,
    /// The commands that it enqueued: stream, number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub enqueued: Vec<(u64, u64)>,
}

/// A [`Span`], as it is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "as in Span")]
pub struct SpanLine {
    pub kind: String,
    pub gpu: usize,
    pub pid: u32,
    pub context: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stream: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub number: u64,
    pub from: u64,
    pub to: u64,
    pub done: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde wants it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

const KINDS: [(SpanKind, &str); 7] = [
    (SpanKind::Switch, "switch"),
    (SpanKind::Kernel, "kernel"),
    (SpanKind::Move, "move"),
    (SpanKind::Mark, "mark"),
    (SpanKind::Write, "write"),
    (SpanKind::Up, "up"),
    (SpanKind::Down, "down"),
];

impl SpanKind {
    /// Returns its name in journals and traces.
    #[must_use]
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }
}

impl From<&Span> for SpanLine {
    fn from(span: &Span) -> Self {
        Self {
            kind: span.kind.name().to_owned(),
            gpu: span.gpu,
            pid: span.pid,
            context: span.context,
            stream: span.stream,
            number: span.number,
            from: span.from.0,
            to: span.to.0,
            done: span.done,
        }
    }
}

impl SpanLine {
    /// Converts it back; `None` if its kind is unknown.
    #[must_use]
    pub fn span(&self) -> Option<Span> {
        let (kind, _) = KINDS.iter().find(|(_, name)| *name == self.kind)?;
        Some(Span {
            kind: *kind,
            gpu: self.gpu,
            pid: self.pid,
            context: self.context,
            stream: self.stream,
            number: self.number,
            from: crate::Nanos(self.from),
            to: crate::Nanos(self.to),
            done: self.done,
        })
    }
}

/// A journal that is open for writing.
#[derive(Debug)]
pub struct Journal {
    file: File,
    identity: (u64, u64),
}

impl Journal {
    /// Opens a journal for appending, or creates it.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        let identity = identity(&file)?;
        Ok(Self { file, identity })
    }

    /// Appends lines, in one write.
    ///
    /// # Errors
    /// The system's, such as a full disk. Also when the program has closed the journal's
    /// descriptor, as daemons close all of theirs: another file may have its number by then.
    pub fn add(&self, lines: impl IntoIterator<Item = Line>) -> io::Result<()> {
        if identity(&self.file)? != self.identity {
            return Err(io::Error::other("the program has closed its journal"));
        }
        let mut text = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut text, &line)?;
            text.push(b'\n');
        }
        if text.is_empty() { Ok(()) } else { (&self.file).write_all(&text) }
    }
}

fn identity(file: &File) -> io::Result<(u64, u64)> {
    let about = file.metadata()?;
    Ok((about.dev(), about.ino()))
}

/// Parses the lines of a journal; skips invalid ones.
pub fn lines(text: &str) -> impl Iterator<Item = Line> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nanos;

    #[test]
    fn partial_journal_line_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let span = Span {
            kind: SpanKind::Up,
            gpu: 3,
            pid: 7,
            context: 2,
            stream: 4,
            number: 5,
            from: Nanos(10),
            to: Nanos(20),
            done: true,
        };
        let call = Call {
            from: 1,
            to: 2,
            pid: 7,
            thread: 8,
            name: "cuInit".to_owned(),
            answer: 0,
            arguments: Map::new(),
            enqueued: vec![(4, 5)],
        };
        Journal::open(&path).unwrap().add([Line::Call(call.clone())]).unwrap();
        std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"what\":\"call\",\"fro\n")
            .unwrap();
        Journal::open(&path)
            .unwrap()
            .add([Line::Span(SpanLine::from(&span)), Line::Lost { spans: 3 }])
            .unwrap();
        let read: Vec<Line> = lines(&std::fs::read_to_string(&path).unwrap()).collect();
        assert_eq!(
            read,
            [Line::Call(call), Line::Span(SpanLine::from(&span)), Line::Lost { spans: 3 }]
        );
        let Line::Span(line) = &read[1] else { panic!("{read:?}") };
        assert_eq!(line.span(), Some(span));
    }
}
