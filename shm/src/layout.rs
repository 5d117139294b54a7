//! `include/cgpu.h` in Rust: the same bytes and names. The header defines the fields' meaning.
//!
//! Every field is an atomic, even those written only once, and gaps are cells that no code
//! accesses. So a shared reference into a mapping is sound whatever other processes write there.
//!
//! Text (`comm`, `name`) and UUIDs are arrays of words here and bytes in the header; [`bytes_of`]
//! and [`store_bytes`] convert.

use core::cell::UnsafeCell;
use core::fmt;

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::lock::SlotLock;

/// The version word of a finished file.
pub const LAYOUT_VERSION: u32 = 4;
/// `CGPU` on a little-endian machine.
pub const USE_MAGIC: u32 = 0x5550_4743;
/// `CGPG` on a little-endian machine.
pub const GRANT_MAGIC: u32 = 0x4750_4743;

/// GPUs of one container.
pub const GPUS: usize = 16;
/// Processes of one container.
pub const SLOTS: usize = 256;
/// Counted reasons per process.
pub const COUNTERS: usize = 48;
/// Private tables of the driver that are counted by name.
pub const EXPORT_TABLES: usize = 16;
/// Functions of the driver that are counted by name.
pub const UNKNOWN_FUNCTIONS: usize = 8;
/// Published busy intervals per process and GPU.
pub const INTERVALS: usize = 7;
/// Devices of a host that the monitor can list.
pub const DEVICES: usize = 56;
/// Bytes of a container's name, including the closing zero.
pub const NAME: usize = 64;

/// The byte of `use` whose lock says that slot 0 lives; the bytes of the other slots follow.
pub const LOCK_BASE: u64 = 1 << 40;
/// The byte of `use` whose lock serializes the registration of GPUs.
pub const LOCK_REGION: u64 = LOCK_BASE - 1;
/// In a slot's `exported_handles`: the process exported memory by a route on which holders cannot
/// be seen.
pub const EXPORTED_UNSEEN: u64 = 1 << 63;

/// A gap of `N` bytes that no code accesses.
#[repr(transparent)]
pub struct Reserved<const N: usize>(UnsafeCell<[u8; N]>);

// SAFETY: no code reads or writes the bytes, so sharing a reference gives access to nothing.
unsafe impl<const N: usize> Sync for Reserved<N> {}

impl<const N: usize> Default for Reserved<N> {
    fn default() -> Self {
        Self(UnsafeCell::new([0; N]))
    }
}

impl<const N: usize> fmt::Debug for Reserved<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({N} bytes)")
    }
}

/// `struct cgpu_gpu`: a GPU of the container.
#[derive(Debug, Default)]
#[repr(C)]
#[allow(missing_docs)] // the header says it
pub struct Gpu {
    pub uuid: [AtomicU64; 2],
    pub total: AtomicU64,
    pub limit: AtomicU64,
    pub ordinal: AtomicU32,
    pub reserved0: Reserved<4>,
    pub withdrawn: AtomicU64,
    pub context: AtomicU64,
    pub agreed: AtomicU64,
    pub lock: SlotLock,
    pub learning: SlotLock,
    pub reserved3: Reserved<56>,
}

/// `struct cgpu_named_count`: how often something of this name happened.
#[derive(Debug, Default)]
#[repr(C)]
#[allow(missing_docs)] // the header says it
pub struct NamedCount {
    pub name: [AtomicU64; 7],
    pub count: AtomicU64,
}

/// `struct cgpu_use_header`.
#[derive(Debug)]
#[repr(C)]
#[allow(missing_docs)] // the header says it
pub struct UseHeader {
    pub version: AtomicU32,
    pub magic: AtomicU32,
    pub size: AtomicU64,
    pub gpus: AtomicU32,
    pub high_water: AtomicU32,
    pub created: AtomicU64,
    pub name: [AtomicU64; NAME / 8],
    pub time_scale: AtomicU32,
    pub reserved0: Reserved<28>,
    pub export_table: [NamedCount; EXPORT_TABLES],
    pub unknown_function: [NamedCount; UNKNOWN_FUNCTIONS],
    pub reserved: Reserved<384>,
    pub gpu: [Gpu; GPUS],
}

/// `struct cgpu_slot`: one process of the container.
#[derive(Debug)]
#[repr(C)]
#[allow(missing_docs)] // the header says it
pub struct Slot {
    pub state: AtomicU64,
    pub pid: AtomicU32,
    pub reserved0: Reserved<4>,
    pub since: AtomicU64,
    pub comm: [AtomicU64; 2],
    pub acked: AtomicU64,
    pub opened_handles: AtomicU64,
    pub exported_handles: AtomicU64,
    pub counter: [AtomicU32; COUNTERS],
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            state: AtomicU64::default(),
            pid: AtomicU32::default(),
            reserved0: Reserved::default(),
            since: AtomicU64::default(),
            comm: Default::default(),
            acked: AtomicU64::default(),
            opened_handles: AtomicU64::default(),
            exported_handles: AtomicU64::default(),
            counter: core::array::from_fn(|_| AtomicU32::default()),
        }
    }
}

/// `struct cgpu_interval`: an interval in which a process kept a GPU busy.
#[derive(Debug, Default)]
#[repr(C)]
#[allow(missing_docs)] // the header says it
pub struct Interval {
    pub start: AtomicU64,
    pub end: AtomicU64,
}

