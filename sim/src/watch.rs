//! Interception of calls: `CGPU_SIM_FAULT` makes chosen ones fail or end their process,
//! `CGPU_SIM_JOURNAL` records all of them, and what the GPUs did.
//!
//! Each of the two libraries has one [`Watch`], through which all its exported functions go.

use core::cell::RefCell;
use core::fmt::Debug;
use std::path::Path;
use std::sync::Once;

use serde_json::Map;

pub use serde_json::Value;

use crate::error::Error;
use crate::faults::{Faults, InjectedFault, Library};
use crate::journal::{Call, Journal, Line, Process, SpanLine};
use crate::machine::{Machine, record_enqueued};

/// The result of every call while the settings are invalid: UNKNOWN, in both libraries.
const REFUSED: u32 = 999;

/// The faults and the journal of one library.
#[derive(Debug)]
pub struct Watch {
    library: Library,
    faults: Faults,
    journal: Option<Journal>,
    refuses: bool,
}

/// The arguments of a call for the journal.
#[derive(Debug, Default)]
pub struct Arguments(Map<String, Value>);

impl Arguments {
    /// Adds an argument if it is a value; pointers to results are left out.
    pub fn add<T: Debug>(&mut self, name: &str, argument: &T) {
        if core::any::type_name::<T>().starts_with('*') {
            return;
        }
        let text = format!("{argument:?}");
        let value = match (text.parse::<u64>(), text.split_once('(')) {
            (Ok(number), _) => number.into(),
            // A handle: `CUstream(1)`.
            (_, Some((_, rest))) => match rest.trim_end_matches(')').parse::<u64>() {
                Ok(handle) => format!("{handle:#x}").into(),
                Err(_) => text.into(),
            },
            _ => text.into(),
        };
        self.0.insert(name.to_owned(), value);
    }
}

thread_local! {
    /// Notes of the running call.
    static NOTES: RefCell<Map<String, Value>> = RefCell::new(Map::new());
}

impl Watch {
    /// Reads the environment. If it is invalid, this is reported and every call fails: a test that
    /// requests something impossible must not pass by accident.
    #[must_use]
    pub fn from_environment(library: Library) -> Self {
        Self::open(library).unwrap_or_else(|error| {
            eprintln!("cgpu-sim: {error}");
            Self { library, faults: Faults::default(), journal: None, refuses: true }
        })
    }

    fn open(library: Library) -> Result<Self, Error> {
        let faults = Faults::from_environment(library)?;
        let path = std::env::var_os("CGPU_SIM_JOURNAL").filter(|path| !path.is_empty());
        let open = |path: &Path| {
            let failed =
                |error| Error::Settings(format!("CGPU_SIM_JOURNAL={}: {error}", path.display()));
            Journal::open(path).map_err(failed)
        };
        let journal = path.as_deref().map(Path::new).map(open).transpose()?;
        Ok(Self { library, faults, journal, refuses: false })
    }

