//! The `limits` file with any bytes. A valid file is written and read back unchanged; an invalid
//! one is refused with the number of an existing line.

use cgpu_shm::limits::Limits;

pub(crate) fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    match text.parse::<Limits>() {
        Ok(limits) => {
            assert!((1..=25).contains(&limits.weight));
            assert!(limits.gpus.iter().all(|(_, limit)| limit.0 > 0));
            let written = limits.to_text().expect("what was read can be written");
            assert_eq!(written.parse(), Ok(limits));
        }
        Err(refused) => {
            assert!((1..=text.lines().count() + 1).contains(&refused.line), "{refused}")
        }
    }
}
