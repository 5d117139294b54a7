//! The log: `tracing` events as lines in the file that `CGPU_LOG_FILE` names.
//!
//! A disabled event costs one relaxed load. There is none on the open path of a launch, and none
//! while a lock is held. An enabled event allocates nothing, holds no descriptor and uses no
//! thread-local, so it is safe under any allocator and in a forked child.
//!
//! | module | contents |
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

/// Starts the log that the variables request. Failures are ignored.
pub(crate) fn start() {
    static STARTED: AtomicBool = AtomicBool::new(false);

    // Only once, also in a forked child: `tracing` may take a lock, which another thread's fork
    // would leave locked.
    if STARTED.swap(true, Relaxed) || is_privileged() {
        return;
    }
    // The settings report invalid values.
    let Ok(Some(log)) = Variables::read(&System).log() else { return };
    let _ = tracing::subscriber::set_global_default(Lines::of(log));
}

/// Returns whether the program has privileges that its user lacks. The user must not choose a file
/// for it to write to.
fn is_privileged() -> bool {
    // SAFETY: no obligations.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

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