    /// Runs the call of the function at this position of the library's table, or makes it fail, and
    /// records it. `describe` names its arguments. `machine` returns the machine whose spans go
    /// into the journal, once there is one.
    #[inline]
    pub fn around<'a>(
        &self,
        position: usize,
        describe: impl FnOnce(&mut Arguments),
        machine: impl FnOnce() -> Option<&'a Machine>,
        call: impl FnOnce() -> u32,
    ) -> u32 {
        self.journaled(position, describe, machine, || match self.next_fault(position) {
            None => call(),
            Some(InjectedFault::Error(code)) => code,
            Some(InjectedFault::Kill) => kill_self(),
            Some(InjectedFault::KillAfter) => {
                call();
                kill_self()
            }
            Some(InjectedFault::Hang) => hang(),
        })
    }

    /// Runs and records a call as [`Watch::around`] does, but without a fault: `CGPU_SIM_FAULT`
    /// does not count it.
    #[inline]
    pub fn journaled<'a>(
        &self,
        position: usize,
        describe: impl FnOnce(&mut Arguments),
        machine: impl FnOnce() -> Option<&'a Machine>,
        call: impl FnOnce() -> u32,
    ) -> u32 {
        match &self.journal {
            None => call(),
            Some(journal) => {
                let mut arguments = Arguments::default();
                describe(&mut arguments);
                let (answer, call) = write_down(self.library.symbol(position), arguments, call);
                let mut lines = vec![Line::Call(call)];
                if let Some(machine) = machine() {
                    lines.extend(pending_lines(machine));
                }
                // A full disk must not fail the program's call.
                let _ = journal.add(lines);
                answer
            }
        }
    }

    /// Adds a note of the running call to the journal, if there is one.
    pub fn note<V: Into<Value>>(&self, name: &str, value: impl FnOnce() -> V) {
        if self.journal.is_some() {
            // A thread that is ending has lost its notes.
            let _ =
                NOTES.try_with(|notes| notes.borrow_mut().insert(name.to_owned(), value().into()));
        }
    }

    #[inline]
    fn next_fault(&self, position: usize) -> Option<InjectedFault> {
        if self.refuses {
            Some(InjectedFault::Error(REFUSED))
        } else {
            self.faults.next_fault(position)
        }
    }
}

/// Kills the process as an external SIGKILL would.
#[cold]
fn kill_self() -> ! {
    // SAFETY: has no preconditions.
    let pid = unsafe { libc::getpid() };
    loop {
        // SAFETY: two integers; the process is our own.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

/// Blocks for ever, as a driver that waits for an event that never comes. Signals are handled
/// meanwhile, and may end the process.
#[cold]
fn hang() -> ! {
    loop {
        // SAFETY: has no preconditions.
        unsafe { libc::pause() };
    }
}

fn notes() -> Map<String, Value> {
    NOTES.try_with(RefCell::take).unwrap_or_default()
}

#[cold]
fn write_down(name: &str, arguments: Arguments, call: impl FnOnce() -> u32) -> (u32, Call) {
    notes();
    let from = monotonic();
    let (answer, tickets) = record_enqueued(call);
    let to = monotonic();
    let Arguments(mut arguments) = arguments;
    arguments.append(&mut notes());
    // SAFETY: has no preconditions. Called by number because glibc has the function only since
    // 2.30.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    let call = Call {
        from,
        to,
        pid: std::process::id(),
        thread: u32::try_from(thread).unwrap_or_default(),
        name: name.to_owned(),
        answer,
        arguments,
        enqueued: tickets.iter().map(|ticket| (ticket.stream.get(), ticket.number)).collect(),
    };
    (answer, call)
}

/// Returns the lines of what the GPUs did since the last call; before the first, that of this
/// process.
fn pending_lines(machine: &Machine) -> Vec<Line> {
    static BEGUN: Once = Once::new();
    let mut lines = Vec::new();
    BEGUN.call_once(|| {
        // Fails if the machine is a parent's; then there is nothing to record.
        let _ = machine.trace();
        lines.push(Line::Process(this_process(machine)));
    });
    let mut spans = Vec::new();
    let lost = machine.take_spans(&mut spans).unwrap_or(0);
    if lost > 0 {
        lines.push(Line::Lost { spans: lost });
    }
    lines.extend(spans.iter().map(|span| Line::Span(SpanLine::from(span))));
    lines
}

fn this_process(machine: &Machine) -> Process {
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(Path::file_name).unwrap_or_default();
    Process {
        pid: std::process::id(),
        program: program.to_string_lossy().into_owned(),
        time_scale_milli: machine.time_scale_milli(),
        gpus: machine
            .gpus()
            .iter()
            .map(|gpu| format!("{}:{}", gpu.model.key, gpu.total.0 >> 20))
            .collect(),
        at: monotonic(),
    }
}

/// Returns nanoseconds of CLOCK_MONOTONIC.
fn monotonic() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
