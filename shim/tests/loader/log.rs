//! The log in the user's processes: it has no effect except its lines.

use std::fs;
use std::path::Path;

use crate::harness::Harness;

/// Returns what `logged` prints under a limit with this log: its lines except the last, and that
/// one, the child's process id.
fn logged(folder: &Path, log: &str) -> (Vec<String>, String) {
    let others = folder.join("others");
    let run = Harness::get().shimmed().variable("CGPU_DIR", &folder.display().to_string());
    let run = run.variable("ALIYUN_COM_GPU_MEM_CONTAINER", "6");
    let run = run.variable("CGPU_LOG", "trace").variable("CGPU_LOG_FILE", log);
    let mut lines = run.lines("logged", &[&others.display().to_string()]);
    assert_eq!(fs::read_to_string(&others).expect("the child's file"), "", "{log}");
    let child = lines.pop().expect("the child's process");
    (lines, child)
}

#[test]
fn log_of_a_child_does_not_reach_descriptors_that_it_has_reopened() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("log");
    let (lines, child) = logged(folder.path(), &log.display().to_string());
    assert_eq!(lines, ["0, descriptors: 0", "child: 0"]);
    let log = fs::read_to_string(log).expect("a log");
    let of_child = |line: &&str| line.contains(&format!(" {child}/{child} "));
    let (childs, parents): (Vec<_>, Vec<_>) = log.lines().partition(of_child);
    for lines in [childs, parents] {
        for event in ["calls are accounted", "memory charged", "driver called to free"] {
            assert!(lines.iter().any(|line| line.contains(event)), "{event}: {log}");
        }
    }
}

#[test]
fn log_that_cannot_be_opened_changes_nothing() {
    let pipe = |folder: &Path| {
        let pipe = folder.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
        assert!(made.success());
        pipe.display().to_string()
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let missing = folder.path().join("missing/log").display().to_string();
    for log in [missing.as_str(), "/", "/dev/full", "/dev/stderr", &pipe(folder.path())] {
        let (lines, _) = logged(folder.path(), log);
        assert_eq!(lines, ["0, descriptors: 0", "child: 0"], "{log}");
    }
}
