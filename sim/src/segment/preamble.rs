//! The segment's first page: identification of the file, the machine's settings, and the lock.
//!
//! Everything but the lock, the areas and the per-process fields is written before the file gets
//! its name, and never again.

use cgpu_shm::atomic::{AtomicU64, Ordering};
use cgpu_shm::lock::SlotLock;
use cgpu_shm::units::Bytes;

use super::areas::AREAS;
use crate::error::Error;
use crate::gpu::{GpuSpec, MAX_GPUS, MODELS, Place};
use crate::instance::Part;
use crate::settings::{Figures, Settings};
use crate::timeline;
use crate::words::index;

/// "CGPUSIM" and a version.
const MAGIC: u64 = u64::from_be_bytes(*b"CGPUSIM\x02");

#[derive(Debug)]
#[repr(C, align(4096))]
pub(super) struct Preamble {
    magic: AtomicU64,
    /// Distinguishes builds with different tables.
    layout: AtomicU64,
    /// The boot of the host to which the times belong.
    boot: AtomicU64,
    time_scale_milli: AtomicU64,
    figures: [AtomicU64; Figures::COUNT],
    gpus: [[AtomicU64; 3]; MAX_GPUS],
    /// The current area; per area its preempted holder, and up to which round it was copied: see
    /// [`super::areas`].
    pub(super) area: AtomicU64,
    pub(super) preempted_holder: [AtomicU64; AREAS],
    pub(super) copied_round: [AtomicU64; AREAS],
    /// Guards all words. The log repairs a holder's death.
    pub(super) lock: SlotLock,
    /// How many holders of the lock have died with it.
    pub(super) takeovers: AtomicU64,
    /// Per process, the generation of its slot. Written by the holder of the slot's byte.
    pub(super) generation: [AtomicU64; 256],
    /// Per process: namespace, anchor's device and inode. Written as above.
    pub(super) identity: [[AtomicU64; 3]; 256],
    /// Calls in progress of each process, in the first word of a cache line of its own.
    pub(super) calls: [[AtomicU64; 8]; 256],
}

/// Validity of a preamble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Validity {
    /// A segment of this build and this boot.
    Valid,
    /// A segment of another build or an earlier boot.
    Stale,
    /// Not a segment.
    Foreign,
}

impl Preamble {
    /// Returns the first words of a new segment; all others are zero.
    pub(super) fn words(settings: &Settings) -> Vec<u64> {
        let gpus = settings.gpus.clone().unwrap_or_else(GpuSpec::default_list);
        let mut words = vec![MAGIC, layout(), boot(), settings.time_scale_milli];
        words.extend(settings.figures.words());
        // Sizes are whole MiB, so the place is in their lowest bits.
        let sizes = |gpu: &GpuSpec| gpu.total.0 & !Place::MASK | gpu.place.bits();
        words.extend(gpus.iter().flat_map(|gpu| [model_number(gpu), sizes(gpu), gpu.part.word()]));
        words
    }

    pub(super) fn validity(&self) -> Validity {
        if self.magic.load(Ordering::Relaxed) != MAGIC {
            Validity::Foreign
        } else if self.layout.load(Ordering::Relaxed) == layout()
            && self.boot.load(Ordering::Relaxed) == boot()
        {
            Validity::Valid
        } else {
            Validity::Stale
        }
    }

    pub(super) fn time_scale_milli(&self) -> u64 {
        self.time_scale_milli.load(Ordering::Relaxed)
    }

    pub(super) fn figures(&self) -> Figures {
        Figures::of_words(self.figures.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    pub(super) fn gpus(&self) -> Result<Vec<GpuSpec>, Error> {
        let numbers =
            self.gpus.iter().map(|gpu| gpu.each_ref().map(|word| word.load(Ordering::Relaxed)));
        let gpu = |[model, total, part]: [u64; 3]| match MODELS.get(index(model - 1)) {
            Some(model) => Ok(GpuSpec {
                model,
                total: Bytes(total & !Place::MASK),
                part: Part::of_word(part),
                place: Place::of_bits(total),
            }),
            None => {
                Err(Error::Segment(format!("the segment names model {model} of {}", MODELS.len())))
            }
        };
        numbers.take_while(|&[model, ..]| model != 0).map(gpu).collect()
    }
}

/// Numbers models from 1: 0 ends the list.
fn model_number(gpu: &GpuSpec) -> u64 {
    MODELS.iter().position(|model| model.key == gpu.model.key).map_or(0, |place| place as u64 + 1)
}

/// Hashes the sizes of the timeline's tables, the models, and the figures.
fn layout() -> u64 {
    [timeline::WORDS, super::areas::LENGTH, MODELS.len(), Figures::COUNT, size_of::<Preamble>()]
        .iter()
        .fold(0, |hash, &number| crate::kernel::mix(hash ^ number as u64))
}

/// Hashes the boot id: times of an earlier boot are meaningless.
fn boot() -> u64 {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.iter().fold(0, |hash, &byte| crate::kernel::mix(hash ^ u64::from(byte)))
}
