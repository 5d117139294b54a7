//! Forks in every state of a program, and threads that start at once.

use crate::harness::Harness;

fn expected() -> Vec<String> {
    let mut lines = vec![
        "before cuInit: ended with 0".to_owned(),
        "parent: 0".to_owned(),
        "after cuInit: ended with 0".to_owned(),
        "child and grandchild: ended with 0".to_owned(),
        "vfork: ended with 0".to_owned(),
        "parent after vfork: 0".to_owned(),
    ];
    lines.extend(std::iter::repeat_n("with threads: ended with 0".to_owned(), 20));
    lines.push("parent in the end: 0".to_owned());
    lines
}

#[test]
fn forked_child_without_a_limit_starts_anew() {
    assert_eq!(Harness::get().shimmed().lines("forks", &[]), expected());
}

#[test]
fn forked_child_under_a_limit_starts_anew() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = Harness::get().shimmed().variable("CGPU_DIR", &folder.path().display().to_string());
    let run = run.variable("ALIYUN_COM_GPU_MEM_CONTAINER", "6").variable("LIMITED", "1");
    assert_eq!(run.lines("forks", &[]), expected());
}

/// All find the same accounting, though each may have started its own.
#[test]
fn threads_initialising_at_once_share_one_tenant() {
    for _ in 0..20 {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let run =
            Harness::get().shimmed().variable("CGPU_DIR", &folder.path().display().to_string());
        let run = run.variable("ALIYUN_COM_GPU_MEM_CONTAINER", "6");
        assert_eq!(run.lines("threads", &[]), ["used 33554432", "used 0"]);
    }
}
