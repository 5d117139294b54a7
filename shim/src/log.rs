//! The log: events of `tracing`, as lines in the file that `CGPU_LOG_FILE` names.
//!
//! An event that is disabled costs one relaxed load. There is none on the open path of a launch,
//! and none while a lock is held. An event that is enabled allocates nothing, holds no descriptor
//! and keeps no thread-local, so that it is safe under any allocator and in a forked child.
//!
//! | module | what it is |
//! |---|---|
//! | [`line`] | an event as a line of limited length |
//! | [`file`] | appending a line |

mod file;
mod line;

use std::path::PathBuf;

use cgpu_settings::{Log, LogLevel, System, Variables};
use cgpu_shm::atomic::{AtomicBool, Ordering::Relaxed};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, Subscriber};
use tracing::{Event, Metadata};

use self::line::Line;

/// Begins the log that the variables request. A log that cannot be had changes nothing.
pub(crate) fn start() {
    static STARTED: AtomicBool = AtomicBool::new(false);

    // Once, in a child of a fork too: `tracing` may take a lock meanwhile, which a fork leaves taken.
    if STARTED.swap(true, Relaxed) || is_privileged() {
        return;
    }
    // What is not understood is for the settings to refuse.
    let Ok(Some(log)) = Variables::read(&System).log() else { return };
    let _ = tracing::subscriber::set_global_default(Lines::of(log));
}

/// Whether the program has rights that its user has not: then the user names no file to write to.
fn is_privileged() -> bool {
    // SAFETY: no obligations.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Writes each event as a line.
struct Lines {
    level: LevelFilter,
    file: PathBuf,
}

impl Lines {
    fn of(log: Log) -> Self {
        let level = match log.level {
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        };
        Self { level, file: log.file }
    }
}

impl Subscriber for Lines {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event(&self, event: &Event<'_>) {
        file::append(&self.file, Line::of(event).as_bytes());
    }

    // The shim has no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
