//! What streams are given to do.

use super::{Machine, StreamId, Ticket};
use crate::error::Error;
use crate::kernel::Kernel;

/// One kernel launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// What it does.
    pub kernel: Kernel,
    /// Blocks of the grid, all dimensions multiplied. Recorded; kernels of one context run one at a time.
    pub blocks: u64,
    /// Threads of a block, all dimensions multiplied.
    pub threads: u64,
}

/// Which way a copy goes; says which engine does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKind {
    /// Host to card: the first copy engine.
    HostToDevice,
    /// Card to host: the second copy engine.
    DeviceToHost,
    /// Within the card or between cards: takes compute time of the stream's context.
    DeviceToDevice,
    /// Host to host: no engine.
    HostToHost,
}

/// Bytes to copy: `slices` of `rows` of `width` bytes, all from byte addresses of the process (device addresses as
/// [`Machine::allocate`] gave them; host addresses as the program has them).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pitched {
    /// First byte written.
    pub to: u64,
    /// First byte read.
    pub from: u64,
    /// Bytes of a row.
    pub width: u64,
    /// Rows of a slice.
    pub rows: u64,
    /// Slices.
    pub slices: u64,
    /// From one written row to the next, and from one slice to the next.
    pub to_pitch: (u64, u64),
    /// The same where it reads.
    pub from_pitch: (u64, u64),
}

impl Pitched {
    /// `bytes` in one piece.
    #[must_use]
    pub const fn line(to: u64, from: u64, bytes: u64) -> Self {
        Self { to, from, width: bytes, rows: 1, slices: 1, to_pitch: (0, 0), from_pitch: (0, 0) }
    }
}

/// Device bytes to fill: `rows` of `elements` of `size` bytes (1, 2 or 4) with the low bytes of `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// First byte written.
    pub to: u64,
    /// The element's value.
    pub value: u32,
    /// The element's size: 1, 2 or 4.
    pub size: u64,
    /// Elements of a row.
    pub elements: u64,
    /// Rows.
    pub rows: u64,
    /// Bytes from row to row.
    pub pitch: u64,
}

/// Width of a stream memory operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 32 bits.
    Four,
    /// 64 bits.
    Eight,
}

/// When a wait on memory ends (CUstreamWaitValue_flags).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitCondition {
    /// `(memory - value)` as a signed number is not negative.
    AtLeast,
    /// Equal.
    Equal,
    /// `memory & value` is not zero.
    And,
    /// `!(memory | value)` is not zero.
    Nor,
}

impl Machine {
    /// Enqueues a kernel. Blocks while the stream's queue is full.
    ///
    /// # Errors
    /// [`Error::NoStream`].
    pub fn launch(&self, stream: StreamId, launch: Launch) -> Result<Ticket, Error> {
        let _ = (stream, launch);
        unimplemented!()
    }

    /// Enqueues a copy. The bytes move when the card would have moved them; a caller that promises the program a staged source or a
    /// synchronous call waits for the ticket.
    ///
    /// # Errors
    /// [`Error::NoStream`]; [`Error::NoAllocation`] where a device range leaves its allocation.
    ///
    /// # Safety
    /// Host ranges must stay valid for the copy, unborrowed by Rust code, until the ticket is done or the context is gone.
    pub unsafe fn copy(&self, stream: StreamId, kind: CopyKind, what: Pitched) -> Result<Ticket, Error> {
        let _ = (stream, kind, what);
        unimplemented!()
    }

    /// Enqueues a fill of device memory.
    ///
    /// # Errors
    /// [`Error::NoStream`]; [`Error::NoAllocation`]; [`Error::Invalid`] for another element size.
    pub fn fill(&self, stream: StreamId, fill: Fill) -> Result<Ticket, Error> {
        let _ = (stream, fill);
        unimplemented!()
    }

    /// Enqueues a write of a word to host or device memory.
    ///
    /// # Errors
    /// [`Error::NoStream`]; [`Error::Invalid`] for an address that is not aligned.
    ///
    /// # Safety
    /// The word must stay writable until the ticket is done or the context is gone.
    pub unsafe fn write_value(
        &self,
        stream: StreamId,
        address: u64,
        width: Width,
        value: u64,
    ) -> Result<Ticket, Error> {
        let _ = (stream, address, width, value);
        unimplemented!()
    }

    /// Enqueues a wait on a word of host or device memory.
    ///
    /// # Errors
    /// [`Error::NoStream`]; [`Error::Invalid`] for an address that is not aligned.
    ///
    /// # Safety
    /// The word must stay readable until the ticket is done or the context is gone.
    pub unsafe fn wait_value(
        &self,
        stream: StreamId,
        address: u64,
        width: Width,
        condition: WaitCondition,
        value: u64,
    ) -> Result<Ticket, Error> {
        let _ = (stream, address, width, condition, value);
        unimplemented!()
    }

    /// Enqueues a host function: called by the process's thread when the stream comes to it; the stream goes on when it returns. It must
    /// not call the machine's waiting methods.
    ///
    /// # Errors
    /// [`Error::NoStream`].
    pub fn host_function(&self, stream: StreamId, call: Box<dyn FnOnce() + Send>) -> Result<Ticket, Error> {
        drop(call);
        let _ = stream;
        unimplemented!()
    }
}
