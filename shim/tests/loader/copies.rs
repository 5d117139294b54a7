//! Programs that open more than one driver, or one more than once.

use crate::stage::Stage;

#[test]
fn a_stub_that_was_tried_first_does_not_stay() {
    let stage = Stage::get();
    let stub = stage.file("stub/libcuda.so.1").display().to_string();
    let lines = stage.shimmed().lines("copies", &[&stub]);
    assert_eq!(lines, ["libcgpu.so:cuInit", "34", "libcgpu.so:cuInit", "0", "libcgpu.so:cuInit", "0"]);
}
