//! The fast path of a metered launch: a thread's own state.
//!
//! A thread gets a budget on the slow path and spends it without a shared word: one lookup in its
//! own table, keyed by function and stream, one comparison, one subtraction. The table counts the
//! launches, and the thread's next slow path charges them. No other thread uses the table, so
//! nothing here is atomic.
//!
//! An entry has the prices of all measured sizes, so a program that launches its functions in
//! thousands of shapes needs only as many entries as it has functions.

use core::cell::Cell;

use cgpu_shm::units::DeviceIndex as Gpu;
use cgpu_shm::units::Nanos;

use crate::cost::{Function, Kernel, SIZES};
use crate::gpu_time::{LaneId, Stream, ThreadKey};

/// Entries of the table. Four in five of 50 functions have an entry to themselves.
const ENTRIES: usize = 1 << ENTRY_BITS;
const ENTRY_BITS: u32 = 8;
/// A thread whose last slow path is longer ago than this, and than twice its budget, has let the
/// GPU run dry.
const DRY_AFTER: Nanos = Nanos::from_micros(200);
/// A utilization of one.
const FULL_UTILIZATION: u32 = 1024;

/// A function on a stream.
#[derive(Debug)]
struct Entry {
    key: Cell<u64>,
    function: Cell<Function>,
    lane: Cell<LaneId>,
    /// One bit for each size with launches.
    touched: Cell<u32>,
    sizes: [Size; SIZES],
}

/// Price of a launch of one size, and the launches since the last slow path.
#[derive(Debug)]
struct Size {
    price: Cell<u32>,
    launches: Cell<u32>,
}

impl Entry {
    fn empty() -> Self {
        Self {
            key: Cell::new(0),
            function: Cell::new(Kernel::graph(0).function()),
            lane: Cell::new(LaneId::default()),
            touched: Cell::new(0),
            sizes: core::array::from_fn(|_| Size {
                price: Cell::new(u32::MAX),
                launches: Cell::new(0),
            }),
        }
    }

    fn price(&self, prices: &[u32; SIZES]) {
        self.sizes.iter().zip(prices).for_each(|(size, price)| size.price.set(*price));
    }
}

/// State of one thread.
#[derive(Debug)]
#[repr(align(64))]
pub struct Thread {
    /// The gate word under which the budget is valid.
    word: Cell<u32>,
    /// Budget for fast-path launches, in nanoseconds.
    budget: Cell<u32>,
    /// Entries with launches, in the order of their first launch.
    touched: [Cell<u8>; ENTRIES],
    touches: Cell<usize>,
    /// On the heap: 72 KiB may be more than a thread's stack has left.
    entries: Box<[Entry; ENTRIES]>,
    /// The gate for which `key` is valid.
    gate: Cell<usize>,
    key: Cell<ThreadKey>,
    gpu: Cell<Option<Gpu>>,
    inside: Cell<bool>,
    initial_budget: Cell<u32>,
    last_slow_path: Cell<Nanos>,
    /// Share of the time in which its launches keep the GPU busy, in 1024ths; a moving average.
    utilization: Cell<u32>,
}

/// Launches that a thread made on its fast path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FastLaunches {
    pub(crate) kernel: Kernel,
    pub(crate) lane: LaneId,
    pub(crate) launches: u64,
}

impl Default for Thread {
    fn default() -> Self {
        Self {
            word: Cell::new(0),
            budget: Cell::new(0),
            touched: [const { Cell::new(0) }; ENTRIES],
            touches: Cell::new(0),
            entries: entries(),
            gate: Cell::new(0),
            key: Cell::new(ThreadKey(0)),
            gpu: Cell::new(None),
            inside: Cell::new(false),
            initial_budget: Cell::new(0),
            last_slow_path: Cell::new(Nanos::ZERO),
            utilization: Cell::new(FULL_UTILIZATION),
        }
    }
}

impl Thread {
    /// Returns whether the budget covers a launch, and counts it if so. `word` is the gate word
    /// just read.
    ///
    /// An unmeasured size costs more than any budget.
    #[inline(always)]
    #[must_use]
    pub fn spend(&self, word: u32, kernel: Kernel, stream: Stream) -> bool {
        let key = kernel.function().on(stream.key());
        let place = place(key);
        // `place` is below `ENTRIES`, and `size` below `SIZES`.
        #[allow(clippy::indexing_slicing)]
        let entry = &self.entries[place];
        #[allow(clippy::indexing_slicing)]
        let size = &entry.sizes[kernel.size()];
        let (price, budget) = (size.price.get(), self.budget.get());
        if self.word.get() != word || entry.key.get() != key || price > budget {
            return false;
        }
        self.budget.set(budget - price);
        size.launches.set(size.launches.get() + 1);
        let touched = entry.touched.get();
        entry.touched.set(touched | 1 << kernel.size());
        if touched == 0 {
            self.touch(place);
        }
        true
    }

    #[inline(always)]
    fn touch(&self, place: usize) {
        let touches = self.touches.get();
        // Each entry is added at most once.
        if let Some(touch) = self.touched.get(touches) {
            #[allow(clippy::cast_possible_truncation)] // eight bits
            touch.set(place as u8);
            self.touches.set(touches + 1);
        }
    }

    /// Marks the thread as inside the gate. Returns false if it already is: a signal handler
    /// launches.
    pub(crate) fn enter(&self) -> bool {
        !self.inside.replace(true)
    }

