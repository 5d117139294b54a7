//! CPU time and memory of the monitor's process.

use std::fs;

/// CPU time and memory of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// User and system time of all threads, including exited ones.
    pub cpu_seconds: f64,
    /// Resident memory.
    pub resident: u64,
}

impl Usage {
    /// Reads them from /proc; what is missing there is 0.
    pub(super) fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        Self::of(
            &stat,
            &statm,
            rustix::param::clock_ticks_per_second(),
            rustix::param::page_size() as u64,
        )
    }

    fn of(stat: &str, statm: &str, ticks: u64, page: u64) -> Self {
        // The name may contain blanks and brackets: fields 3 and up follow the last bracket.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
        let time: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        let pages = statm
            .split_whitespace()
            .nth(1)
            .and_then(|pages| pages.parse::<u64>().ok())
            .unwrap_or(0);
        // Exact: the count is far below 2^52 ticks.
        #[allow(clippy::cast_precision_loss)]
        Self {
            cpu_seconds: time as f64 / ticks.max(1) as f64,
            resident: pages.saturating_mul(page),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_usage_is_parsed_after_any_process_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 9 9 20 0 1 0 55 1 2";
        let usage = Usage::of(stat, "100 25 3 0 0 0 0", 100, 4096);
        assert_eq!(usage, Usage { cpu_seconds: 3.0, resident: 102_400 });
        assert_eq!(Usage::of("", "", 100, 4096), Usage::default());
        assert!(Usage::read().resident > 0);
    }
}
