//! Watching calls: `CGPU_SIM_FAULT` makes chosen ones fail, `CGPU_SIM_JOURNAL` writes all of them down.

use core::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::LazyLock;

use cgpu_abi::DRIVER;
use cgpu_abi::types::CUresult;
use cgpu_proto::atomic::{AtomicU64, Ordering};

/// The watch that the environment asks for, read at the first call.
pub(crate) static WATCH: LazyLock<Watch> = LazyLock::new(|| {
    let variable = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let faults = variable("CGPU_SIM_FAULT").unwrap_or_default();
    let journal = variable("CGPU_SIM_JOURNAL").filter(|path| !path.is_empty());
    Watch::new(&faults, journal.as_deref()).unwrap_or_else(|sentence| {
        // A test that asks for what cannot be done must not pass by accident: every call fails.
        eprintln!("cgpu-sim: {sentence}");
        Watch { faults: Vec::new(), journal: None, refuses: true }
    })
});

/// What is watched for.
#[derive(Debug)]
pub(crate) struct Watch {
    faults: Vec<Fault>,
    journal: Option<File>,
    refuses: bool,
}

/// One call that fails.
#[derive(Debug)]
struct Fault {
    /// Of the function at this position of the table.
    position: usize,
    /// The how-many-th call in this process, from 1.
    nth: u64,
    /// What it answers.
    code: CUresult,
    /// Calls so far.
    calls: AtomicU64,
}

impl Watch {
    fn new(faults: &str, journal: Option<&str>) -> Result<Self, String> {
        let faults = faults
            .split(',')
            .filter(|fault| !fault.is_empty())
            .map(Fault::parse)
            .collect::<Result<_, _>>()?;
        let open = |path| {
            OpenOptions::new()
                .append(true)
                .create(true)
                .open(path)
                .map_err(|error| format!("CGPU_SIM_JOURNAL={path}: {error}"))
        };
        Ok(Self { faults, journal: journal.map(open).transpose()?, refuses: false })
    }

    /// Runs a call, or makes it fail; writes it down.
    pub(crate) fn around(&self, position: usize, call: impl FnOnce() -> CUresult) -> CUresult {
        let result = match self.fault(position) {
            Some(code) => code,
            None => call(),
        };
        if let Some(journal) = &self.journal {
            note(journal, position, result);
        }
        result
    }

    fn fault(&self, position: usize) -> Option<CUresult> {
        let mut code = self.refuses.then_some(CUresult::ERROR_UNKNOWN);
        for fault in self.faults.iter().filter(|fault| fault.position == position) {
            // Relaxed: every call gets a number of its own, whatever else it sees.
            if fault.calls.fetch_add(1, Ordering::Relaxed) + 1 == fault.nth {
                code = Some(fault.code);
            }
        }
        code
    }
}

impl Fault {
    /// Reads `cuMemAlloc_v2:3:2`.
    fn parse(text: &str) -> Result<Self, String> {
        let expected = || format!("CGPU_SIM_FAULT: expected NAME:N:CODE, got {text:?}");
        let mut parts = text.trim().split(':');
        let (Some(name), Some(nth), Some(code), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(expected());
        };
        let position = DRIVER.iter().position(|row| row.symbol == name);
        Ok(Self {
            position: position.ok_or_else(|| format!("CGPU_SIM_FAULT: the driver has no {name:?}"))?,
            nth: nth.parse().ok().filter(|&nth| nth > 0).ok_or_else(expected)?,
            code: CUresult(code.parse().map_err(|_| expected())?),
            calls: AtomicU64::new(0),
        })
    }
}

/// Adds one line: seconds of CLOCK_MONOTONIC, process, thread, name, answer. One write, so that lines of several processes do not mix.
fn note(mut journal: &File, position: usize, result: CUresult) {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a living local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    // SAFETY: has no preconditions.
    let thread = unsafe { libc::gettid() };
    let mut line = String::with_capacity(96);
    let name = DRIVER[position].symbol;
    let process = std::process::id();
    // Writing to a String does not fail; a full disk must not fail the program's call.
    let _ = writeln!(line, "{}.{:09} {process} {thread} {name} {}", now.tv_sec, now.tv_nsec, result.0);
    let _ = journal.write_all(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use cgpu_abi::driver_index;

    use super::*;

    #[test]
    fn only_the_named_call_fails() {
        let watch = Watch::new("cuMemAlloc_v2:3:2, cuMemFree_v2:1:700", None).unwrap();
        let calls = |position| -> Vec<u32> {
            (0..4).map(|_| watch.around(position, || CUresult::SUCCESS).0).collect()
        };
        assert_eq!(calls(driver_index::cuMemAlloc_v2), [0, 0, 2, 0]);
        assert_eq!(calls(driver_index::cuMemFree_v2), [700, 0, 0, 0]);
        assert_eq!(calls(driver_index::cuMemAlloc), [0, 0, 0, 0]);
    }

    #[test]
    fn what_cannot_be_understood_is_said() {
        for text in [
            "cuMemAlloc_v2",
            "cuMemAlloc_v2:1",
            "cuMemAlloc_v2:0:2",
            "cuMemAlloc_v2:x:2",
            "cuNo:1:2",
            "cuInit:1:2:3",
        ] {
            assert!(Watch::new(text, None).unwrap_err().starts_with("CGPU_SIM_FAULT"), "{text}");
        }
    }

    #[test]
    fn the_journal_has_one_line_per_call() {
        let path = std::env::temp_dir().join(format!("cgpu-journal-{}", std::process::id()));
        let watch = Watch::new("", path.to_str()).unwrap();
        let _ = watch.around(driver_index::cuInit, || CUresult::SUCCESS);
        let _ = watch.around(driver_index::cuMemAlloc_v2, || CUresult::ERROR_OUT_OF_MEMORY);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0][1], std::process::id().to_string());
        assert_eq!(lines[0][3..], ["cuInit", "0"]);
        assert_eq!(lines[1][3..], ["cuMemAlloc_v2", "2"]);
    }
}
