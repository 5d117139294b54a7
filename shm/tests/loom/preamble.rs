//! The publication of a file.

use cgpu_shm::atomic::{AtomicU32, AtomicU64};
use cgpu_shm::preamble::{InvalidPreamble, Kind, Preamble};

use super::*;

#[test]
fn ready_file_shows_all_of_its_content() {
    model(|| {
        #[derive(Default)]
        struct File {
            version: AtomicU32,
            magic: AtomicU32,
            size: AtomicU64,
            name: AtomicU64,
        }
        impl File {
            fn preamble(&self) -> Preamble<'_> {
                Preamble { version: &self.version, magic: &self.magic, size: &self.size }
            }
        }
        let file = Arc::new(File::default());
        let creator = beside(&file, move |file| {
            file.name.store(7, Ordering::Relaxed);
            file.preamble().publish(Kind::Use);
        });
        match file.preamble().check(Kind::Use) {
            Ok(()) => assert_eq!(file.name.load(Ordering::Relaxed), 7),
            Err(invalid) => assert_eq!(invalid, InvalidPreamble::NotYet),
        }
        creator.join().unwrap();
        assert_eq!(file.preamble().check(Kind::Use), Ok(()));
    });
}