    /// Marks the thread as outside the gate.
    pub(crate) fn leave(&self) {
        self.inside.set(false);
    }

    /// Returns its number at this gate, or none before its first slow path. Counts from another
    /// gate (the parent process's) are not valid here.
    pub(crate) fn key(&self, gate: usize) -> Option<ThreadKey> {
        (self.gate.get() == gate).then(|| self.key.get())
    }

    /// Registers the thread at this gate.
    pub(crate) fn register(&self, gate: usize, key: ThreadKey) {
        self.gate.set(gate);
        self.key.set(key);
        self.gpu.set(None);
        self.initial_budget.set(0);
        self.last_slow_path.set(Nanos::ZERO);
        self.utilization.set(FULL_UTILIZATION);
        self.revoke_budget();
        for entry in self.entries.iter() {
            entry.price(&[u32::MAX; SIZES]);
            entry.sizes.iter().for_each(|size| size.launches.set(0));
            entry.touched.set(0);
        }
        self.touches.set(0);
    }

    pub(crate) fn gpu(&self) -> Option<Gpu> {
        self.gpu.get()
    }

    /// Returns how the thread used the budget of its last slow path.
    pub(crate) fn activity(&self, now: Nanos) -> ThreadActivity {
        if self.last_slow_path.get() == Nanos::ZERO {
            return ThreadActivity { utilization: FULL_UTILIZATION, ran_dry: false };
        }
        let used = self.initial_budget.get().saturating_sub(self.budget.get());
        let took = (now - self.last_slow_path.get()).0;
        let busy = u64::from(used).saturating_mul(u64::from(FULL_UTILIZATION)) / took.max(1);
        let utilization = u32::try_from(busy).unwrap_or(FULL_UTILIZATION).min(FULL_UTILIZATION);
        let ran_dry = took > DRY_AFTER.0 && took / 2 > u64::from(used);
        ThreadActivity { utilization: self.utilization.get().midpoint(utilization), ran_dry }
    }

    /// Takes the counted launches out of the table. `each` returns the new price of such a launch.
    pub(crate) fn take(&self, mut each: impl FnMut(FastLaunches) -> u32) {
        for touch in self.touched.iter().take(self.touches.replace(0)) {
            let Some(entry) = self.entries.get(usize::from(touch.get())) else { continue };
            let (function, lane) = (entry.function.get(), entry.lane.get());
            let mut touched = entry.touched.replace(0);
            while touched != 0 {
                let place = touched.trailing_zeros() as usize;
                touched &= touched - 1;
                let Some(size) = entry.sizes.get(place) else { continue };
                let launches = u64::from(size.launches.replace(0));
                let kernel = Kernel::of(function, place);
                size.price.set(each(FastLaunches { kernel, lane, launches }));
            }
        }
    }

    /// Excludes the unused budget from the thread's activity: it is about to be revoked.
    pub(crate) fn discount_unused(&self) {
        self.initial_budget.set(self.initial_budget.get().saturating_sub(self.budget.get()));
    }

    pub(crate) fn revoke_budget(&self) {
        self.word.set(0);
        self.budget.set(0);
    }

    /// Sets a budget on top of the `cost` of the launch that the thread is about to make.
    pub(crate) fn set_budget(
        &self,
        now: Nanos,
        activity: ThreadActivity,
        gpu: Gpu,
        word: u32,
        cost: u32,
        budget: u32,
    ) {
        self.last_slow_path.set(now);
        self.utilization.set(activity.utilization);
        self.gpu.set(Some(gpu));
        self.word.set(word);
        self.initial_budget.set(cost.saturating_add(budget));
        self.budget.set(budget);
    }

    /// Enters a function and the prices of its sizes into the table. The launches of an entry that
    /// it replaces have been taken.
    pub(crate) fn remember(
        &self,
        function: Function,
        stream: Stream,
        lane: LaneId,
        prices: &[u32; SIZES],
    ) {
        let key = function.on(stream.key());
        if let Some(entry) = self.entries.get(place(key)) {
            entry.key.set(key);
            entry.function.set(function);
            entry.lane.set(lane);
            entry.price(prices);
        }
    }
}

fn entries() -> Box<[Entry; ENTRIES]> {
    let entries: Box<[Entry]> = (0..ENTRIES).map(|_| Entry::empty()).collect();
    // The vector has `ENTRIES` elements, so the conversion succeeds.
    entries.try_into().unwrap_or_else(|_| Box::new(core::array::from_fn(|_| Entry::empty())))
}

/// How a thread has launched since its last slow path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadActivity {
    /// Share of the time in which its launches keep the GPU busy, in 1024ths.
    pub(crate) utilization: u32,
    /// It has probably let the GPU run dry.
    pub(crate) ran_dry: bool,
}

impl ThreadActivity {
    /// Returns its largest budget: what it uses in the time in which a busy thread uses `most`.
    pub(crate) fn budget(self, most: Nanos) -> Nanos {
        Nanos(most.0 * u64::from(self.utilization) / u64::from(FULL_UTILIZATION))
    }

    /// Returns whether its launches leave the GPU idle most of the time, so that a batch of them
    /// tells little about each.
    pub(crate) fn is_sparse(self) -> bool {
        self.ran_dry || self.utilization < FULL_UTILIZATION / 2
    }
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // eight bits
const fn place(key: u64) -> usize {
    (key >> (u64::BITS - ENTRY_BITS)) as usize
}

#[cfg(test)]
mod tests;
