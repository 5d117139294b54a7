//! A container's files with any bytes and any length, as the monitor reads them. It returns a
//! bounded result or an error, and never stops.

use crate::container::Container;
use cgpu_shm::grant::GrantWriter;
use cgpu_shm::snapshot::Reader;
use cgpu_shm::units::DeviceIndex;

thread_local! {
    static CONTAINER: Container = Container::new();
}

pub(crate) fn check(input: &[u8]) {
    CONTAINER.with(|container| {
        // One reader opens the files before the writes, as a monitor does, one after.
        let mut early = Reader::open(container.path()).expect("a region as it was made");
        container.overwrite(input);
        for reader in
            [Some(&mut early), Reader::open(container.path()).ok().as_mut()].into_iter().flatten()
        {
            if let Ok(seen) = reader.read() {
                assert!(seen.slots.len() <= 256 && seen.gpus.len() <= 16);
                for gpu in &seen.gpus {
                    assert_eq!(gpu.cells.len(), seen.slots.len());
                    // A sum over a container's own report saturates.
                    let _ = gpu.used();
                }
            }
            let mut cells = Vec::new();
            for gpu in DeviceIndex::all() {
                let _ = reader.read_cells(gpu, 256, &mut cells);
                assert!(cells.len() <= 256);
            }
        }
        drop(GrantWriter::open(container.path()));
        container.restore();
    });
}
