//! The gate before a launch.
//!
//! The monitor changes the container's gate word when something changes for its launches, and every few milliseconds while
//! tenants contend for a card. A launch compares the word with the one that this process has last acknowledged: two loads and a
//! branch. Only where they differ is there anything to do, and that is [`enter`].

use core::ptr;

use cgpu_abi::driver::DefaultStream;
use cgpu_abi::types::{CUfunction, CUlaunchConfig, CUresult, CUstream, c_uint};
use cgpu_proto::atomic::{AtomicPtr, AtomicU32, Ordering::Relaxed};

use crate::boundary;

/// A launch, as far as the gate has to know it.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "what a metered launch is told by")]
pub(crate) struct Launch {
    /// The kernel.
    pub(crate) function: CUfunction,
    /// Blocks.
    pub(crate) grid: [c_uint; 3],
    /// Threads of a block.
    pub(crate) block: [c_uint; 3],
    /// Bytes of dynamic shared memory of a block.
    pub(crate) shared: c_uint,
    /// The stream, as the program named it.
    pub(crate) stream: CUstream,
    /// Which stream the null handle means.
    pub(crate) default: DefaultStream,
    /// The record with the launch's attributes; null: it has none.
    pub(crate) config: *const CUlaunchConfig,
}

impl Launch {
    /// The null handle means the stream that all threads share.
    pub(crate) const LEGACY: Launch = Launch::of(DefaultStream::Legacy);
    /// The null handle means the thread's own stream.
    pub(crate) const PER_THREAD: Launch = Launch::of(DefaultStream::PerThread);

    const fn of(default: DefaultStream) -> Launch {
        let (function, stream) = (CUfunction::NULL, CUstream::NULL);
        Launch { function, grid: [0; 3], block: [0; 3], shared: 0, stream, default, config: ptr::null() }
    }

    /// As a record says it. A null one is for the driver to refuse.
    ///
    /// # Safety
    ///
    /// `config` is null or a record of the driver's.
    pub(crate) unsafe fn configured(
        config: *const CUlaunchConfig,
        function: CUfunction,
        flavour: Launch,
    ) -> Launch {
        // SAFETY: the caller vouches for it.
        let Some(record) = (unsafe { config.as_ref() }) else {
            return Launch { function, ..flavour };
        };
        Launch {
            function,
            grid: [record.grid_dim_x, record.grid_dim_y, record.grid_dim_z],
            block: [record.block_dim_x, record.block_dim_y, record.block_dim_z],
            shared: record.shared_mem_bytes,
            stream: record.stream,
            config,
            ..flavour
        }
    }
}

/// The gate word while no monitor writes one. Never changes.
static OPEN: AtomicU32 = AtomicU32::new(0);

/// The word that launches look at: in the mapped `grant` page, or [`OPEN`]. Never null.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const OPEN).cast_mut());

/// The word that this process has last acknowledged.
static ACKNOWLEDGED: AtomicU32 = AtomicU32::new(0);

/// From now on launches look at this word.
pub(crate) fn watch(word: &'static AtomicU32) {
    WORD.store(ptr::from_ref(word).cast_mut(), Relaxed);
}

/// Whether nothing has changed since this process last looked.
///
/// Relaxed: an open gate orders nothing; a launch finds out sooner or later that it is not open any more.
#[inline(always)]
pub(crate) fn is_open() -> bool {
    word() == ACKNOWLEDGED.load(Relaxed)
}

/// Acknowledges what has changed, and makes the call.
#[cold]
#[inline(never)]
pub(crate) fn enter(_launch: Launch, call: impl FnOnce() -> CUresult) -> CUresult {
    boundary::or((), || ACKNOWLEDGED.store(word(), Relaxed));
    call()
}

#[inline(always)]
fn word() -> u32 {
    let word = WORD.load(Relaxed);
    // SAFETY: a static, or a word of a page that stays mapped as long as the process lives, and in its children.
    unsafe { &*word }.load(Relaxed)
}
