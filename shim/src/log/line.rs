//! Formats an event as a line: `1764112303.123456 DEBUG 4711/4712 cgpu::hooks::memory: charged
//! gpu=0`.

use core::fmt::{self, Debug, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::Event;
use tracing::field::{Field, Visit};

/// Length limit of a line; the rest is cut off.
const LONGEST: usize = 512;

pub(super) struct Line {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Line {
    /// Formats the seconds since 1970, severity, process and thread, module, and message.
    pub(super) fn of(event: &Event<'_>) -> Self {
        let mut line = Self { bytes: [0; LONGEST], length: 0 };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (process, thread) = (std::process::id(), thread());
        let about = event.metadata();
        // Never fails: what does not fit is cut off.
        let _ = write!(
            line,
            "{}.{:06} {:5} {process}/{thread} {}:",
            now.as_secs(),
            now.subsec_micros(),
            about.level(),
            about.target()
        );
        event.record(&mut line);
        line.end();
        line
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    fn end(&mut self) {
        let last = self.length.min(LONGEST - 1);
        if let Some(byte) = self.bytes.get_mut(last) {
            *byte = b'\n';
            self.length = last + 1;
        }
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.length..).unwrap_or_default();
        for (place, byte) in room.iter_mut().zip(text.bytes()) {
            // One event, one line.
            *place = if byte.is_ascii_control() { b' ' } else { byte };
            self.length += 1;
        }
        Ok(())
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self, " {value:?}"),
            name => write!(self, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self, " {}={value}", field.name());
    }
}

fn thread() -> libc::c_long {
    // SAFETY: no obligations. The C library has a function for it only since 2.30.
    unsafe { libc::syscall(libc::SYS_gettid) }
}
