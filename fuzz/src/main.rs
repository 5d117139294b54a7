//! libFuzzer with the border that `CGPU_BORDER` names.
#![no_main]

use std::sync::LazyLock;

use cgpu_fuzz::BORDERS;
use libfuzzer_sys::fuzz_target;

static CHECK: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("CGPU_BORDER").expect("CGPU_BORDER is set");
    BORDERS.iter().find(|border| border.name == name).expect("CGPU_BORDER names a border").check
});

fuzz_target!(|input: &[u8]| CHECK(input));