/// `struct cgpu_cell`: one process's use of one GPU.
#[derive(Debug, Default)]
#[repr(C)]
#[allow(missing_docs)] // the header says it
pub struct Cell {
    pub held: AtomicU64,
    pub implicit: AtomicU64,
    pub peak: AtomicU64,
    pub limit_word: AtomicU64,
    pub waiting: AtomicU64,
    pub creating: AtomicU32,
    pub implicit_epoch: AtomicU32,
    pub charges: AtomicU32,
    pub checkpointed: AtomicU32,
    pub exported: AtomicU64,
    pub busy: AtomicU64,
    pub inflight: AtomicU64,
    pub launches: AtomicU64,
    pub active: AtomicU64,
    pub turn: AtomicU64,
    pub first: AtomicU64,
    pub last: AtomicU64,
    pub spent: AtomicU64,
    pub sequence: AtomicU64,
    pub interval: [Interval; INTERVALS],
    pub ends: AtomicU64,
}

/// `struct cgpu_use`: the file that the container's processes write.
#[derive(Debug)]
#[repr(C)]
#[allow(missing_docs)] // the header says it
pub struct Use {
    pub header: UseHeader,
    pub slot: [Slot; SLOTS],
    pub cell: [[Cell; SLOTS]; GPUS],
}

/// `struct cgpu_grant_gpu`: the monitor's grant on one GPU.
#[derive(Debug, Default)]
#[repr(C)]
#[allow(missing_docs)] // the header says it
pub struct GrantGpu {
    pub turn: AtomicU64,
    pub budget: AtomicU64,
    pub until: AtomicU64,
    pub limit: AtomicU64,
    pub notify_slot: AtomicU32,
    pub policy: AtomicU32,
    pub weight: AtomicU32,
    pub share: AtomicU32,
    pub busy: AtomicU64,
    pub beside: AtomicU32,
    pub unaccounted_epoch: AtomicU32,
    pub bound: AtomicU64,
    pub confirmed: [AtomicU64; SLOTS / 64],
    pub returned: AtomicU64,
    pub measured: AtomicU32,
    pub reserved0: Reserved<12>,
}

/// `struct cgpu_device`: a device of the host.
#[derive(Debug, Default)]
#[repr(C)]
#[allow(missing_docs)] // the header says it
pub struct Device {
    pub uuid: [AtomicU64; 2],
    pub total: AtomicU32,
    pub free: AtomicU32,
    pub order: AtomicU32,
    pub reserved0: Reserved<4>,
}

/// `struct cgpu_grant`: the file that the monitor writes.
#[derive(Debug)]
#[repr(C)]
#[allow(missing_docs)] // the header says it
pub struct Grant {
    pub version: AtomicU32,
    pub magic: AtomicU32,
    pub size: AtomicU64,
    pub heartbeat: AtomicU64,
    pub monitor: AtomicU64,
    pub reserved0: Reserved<32>,
    pub gate: AtomicU32,
    pub reserved1: Reserved<60>,
    pub notify_requested: AtomicU32,
    pub devices: AtomicU32,
    pub sampled: AtomicU64,
    pub pid_namespace: AtomicU64,
    pub reserved2: Reserved<104>,
    pub device: [Device; DEVICES],
    pub gpu: [GrantGpu; GPUS],
    pub drained: [AtomicU64; SLOTS],
    pub process: [AtomicU64; SLOTS],
    pub unaccounted: [[AtomicU64; SLOTS]; GPUS],
}

/// Returns the bytes of a text or UUID field, in the order of the header.
pub fn bytes_of<const WORDS: usize>(field: &[AtomicU64; WORDS]) -> impl Iterator<Item = u8> {
    field.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
}

/// Stores a text or UUID field: `bytes`, truncated to the field, then zeros.
pub fn store_bytes(field: &[AtomicU64], bytes: &[u8]) {
    let mut bytes = bytes.iter().copied();
    for word in field {
        let bytes: [u8; 8] = core::array::from_fn(|_| bytes.next().unwrap_or(0));
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }
}

/// The header's assertions. Loom's atomics have another size.
#[cfg(not(loom))]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Gpu>() == 128);
    assert!(offset_of!(Gpu, lock) == 64);
    assert!(size_of::<UseHeader>() == 4096);
    assert!(size_of::<NamedCount>() == 64);
    assert!(offset_of!(UseHeader, export_table) == 128);
    assert!(offset_of!(UseHeader, unknown_function) == 1152);
    assert!(offset_of!(UseHeader, gpu) == 2048);
    assert!(size_of::<Slot>() == 256);
    assert!(offset_of!(Slot, counter) == 64);
    assert!(size_of::<Cell>() == 256);
    assert!(offset_of!(Cell, busy) == 64);
    assert!(offset_of!(Cell, sequence) == 128);
    assert!(offset_of!(Use, slot) == 4096);
    assert!(offset_of!(Use, cell) == 69_632);
    assert!(size_of::<Use>() == 1_118_208);
    assert!(size_of::<GrantGpu>() == 128);
    assert!(offset_of!(Grant, gate) == 64);
    assert!(offset_of!(Grant, notify_requested) == 128);
    assert!(size_of::<Device>() == 32);
    assert!(offset_of!(Grant, device) == 256);
    assert!(offset_of!(Grant, gpu) == 2048);
    assert!(offset_of!(Grant, drained) == 4096);
    assert!(offset_of!(Grant, unaccounted) == 8192);
    assert!(size_of::<Grant>() == 40_960);
};
