//! Programs that open several drivers, or one several times.

use crate::harness::Harness;

#[test]
fn stub_tried_first_is_replaced_by_the_driver() {
    let harness = Harness::get();
    let stub = harness.file("stub/libcuda.so.1").display().to_string();
    let lines = harness.shimmed().lines("copies", &[&stub]);
    assert_eq!(
        lines,
        ["libcgpu.so:cuInit", "34", "libcgpu.so:cuInit", "0", "libcgpu.so:cuInit", "0"]
    );
}

/// Hooked names once led to the first copy and all others to the second, which was not initialised.
#[test]
fn second_copy_resolves_to_the_first() {
    let harness = Harness::get();
    let second = harness.file("copy/libcuda.so.1");
    std::fs::create_dir_all(second.parent().expect("a folder")).expect("a folder");
    std::fs::copy(harness.file("driver/libcuda.so.1"), &second).expect("a copy");
    let path = second.display().to_string();
    let expected = [
        "two copies",
        "libcgpu.so:cuInit",
        "the same",
        "the same",
        "null",
        "said",
        "0",
        "0",
        "0",
        "0",
        "0",
    ];
    assert_eq!(harness.shimmed().lines("second", &[&path]), expected);
    let bare = harness.bare().lines("second", &[&path]);
    assert_eq!(bare[2..4], ["another", "another"], "without the shim they are two");
}
