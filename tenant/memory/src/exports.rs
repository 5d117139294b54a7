//! Memory between processes: what others may hold of ours, and what we have open of theirs.
//!
//! ```text
//!   export ---> lent ---- freed here ---> nobody can have it open: refunded
//!                 |            |
//!                 |            +--------> kept: still charged, until nobody has it open
//!                 +-- this process dies: an orphan in its slot (`cgpu_shm::slots`)
//!
//!   open -----> opened: our slot says so, by which others keep what they have freed; costs nothing
//! ```
//!
//! The exporter pays, the importer does not. No call tells an exporter when the last importer lets go. But a handle of the legacy kind, and
//! a pointer of a pool, are bytes that are good only while the maker holds the memory: whoever opens them does so by a call of ours, and
//! says so in its slot, by one bit for the hash of the bytes, before the driver is asked. So after the driver has let the memory go here,
//! it is held elsewhere in the container only if some slot has that bit. Other ways (a descriptor, the fabric, a multicast object of
//! others) can hold memory without anybody's call: what went out like that stays charged, and only the monitor sees it go.
//!
//! Two handles may share a bit: then what was freed stays charged a little longer.

use cgpu_shm::atomic::{AtomicBool, Ordering};
use cgpu_shm::layout::LENT_UNSEEN;
use cgpu_shm::ledger::Column;
use cgpu_shm::spin::Spin;
use cgpu_shm::units::{Bytes, DeviceIndex as Gpu};

use crate::allocations::Owner;
use crate::physical::ordered::Ordered;
use crate::process::bytes;
use crate::{Address, Context, Reason, Tenant};

/// How memory is handed from process to process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way(pub(crate) u64);

impl Way {
    /// By something that nobody can be seen to hold it by: a descriptor, a handle of the fabric.
    pub const UNSEEN: Self = Self(LENT_UNSEEN);

    /// By a handle of these bytes, which is good only while its maker holds the memory.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Self {
        // FNV-1a, and its upper bits, which are the better ones.
        let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, hash);
        Self(1 << ((hash >> 32) % BITS as u64))
    }
}

/// Bits that stand for handles; the last one of a word is [`Way::UNSEEN`].
const BITS: usize = 63;

/// An allocation that others may hold.
#[derive(Clone, Copy, Debug)]
struct Lent {
    gpu: Gpu,
    bytes: Bytes,
    owner: Owner,
    ways: u64,
}

/// What was freed here, and others may hold.
#[derive(Clone, Copy, Debug)]
struct Kept {
    gpu: Gpu,
    bytes: Bytes,
    ways: u64,
}

/// What we have open of others'.
#[derive(Clone, Copy, Debug)]
struct Opened {
    way: Way,
    /// Whose end closes it.
    owner: Option<Owner>,
    /// How often it was opened.
    times: u32,
}

/// The tables of a process.
#[derive(Debug)]
pub(crate) struct Exports {
    /// Whether there ever was anything: in most programs never, and then nobody looks further.
    any: AtomicBool,
    tables: Spin<Tables>,
}

#[derive(Debug)]
struct Tables {
    /// By the first address.
    lent: Ordered<Lent>,
    kept: Vec<Kept>,
    /// By the first address.
    opened: Ordered<Opened>,
    /// How often handles of each bit are open, or about to be.
    open: [u32; BITS],
}

impl Exports {
    pub(crate) fn new() -> Self {
        let tables =
            Tables { lent: Ordered::new(), kept: Vec::new(), opened: Ordered::new(), open: [0; BITS] };
        Self { any: AtomicBool::new(false), tables: Spin::new(tables) }
    }

    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Takes an allocation off the table that is about to be freed; the ways in which it was lent.
    #[cold]
    pub(crate) fn take(&self, address: u64) -> u64 {
        self.tables.lock().lent.remove(address).map_or(0, |lent| lent.ways)
    }

    /// Puts an allocation back whose free the driver has refused.
    #[cold]
    pub(crate) fn restore(&self, address: u64, gpu: Gpu, bytes: Bytes, owner: Owner, ways: u64) {
        // There was room for it just now.
        let _ = self.tables.lock().lent.insert(address, Lent { gpu, bytes, owner, ways });
    }
}

impl Tables {
    /// A handle of this bit is about to be opened. `true`: the slot does not say so yet.
    fn begin(&mut self, way: Way) -> bool {
        let count = self.count(way);
        let first = count.is_some_and(|count| *count == 0);
        if let Some(count) = self.count(way) {
            *count = count.saturating_add(1);
        }
        first
    }

