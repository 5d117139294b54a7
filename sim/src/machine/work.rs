//! Commands that programs enqueue.

use cgpu_shm::units::Nanos;

use super::effects::Effect;
use super::{Core, Machine, StreamId, Ticket, enqueued, lock};
use crate::error::Error;
use crate::footprint::Footprint;
use crate::kernel::Kernel;
use crate::segment::Transaction;
use crate::settings::Figures;
use crate::timeline::{Command, QueueFull, Timeline};

/// One kernel launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Its behaviour.
    pub kernel: Kernel,
    /// The part of the GPU that it occupies ([`GpuSpec::footprint`](crate::GpuSpec::footprint)).
    pub footprint: Footprint,
}

impl Launch {
    /// Launches a grid that fills the GPU.
    #[must_use]
    pub const fn whole(kernel: Kernel) -> Self {
        Self { kernel, footprint: Footprint::WHOLE }
    }

    /// Restricts the launch to a part of the GPU's multiprocessors; it takes longer if it would
    /// occupy more.
    #[must_use]
    pub fn within(self, part: u32, all: u32, figures: &Figures) -> Self {
        let (footprint, slower) = self.footprint.within(u64::from(part), u64::from(all.max(1)));
        let kernel = match (self.kernel, slower) {
            (Kernel::Spin(length), Some((times, over))) => {
                Kernel::Spin(Some(Nanos(length.unwrap_or(figures.kernel).0 * times / over)))
            }
            (Kernel::Lognormal { mean, sigma }, Some((times, over))) => {
                Kernel::Lognormal { mean: Nanos(mean.0 * times / over), sigma }
            }
            (kernel, _) => kernel,
        };
        Self { kernel, footprint }
    }
}

/// The direction of a copy, which decides the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKind {
    /// Host to GPU: the first copy engine.
    HostToDevice,
    /// GPU to host: the second copy engine.
    DeviceToHost,
    /// Within the GPU or between GPUs: uses compute time of the stream's context.
    DeviceToDevice,
    /// Host to host: no engine.
    HostToHost,
}

/// Bytes to copy: `slices` of `rows` of `width` bytes. All addresses are byte addresses of the
/// process: device addresses as [`Machine::allocate`] returned them, host addresses as in the
/// program.
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
    /// Bytes from one written row to the next, and from one slice to the next.
    pub to_pitch: (u64, u64),
    /// The same for reading.
    pub from_pitch: (u64, u64),
}

impl Pitched {
    /// Copies `bytes` in one piece.
    #[must_use]
    pub const fn line(to: u64, from: u64, bytes: u64) -> Self {
        Self { to, from, width: bytes, rows: 1, slices: 1, to_pitch: (0, 0), from_pitch: (0, 0) }
    }

    /// Returns the total number of bytes; `None` on overflow.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.width.checked_mul(self.rows)?.checked_mul(self.slices)
    }

    /// Returns the distance from the first byte to past the last, given the pitches of one side.
    /// The copy must not be empty.
    fn extent(&self, (row, slice): (u64, u64)) -> Option<u64> {
        let rows = row.checked_mul(self.rows - 1)?;
        let slices = slice.checked_mul(self.slices - 1)?;
        self.width.checked_add(rows)?.checked_add(slices)
    }
}

/// Device bytes to fill: `rows` of `elements` of `size` bytes (1, 2 or 4) with the low bytes of
/// `value`.
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
    /// Bytes from one row to the next.
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

/// The condition that ends a wait on memory (CUstreamWaitValue_flags).
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

impl Width {
    /// Returns the width in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

impl Machine {
    /// Enqueues a kernel. Blocks while the stream's queue is full.
    ///
    /// # Errors
    /// [`Error::NoStream`].
    pub fn launch(&self, stream: StreamId, launch: Launch) -> Result<Ticket, Error> {
        let begun = self.now();
        let ticket = self.core.enqueue(|timeline, now| {
            self.core.own_stream(timeline, stream)?;
            Ok(timeline.launch_in(stream, launch.kernel, launch.footprint, now))
        })?;
        self.core.clock.spin_until(begun + self.figures().launch_cost);
        Ok(ticket)
    }

