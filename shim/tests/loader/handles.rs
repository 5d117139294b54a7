//! Results of `dlsym` and `dlvsym`.

use crate::harness::{Harness, Run};

fn lookups(run: &Run) -> Vec<String> {
    run.lines("handles", &[])
}

#[test]
fn only_symbols_of_the_driver_are_exchanged() {
    let harness = Harness::get();
    let (bare, shimmed) = (lookups(&harness.bare()), lookups(&harness.shimmed()));
    let hooks = [
        "driver cuInit",
        "driver cuMemAlloc",
        "driver cuMemAlloc_v2",
        "driver cuLaunchKernel_ptsz",
        "driver cuGetProcAddress_v2",
        "nvml nvmlInit_v2",
        "nvml nvmlDeviceGetMemoryInfo",
        "nvml nvmlDeviceGetMemoryInfo_v2",
    ];
    // Our exports are global, so the program's own scope has them once there is a driver; without
    // the shim it has none.
    let global = ["default cuMemAlloc_v2", "next cuMemAlloc_v2", "program cuMemAlloc_v2"];
    let mut opened = false;
    let mut exchanged = 0;
    assert_eq!(bare.len(), shimmed.len());
    for (without, with) in bare.iter().zip(&shimmed) {
        opened |= without.starts_with("-- with the");
        let lookup = without.split(':').next().unwrap_or_default();
        if hooks.contains(&lookup) {
            let symbol = lookup.split(' ').nth(1).unwrap_or_default();
            assert_eq!(*with, format!("{lookup}: libcgpu.so:{symbol}"));
            exchanged += 1;
        } else if opened && global.contains(&lookup) {
            assert_eq!(*with, format!("{lookup}: libcgpu.so:cuMemAlloc_v2"));
        } else {
            assert_eq!(with, without);
        }
    }
    assert_eq!(exchanged, hooks.len());
}

#[test]
fn library_named_like_the_driver_keeps_its_functions() {
    let harness = Harness::get();
    assert_eq!(harness.shimmed().lines("namesake", &[]), ["other.so:cuInit", "1007"]);
}

/// With a call instead of a jump, `RTLD_NEXT` from a library returns that library's own function:
/// endless recursion.
#[test]
fn loader_still_sees_the_calling_object() {
    let harness = Harness::get();
    let expected = ["right", "twice", "wrapper.so:getppid"];
    assert_eq!(harness.bare().lines("next", &[]), expected);
    assert_eq!(harness.shimmed().lines("next", &[]), expected);
}

/// What such a library takes for the driver's own function must be the hook, or its callers bypass
/// the limit.
#[test]
fn library_that_wraps_the_driver_wraps_the_hooks() {
    let harness = Harness::get();
    let bare = harness.bare().lines("wrapping", &[]);
    assert_eq!(bare, ["libcuda.so.1:cuMemAlloc_v2", "libcuda.so.1:cuStreamCreate", "null"]);
    let shimmed = harness.shimmed().lines("wrapping", &[]);
    assert_eq!(shimmed, ["libcgpu.so:cuMemAlloc_v2", "libcuda.so.1:cuStreamCreate", "null"]);
}

#[test]
fn program_linked_with_the_driver_calls_the_hooks() {
    let harness = Harness::get();
    let lines = harness.shimmed().lines("linked", &[]);
    assert_eq!(
        lines,
        [
            "cuMemAlloc_v2: libcgpu.so:cuMemAlloc_v2",
            "cuStreamCreate: libcuda.so.1:cuStreamCreate",
            "cuInit answers 0",
            "cuDriverGetVersion answers 0",
        ]
    );
}