    fn end(&mut self, way: Way) {
        if let Some(count) = self.count(way) {
            *count = count.saturating_sub(1);
        }
    }

    fn count(&mut self, way: Way) -> Option<&mut u32> {
        self.open.get_mut(usize::try_from(way.0.trailing_zeros()).unwrap_or(BITS))
    }

    /// What the slot is to say.
    fn bits(&self) -> u64 {
        let bit = |(bit, count): (usize, &u32)| u64::from(*count > 0) << bit;
        self.open.iter().enumerate().map(bit).fold(0, |all, bit| all | bit)
    }

    /// Takes off one entry that belongs to `owner`.
    fn lent_by(&mut self, owner: Owner, from: &mut u64) -> Option<Lent> {
        while let Some((address, lent)) = self.lent.from(*from) {
            if lent.owner == owner {
                return self.lent.remove(address);
            }
            *from = address.checked_add(1)?;
        }
        None
    }

    fn close_of(&mut self, owner: Owner) -> bool {
        let (mut from, mut any) = (0, false);
        while let Some((address, opened)) = self.opened.from(from) {
            if opened.owner == Some(owner) {
                self.opened.remove(address);
                (0..opened.times).for_each(|_| self.end(opened.way));
                any = true;
            }
            let Some(next) = address.checked_add(1) else { break };
            from = next;
        }
        any
    }
}

impl Tenant {
    /// The driver gave out a handle to the linear memory whose first address this is: others may hold it from now on, and what is
    /// left of us pays for it. Memory that is not on the books is left as it is.
    pub fn lend(&self, address: Address, way: Way) {
        let Some((gpu, allocation)) = self.allocations.find(address.0) else { return };
        self.exports.any.store(true, Ordering::Relaxed);
        self.ledger.lend(way.0);
        let (bytes, owner) = (bytes(allocation.units), allocation.owner);
        let mut tables = self.exports.tables.lock();
        if let Some(lent) = tables.lent.get(address.0).filter(|lent| lent.owner == owner) {
            lent.ways |= way.0;
            return;
        }
        let inserted = tables.lent.insert(address.0, Lent { gpu, bytes, owner, ways: way.0 });
        drop(tables);
        match inserted {
            Ok(None) => self.ledger.export(gpu, bytes),
            // A former allocation at this address, whose free nobody saw.
            Ok(Some(former)) => {
                self.ledger.withdraw_kept(former.gpu, former.bytes);
                self.ledger.export(gpu, bytes);
            }
            Err(_) => {
                // Off the table of addresses: it stays charged, whoever frees it.
                self.ledger.export(gpu, bytes);
                std::mem::forget(self.take_known(address));
                self.count(Reason::Unrecorded);
            }
        }
    }

    /// Memory that was lent is gone here: it is given back, or stays charged because others may have it open.
    #[cold]
    #[inline(never)]
    pub(crate) fn part_with(&self, gpu: Gpu, bytes: Bytes, ways: u64) {
        if !self.keep(gpu, bytes, ways) {
            // Another process may have let go of it before this one asked.
            self.ledger.withdraw_kept(gpu, bytes);
            self.ledger.refund(gpu, Column::Used, bytes);
        }
    }

    /// Keeps memory charged and exported that is gone here, if others may hold it.
    pub(crate) fn keep(&self, gpu: Gpu, bytes: Bytes, ways: u64) -> bool {
        if !self.is_held(ways) {
            return false;
        }
        self.count(Reason::ExportedKept);
        if ways & LENT_UNSEEN == 0 {
            self.exports.any.store(true, Ordering::Relaxed);
            let mut tables = self.exports.tables.lock();
            if tables.kept.try_reserve(1).is_ok() {
                tables.kept.push(Kept { gpu, bytes, ways });
            }
        }
        true
    }

    /// Gives back what was kept and nobody has open any more.
    #[inline]
    pub(crate) fn look_at_kept(&self) {
        if self.exports.any() {
            self.let_go();
        }
    }

    #[cold]
    fn let_go(&self) {
        loop {
            let mut tables = self.exports.tables.lock();
            if tables.kept.is_empty() {
                return;
            }
            let opened = self.ledger.opened();
            let Some(place) = tables.kept.iter().position(|kept| kept.ways & opened == 0) else { return };
            let Kept { gpu, bytes, .. } = tables.kept.swap_remove(place);
            drop(tables);
            self.ledger.withdraw_kept(gpu, bytes);
            self.ledger.refund(gpu, Column::Used, bytes);
        }
    }

