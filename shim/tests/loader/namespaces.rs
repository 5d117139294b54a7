//! Ways around the program's own scope.

use crate::harness::Harness;

#[test]
fn deepbind_plugin_calls_the_hooks() {
    let harness = Harness::get();
    let bare = harness.bare().lines("deepbind", &[]);
    assert_eq!(bare[0], "cuMemAlloc_v2: libcuda.so.1:cuMemAlloc_v2");
    let shimmed = harness.shimmed().lines("deepbind", &[]);
    assert_eq!(shimmed[0], "cuMemAlloc_v2: libcgpu.so:cuMemAlloc_v2");
    assert_eq!(bare[1..], shimmed[1..]);
}

/// The variable keeps the flag, and what it costs is documented: the plugin bypasses the hooks.
#[test]
fn deepbind_is_kept_if_the_variable_says_so() {
    let harness = Harness::get();
    let with = |value| {
        harness.shimmed().variable("CGPU_KEEP_DEEPBIND", value).lines("deepbind", &[]).remove(0)
    };
    assert_eq!(with("1"), "cuMemAlloc_v2: libcuda.so.1:cuMemAlloc_v2");
    for value in ["0", "perhaps"] {
        assert_eq!(with(value), "cuMemAlloc_v2: libcgpu.so:cuMemAlloc_v2", "{value}");
    }
}

#[test]
fn driver_is_not_loaded_into_other_namespaces() {
    let harness = Harness::get();
    assert!(harness.bare().lines("namespaces", &[]).contains(&"linked.so: opened".to_owned()));
    let lines = harness.shimmed().lines("namespaces", &[]);
    assert_eq!(
        lines,
        [
            "libcuda.so.1: opened",
            "driver: libcgpu.so:cuMemAlloc_v2",
            "linked.so: libcuda.so.1 in a namespace of its own, where cgpu could not see it: \
             cannot open shared object file: No such file or directory",
            "libm.so.6: opened",
            "cos: another",
            "no-such-library.so: no-such-library.so: cannot open shared object file: \
             No such file or directory",
            "/no/such/library.so: /no/such/library.so: cannot open shared object file: \
             No such file or directory",
            "base: libcgpu.so:cuMemAlloc_v2",
        ]
    );
}