    /// Enqueues a command without effects.
    pub(super) fn enqueue(&self, stream: StreamId, command: Command) -> Result<Ticket, Error> {
        let begun = self.now();
        let ticket = self.core.enqueue(|timeline, now| {
            self.core.own_stream(timeline, stream)?;
            Ok(timeline.enqueue(stream, command, 0, now))
        })?;
        self.core.clock.spin_until(begun + self.figures().call_cost);
        Ok(ticket)
    }

    pub(super) fn enqueue_effect(
        &self,
        stream: StreamId,
        command: Command,
        effect: Effect,
    ) -> Result<Ticket, Error> {
        self.check_not_forked()?;
        let begun = self.now();
        let ticket = self.core.enqueue_effect(stream, command, effect)?;
        self.core.clock.spin_until(begun + self.figures().call_cost);
        Ok(ticket)
    }

    /// Enqueues a copy. The bytes move when the simulated GPU has moved them. For a staged source
    /// or a synchronous call, the caller waits for the ticket.
    ///
    /// # Errors
    /// [`Error::NoStream`]; [`Error::NoAllocation`] if a device range leaves its allocation.
    ///
    /// # Safety
    /// Host ranges must stay valid for the copy, unborrowed by Rust code, until the ticket is done
    /// or the context is destroyed.
    pub unsafe fn copy(
        &self,
        stream: StreamId,
        kind: CopyKind,
        what: Pitched,
    ) -> Result<Ticket, Error> {
        self.check_not_forked()?;
        match self.copy_command(kind, &what)? {
            Command::Nothing if what.bytes() == Some(0) => self.enqueue(stream, Command::Nothing),
            command => self.enqueue_effect(stream, command, Effect::Copy(what)),
        }
    }

    /// Checks a copy's ranges as [`Machine::copy`] does, and enqueues nothing.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if a device range leaves its allocation; [`Error::Invalid`] for a
    /// range that is larger than memory.
    pub fn check_copy(&self, kind: CopyKind, what: &Pitched) -> Result<(), Error> {
        self.check_not_forked()?;
        self.copy_command(kind, what).map(|_| ())
    }

    /// Enqueues a fill of device memory.
    ///
    /// # Errors
    /// [`Error::NoStream`]; [`Error::NoAllocation`]; [`Error::Invalid`] for another element size.
    pub fn fill(&self, stream: StreamId, fill: Fill) -> Result<Ticket, Error> {
        self.check_not_forked()?;
        match self.fill_command(&fill)? {
            Command::Nothing => self.enqueue(stream, Command::Nothing),
            command => self.enqueue_effect(stream, command, Effect::Fill(fill)),
        }
    }

    /// Enqueues a write of a word to host or device memory.
    ///
    /// # Errors
    /// [`Error::NoStream`]; [`Error::NoAllocation`]; [`Error::Invalid`] for a misaligned address.
    ///
    /// # Safety
    /// The word must stay writable until the ticket is done or the context is destroyed.
    pub unsafe fn write_value(
        &self,
        stream: StreamId,
        address: u64,
        width: Width,
        value: u64,
    ) -> Result<Ticket, Error> {
        self.check_word(address, width)?;
        self.enqueue_effect(stream, Command::Write, Effect::Write { address, width, value })
    }

    /// Enqueues a wait on a word of host or device memory.
    ///
    /// # Errors
    /// [`Error::NoStream`]; [`Error::NoAllocation`]; [`Error::Invalid`] for a misaligned address.
    ///
    /// # Safety
    /// The word must stay readable until the ticket is done or the context is destroyed.
    pub unsafe fn wait_value(
        &self,
        stream: StreamId,
        address: u64,
        width: Width,
        condition: WaitCondition,
        value: u64,
    ) -> Result<Ticket, Error> {
        self.check_word(address, width)?;
        self.enqueue_effect(
            stream,
            Command::Outside,
            Effect::Watch { address, width, condition, value },
        )
    }

    /// Enqueues a host function. A thread of the simulator calls it when the stream gets there; the
    /// stream goes on when it returns. It must not call the machine, as host functions must not
    /// call the driver.
    ///
    /// # Errors
    /// [`Error::NoStream`].
    pub fn host_function(
        &self,
        stream: StreamId,
        call: Box<dyn FnOnce() + Send>,
    ) -> Result<Ticket, Error> {
        self.enqueue_effect(stream, Command::Outside, Effect::Call(call))
    }

