//! Other preloads, and programs that have nothing to do with us.

use crate::stage::Stage;

#[test]
fn another_hooker_of_dlsym_after_us_is_asked_too() {
    let stage = Stage::get();
    let lines = stage.shimmed().preload(stage.file("hooker.so")).lines("hooked", &[]);
    assert_eq!(lines, ["libcgpu.so:cuMemAlloc_v2", "libcuda.so.1:cuStreamCreate", "saw 1"]);
}

/// It asks for the next `dlsym` of glibc's version, which ours has not.
#[test]
fn another_hooker_of_dlsym_before_us_does_not_pass_us_over() {
    let stage = Stage::get();
    let run = stage.bare().preload(stage.file("hooker.so")).preload(stage.file("libcgpu.so"));
    assert_eq!(
        run.lines("hooked", &[]),
        ["libcgpu.so:cuMemAlloc_v2", "libcuda.so.1:cuStreamCreate", "saw 1"]
    );
}

#[test]
fn programs_without_a_gpu_do_not_notice() {
    let stage = Stage::get();
    for (program, arguments, expected) in [
        ("/bin/true", &[][..], &[][..]),
        ("/bin/echo", &["one", "two"], &["one two"]),
        ("/bin/sh", &["-c", "umask; echo $0 | cat"], &["0022", "/bin/sh"]),
    ] {
        assert_eq!(stage.shimmed().lines(program, arguments), expected, "{program}");
    }
}
