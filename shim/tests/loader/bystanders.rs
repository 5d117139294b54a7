//! Other preloads, and programs that do not use the driver.

use std::path::{Path, PathBuf};

use cgpu_e2e::skip;

use crate::harness::Harness;

#[test]
fn dlsym_interposer_after_the_shim_is_called() {
    let harness = Harness::get();
    let lines = harness.shimmed().preload(harness.file("hooker.so")).lines("hooked", &[]);
    assert_eq!(lines, ["libcgpu.so:cuMemAlloc_v2", "libcuda.so.1:cuStreamCreate", "saw 1"]);
}

/// It looks up the next `dlsym` with glibc's version, which ours does not have.
#[test]
fn dlsym_interposer_before_the_shim_does_not_bypass_it() {
    let harness = Harness::get();
    let run = harness.bare().preload(harness.file("hooker.so")).preload(harness.file("libcgpu.so"));
    assert_eq!(
        run.lines("hooked", &[]),
        ["libcgpu.so:cuMemAlloc_v2", "libcuda.so.1:cuStreamCreate", "saw 1"]
    );
}

#[test]
fn program_without_a_gpu_runs_unchanged() {
    let harness = Harness::get();
    for (program, arguments, expected) in [
        ("/bin/true", &[][..], &[][..]),
        ("/bin/echo", &["one", "two"], &["one two"]),
        ("/bin/sh", &["-c", "umask; echo $0 | cat"], &["0022", "/bin/sh"]),
    ] {
        assert_eq!(harness.shimmed().lines(program, arguments), expected, "{program}");
    }
}

/// Returns a library of the system, if it is installed.
fn installed(names: &[&str]) -> Option<PathBuf> {
    let multiarch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let folders = [multiarch.as_str(), "/usr/lib64", "/usr/lib", "/usr/local/lib"];
    let files = folders
        .iter()
        .flat_map(|folder| names.iter().map(move |name| Path::new(folder).join(name)));
    files.into_iter().find(|file| file.exists())
}

/// Allocators precede malloc, are initialised by the first caller, and hook fork.
fn allocates_with(package: &str, names: &[&str]) {
    let Some(allocator) = installed(names) else {
        return skip("bystanders", package, &format!("no {package}: install it"));
    };
    let harness = Harness::get();
    let shim = harness.file("libcgpu.so");
    for preloads in [[&allocator, &shim], [&shim, &allocator]] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let run = preloads.iter().fold(harness.bare(), |run, file| run.preload(file.to_path_buf()));
        assert_eq!(
            run.lines("handles", &[]),
            harness.shimmed().lines("handles", &[]),
            "{preloads:?}"
        );
        let run = run.variable("CGPU_DIR", &folder.path().display().to_string());
        let run = run.variable("ALIYUN_COM_GPU_MEM_CONTAINER", "6");
        assert_eq!(run.lines("threads", &[]), ["used 33554432", "used 0"], "{preloads:?}");
        let run = run.variable("LIMITED", "1");
        assert!(
            run.lines("forks", &[])
                .iter()
                .all(|line| line.ends_with(": 0") || line.ends_with("with 0"))
        );
    }
}

#[test]
fn jemalloc_before_and_after() {
    allocates_with("libjemalloc2", &["libjemalloc.so.2"]);
}

#[test]
fn tcmalloc_before_and_after() {
    allocates_with("libtcmalloc-minimal4", &["libtcmalloc_minimal.so.4", "libtcmalloc.so.4"]);
}

#[test]
fn dlsym_interposers_on_both_sides_are_called() {
    let harness = Harness::get();
    // The loader loads a file only once under any name, so a copy is needed.
    let other = harness.file("hooker-too.so");
    std::fs::copy(harness.file("hooker.so"), &other).expect("a copy");
    let run = harness
        .bare()
        .preload(harness.file("hooker.so"))
        .preload(harness.file("libcgpu.so"))
        .preload(other);
    let lines = run.lines("hooked", &[]);
    assert_eq!(
        lines[..2],
        ["libcgpu.so:cuMemAlloc_v2", "libcuda.so.1:cuStreamCreate"],
        "{lines:?}"
    );
}
