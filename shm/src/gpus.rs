//! The GPUs of a container, each registered once by UUID.
//!
//! A lock on a byte of the file serializes registrations. A record is filled first and counted
//! after, so readers, which take no lock, only find complete records. A process that exits in
//! between leaves an uncounted record, which the next registration overwrites.

use std::fmt;
use std::io;
use std::thread;
use std::time::Duration;

use crate::atomic::Ordering;
use crate::layout::{GPUS, bytes_of, store_bytes};
use crate::region::Region;
use crate::slots::State;
use crate::units::{Bytes, DeviceIndex, SlotIndex};
use crate::uuid::Uuid;

/// A GPU as a process registers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its UUID.
    pub uuid: Uuid,
    /// Its memory, as reported by NVML.
    pub total: Bytes,
    /// The container's limit on it; zero: none.
    pub limit: Bytes,
    /// Its index in `NVIDIA_VISIBLE_DEVICES`.
    pub ordinal: u32,
}

/// Why a GPU was not registered.
#[derive(Debug)]
pub enum Error {
    /// [`GPUS`] others are registered.
    Full,
    /// Another process has held the registration lock for a second.
    Busy,
    /// An error of the system.
    System(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => write!(f, "expected at most {GPUS} GPUs in a container, found one more"),
            Self::Busy => write!(
                f,
                "another process of the container has been registering its GPUs for a second: \
                 continue or end it"
            ),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

/// One second in all; a registration takes microseconds.
const TRIES: u32 = 1000;
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

impl Region {
    /// Registers a GPU for the process in slot `me`, or finds its record.
    ///
    /// While any other process lives, a known GPU keeps its limit: a container has one limit per
    /// GPU. A process that is lock sets its own limit, so that a directory that outlives its
    /// container does not keep an old one.
    ///
    /// # Errors
    /// [`Error`]; then nothing has changed.
    pub fn register(&self, me: SlotIndex, gpu: &Gpu) -> Result<DeviceIndex, Error> {
        let _alone = self.lock_gpus()?;
        let count = self.count();
        let known = DeviceIndex::all().take(count).find(|index| self.uuid(*index) == gpu.uuid);
        let index = known.or_else(|| DeviceIndex::new(count)).ok_or(Error::Full)?;
        if known.is_none() || !self.others_live(me) {
            let record = self.gpu(index);
            store_bytes(&record.uuid, &gpu.uuid.0);
            record.total.store(gpu.total.0, Ordering::Relaxed);
            record.limit.store(gpu.limit.0, Ordering::Relaxed);
            record.ordinal.store(gpu.ordinal, Ordering::Relaxed);
        }
        if known.is_none() {
            // Fits: at most GPUS. HB gpus: Release publishes the record to `gpus`.
            let count = u32::try_from(index.get() + 1).unwrap_or(0);
            self.shared().header.gpus.store(count, Ordering::Release);
        }
        Ok(index)
    }

    /// Returns the registered GPUs.
    pub fn gpus(&self) -> impl Iterator<Item = (DeviceIndex, Gpu)> {
        DeviceIndex::all().take(self.count()).map(|index| {
            let record = self.gpu(index);
            let gpu = Gpu {
                uuid: self.uuid(index),
                total: Bytes(record.total.load(Ordering::Relaxed)),
                limit: Bytes(record.limit.load(Ordering::Relaxed)),
                ordinal: record.ordinal.load(Ordering::Relaxed),
            };
            (index, gpu)
        })
    }

    fn count(&self) -> usize {
        // HB gpus: Acquire meets the Release in `register`.
        let count = self.shared().header.gpus.load(Ordering::Acquire);
        usize::try_from(count).unwrap_or(GPUS).min(GPUS)
    }

    fn uuid(&self, index: DeviceIndex) -> Uuid {
        let mut bytes = bytes_of(&self.gpu(index).uuid);
        Uuid(core::array::from_fn(|_| bytes.next().unwrap_or(0)))
    }

    fn others_live(&self, me: SlotIndex) -> bool {
        let table = self.slots();
        SlotIndex::all()
            .take(table.high_water())
            .filter(|slot| *slot != me)
            .any(|slot| table.word(slot).and_then(|word| word.state()) == Some(State::Live))
    }

    fn lock_gpus(&self) -> Result<crate::liveness::ByteLock, Error> {
        for _ in 0..TRIES {
            match self.liveness_locks().file() {
                Ok(Some(lock)) => return Ok(lock),
                Ok(None) => thread::sleep(RETRY_INTERVAL),
                Err(error) => return Err(Error::System(error)),
            }
        }
        Err(Error::Busy)
    }
}