    /// Performs the effects that are due now, as waits and queries do. For tests on a virtual
    /// clock.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Stuck`], [`Error::System`].
    pub fn perform_effects(&self) -> Result<(), Error> {
        self.check_not_forked()?;
        self.core.perform_due()
    }

    /// Converts a copy to a command; refuses ranges that leave their allocations.
    pub(super) fn copy_command(&self, kind: CopyKind, what: &Pitched) -> Result<Command, Error> {
        let bytes = what.bytes().ok_or(TOO_LARGE)?;
        if bytes == 0 {
            return Ok(Command::Nothing);
        }
        self.check_range(what.to, what.extent(what.to_pitch), true)?;
        self.check_range(what.from, what.extent(what.from_pitch), false)?;
        let figures = self.figures();
        let at_rate = |rate| figures.copy_latency + Nanos(bytes.saturating_mul(1_000) / rate);
        Ok(match kind {
            CopyKind::HostToDevice => Command::Copy { up: true, cost: at_rate(figures.copy_rate) },
            CopyKind::DeviceToHost => Command::Copy { up: false, cost: at_rate(figures.copy_rate) },
            CopyKind::DeviceToDevice => local(bytes, figures),
            CopyKind::HostToHost => Command::Nothing,
        })
    }

    /// Converts a fill to a command; refuses a range that leaves its allocation.
    pub(super) fn fill_command(&self, fill: &Fill) -> Result<Command, Error> {
        if !matches!(fill.size, 1 | 2 | 4) {
            return Err(Error::Invalid("the element size must be 1, 2 or 4 bytes"));
        }
        let width = fill.elements.checked_mul(fill.size).ok_or(TOO_LARGE)?;
        let bytes = width.checked_mul(fill.rows).ok_or(TOO_LARGE)?;
        if bytes == 0 {
            return Ok(Command::Nothing);
        }
        let extent = fill.pitch.checked_mul(fill.rows - 1).and_then(|rest| rest.checked_add(width));
        if !self.is_device(fill.to) {
            return Err(Error::NoAllocation);
        }
        self.check_range(fill.to, extent, true)?;
        Ok(local(bytes, self.figures()))
    }

    /// Checks that a range is host memory, or device memory within a live allocation.
    fn check_range(&self, address: u64, length: Option<u64>, writes: bool) -> Result<(), Error> {
        let length = length.ok_or(TOO_LARGE)?;
        if lock(&self.core.memory).is_accessible(address, length, writes) {
            Ok(())
        } else {
            Err(Error::NoAllocation)
        }
    }

    pub(super) fn check_word(&self, address: u64, width: Width) -> Result<(), Error> {
        self.check_not_forked()?;
        if address == 0 || !address.is_multiple_of(width.bytes()) {
            return Err(Error::Invalid("the address of a word is not aligned"));
        }
        self.check_range(address, Some(width.bytes()), true)
    }
}

const TOO_LARGE: Error = Error::Invalid("a range larger than memory");

/// Bytes that a block of the driver's own kernels moves, and how many blocks fill a GPU.
const LOCAL_BLOCK: u64 = 16 << 10;
const LOCAL_BLOCKS: u64 = 64;

/// Returns the command of a copy or fill within the GPU: a kernel of the driver.
fn local(bytes: u64, figures: &Figures) -> Command {
    let cost = Nanos(bytes.saturating_mul(1_000) / figures.local_rate + 1_000);
    let footprint = Footprint::of_blocks(bytes.div_ceil(LOCAL_BLOCK), LOCAL_BLOCKS, LOCAL_BLOCKS);
    Command::Compute { cost, kernel: false, rendezvous: None, footprint }
}

impl Core {
    /// Enqueues; waits while the queue is full.
    fn enqueue(
        &self,
        mut enqueue: impl FnMut(
            &mut Timeline<'_, Transaction<'_>>,
            Nanos,
        ) -> Result<Result<Ticket, QueueFull>, Error>,
    ) -> Result<Ticket, Error> {
        loop {
            match self.with(&mut enqueue)? {
                Ok(ticket) => {
                    enqueued::note(ticket);
                    return Ok(ticket);
                }
                Err(QueueFull { room }) => self.wait_for(&[room])?,
            }
        }
    }
}
