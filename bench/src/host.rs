//! The host and time of a run.

use serde_json::{Map, Value};
use std::process::Command;

/// Adds `host`, `driver`, `time_scale`, `switch_us`, `commit` and `date` to a result.
pub(crate) fn describe(object: &mut Map<String, Value>, driver: &str, switch_us: u32) {
    object.insert("host".into(), host().into());
    object.insert("driver".into(), driver.into());
    object.insert("time_scale".into(), 1.0.into());
    object.insert("switch_us".into(), switch_us.into());
    object.insert("commit".into(), output("git", &["rev-parse", "--short", "HEAD"]).into());
    object.insert("date".into(), output("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]).into());
}

/// Returns the processor, its cores and the kernel, but not the machine's name.
fn host() -> String {
    let information = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = information
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown processor", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores, Linux {}", output("uname", &["-r"]))
}

fn output(program: &str, arguments: &[&str]) -> String {
    Command::new(program)
        .args(arguments)
        .output()
        .ok()
        .filter(|output| output.status.success())
        .map_or_else(
            || "unknown".to_owned(),
            |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        )
}