    /// Whether others may hold what went out in these ways.
    fn is_held(&self, ways: u64) -> bool {
        ways & LENT_UNSEEN != 0 || self.ledger.opened() & ways != 0
    }

    /// A context is destroyed, in which so many bytes were allocated: what of them was not lent. What was lent is seen to; what was
    /// opened in it is closed.
    pub(crate) fn unlent(&self, owner: Owner, used: Bytes) -> Bytes {
        if !self.exports.any() {
            return used;
        }
        let (mut from, mut rest) = (0, used);
        loop {
            let lent = self.exports.tables.lock().lent_by(owner, &mut from);
            let Some(Lent { gpu, bytes, ways, .. }) = lent else { break };
            rest = rest - bytes;
            self.part_with(gpu, bytes, ways);
        }
        let mut tables = self.exports.tables.lock();
        if tables.close_of(owner) {
            self.ledger.set_opened(tables.bits());
        }
        rest
    }

    /// A handle of others' memory is about to be opened.
    pub fn opening(&self, way: Way) -> Opening<'_> {
        self.exports.any.store(true, Ordering::Relaxed);
        let mut tables = self.exports.tables.lock();
        if tables.begin(way) {
            self.ledger.set_opened(tables.bits());
        }
        Opening { tenant: self, way }
    }

    /// A descriptor was given out of what is open at this address: it holds that whatever is closed here, and nobody sees its end. So it
    /// counts as open as long as this process lives.
    pub fn pin(&self, address: Address) {
        if !self.exports.any() {
            return;
        }
        let mut tables = self.exports.tables.lock();
        if let Some(way) = tables.opened.get(address.0).map(|opened| opened.way) {
            // The slot says so already.
            let _ = tables.begin(way);
        }
    }

    /// What was opened at this address is about to be closed. None: nothing was.
    #[inline]
    pub fn closing(&self, address: Address) -> Option<Closing<'_>> {
        if !self.exports.any() {
            return None;
        }
        self.exports.tables.lock().opened.get(address.0)?;
        Some(Closing { tenant: self, address })
    }

    fn close(&self, way: Way) {
        let mut tables = self.exports.tables.lock();
        tables.end(way);
        self.ledger.set_opened(tables.bits());
    }
}

/// A handle that the driver is asked to open. Dropped without [`Opening::opened`]: it is not open.
#[derive(Debug)]
#[must_use = "an opening that is dropped has not happened"]
pub struct Opening<'a> {
    tenant: &'a Tenant,
    way: Way,
}

impl Opening<'_> {
    /// The driver opened it at `address`, in that context if it goes with one.
    pub fn opened(self, address: Address, context: Option<Context>) {
        let Self { tenant, way } = *std::mem::ManuallyDrop::new(self);
        let owner = context.map(Context::owner);
        let mut tables = tenant.exports.tables.lock();
        if let Some(opened) = tables.opened.get(address.0).filter(|opened| opened.way == way) {
            opened.times = opened.times.saturating_add(1);
            return;
        }
        match tables.opened.insert(address.0, Opened { way, owner, times: 1 }) {
            Ok(None) => {}
            // Closed in a way that nobody saw.
            Ok(Some(former)) => {
                (0..former.times).for_each(|_| tables.end(former.way));
                tenant.ledger.set_opened(tables.bits());
            }
            // It seems open until the process ends.
            Err(_) => {
                drop(tables);
                tenant.count(Reason::Unrecorded);
            }
        }
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.tenant.close(self.way);
    }
}

/// What the driver is asked to close. Dropped: it stays open.
#[derive(Debug)]
#[must_use = "a closing that is dropped has not happened"]
pub struct Closing<'a> {
    tenant: &'a Tenant,
    address: Address,
}

impl Closing<'_> {
    /// The driver closed it, once.
    pub fn closed(self) {
        let mut tables = self.tenant.exports.tables.lock();
        let Some(opened) = tables.opened.get(self.address.0) else { return };
        opened.times = opened.times.saturating_sub(1);
        let Opened { way, times, .. } = *opened;
        if times == 0 {
            tables.opened.remove(self.address.0);
        }
        tables.end(way);
        self.tenant.ledger.set_opened(tables.bits());
    }
}

#[cfg(test)]
mod tests;
