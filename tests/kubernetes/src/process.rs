//! What the kernel reports of a process.

/// Returns a size in bytes from the status of a process: `VmRSS` is its resident memory, and
/// `VmHWM` the most that it had.
#[must_use]
pub fn memory(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_else(|| panic!("no {name} in {status}")) << 10
}
