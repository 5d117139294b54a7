//! A virtual GPU: contexts alternate by time slices, a switch costs time, and work is preempted
//! only at the end of a slice.

use std::collections::VecDeque;

pub(crate) type Context = usize;

#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// Number within its context, from 1.
    pub(crate) number: u64,
    pub(crate) left: u64,
    pub(crate) launches: u64,
    start: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) number: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    pub(crate) work: VecDeque<Work>,
    pub(crate) done: VecDeque<Done>,
    pub(crate) launches: u64,
    /// Launches that have run.
    pub(crate) finished: u64,
    pub(crate) ran: u64,
    numbers: u64,
}

#[derive(Debug)]
pub(crate) struct Gpu {
    now: u64,
    slice: u64,
    switch: u64,
    pub(crate) queues: Vec<Queue>,
    loaded: Context,
    ready: u64,
    slice_end: u64,
    groups: Vec<usize>,
    /// Time that each container had the GPU: its work and the switches among its own contexts.
    pub(crate) held: Vec<u64>,
    /// The current switch is between two containers.
    crossing: bool,
}

impl Gpu {
    pub(crate) fn new(groups: Vec<usize>, slice: u64, switch: u64) -> Self {
        let queues = vec![Queue::default(); groups.len()];
        let held = vec![0; groups.iter().max().map_or(0, |group| group + 1)];
        Self {
            now: 0,
            slice,
            switch,
            queues,
            loaded: 0,
            ready: 0,
            slice_end: slice,
            groups,
            held,
            crossing: false,
        }
    }

    pub(crate) fn launch(&mut self, context: Context, length: u64, launches: u64) -> u64 {
        let queue = &mut self.queues[context];
        queue.numbers += 1;
        queue.launches += launches;
        queue.work.push_back(Work {
            number: queue.numbers,
            left: length.max(1),
            launches,
            start: None,
        });
        queue.numbers
    }

    /// Removes a context whose process has exited.
    pub(crate) fn drop_context(&mut self, context: Context) {
        self.queues[context].work.clear();
        self.queues[context].launches = 0;
    }

    fn next_context(&self) -> Option<Context> {
        let count = self.queues.len();
        (1..=count)
            .map(|step| (self.loaded + step) % count)
            .find(|&context| !self.queues[context].work.is_empty())
    }

    fn others_wait(&self) -> bool {
        self.queues
            .iter()
            .enumerate()
            .any(|(context, queue)| context != self.loaded && !queue.work.is_empty())
    }

    /// Returns when something will next happen if nothing is launched.
    pub(crate) fn next_event(&self) -> u64 {
        if self.ready > self.now {
            return self.ready;
        }
        match self.queues[self.loaded].work.front() {
            Some(work) => {
                let end = self.now + work.left;
                if self.others_wait() { end.min(self.slice_end.max(self.now)) } else { end }
            }
            None if self.next_context().is_some() => self.now,
            None => u64::MAX,
        }
    }

    pub(crate) fn run_until(&mut self, until: u64) {
        while self.now < until {
            if self.ready > self.now {
                if !self.crossing {
                    self.held[self.groups[self.loaded]] += self.ready.min(until) - self.now;
                }
                self.now = self.ready.min(until);
                self.slice_end = self.ready + self.slice;
                continue;
            }
            let others = self.others_wait();
            if self.queues[self.loaded].work.is_empty() || (others && self.now >= self.slice_end) {
                match self.next_context() {
                    Some(next) if next != self.loaded => {
                        self.crossing = self.groups[self.loaded] != self.groups[next];
                        self.loaded = next;
                        self.ready = self.now + self.switch;
                        if self.switch == 0 {
                            self.slice_end = self.now + self.slice;
                        }
                        continue;
                    }
                    Some(_) => self.slice_end = self.now + self.slice,
                    None => {
                        self.now = until;
                        break;
                    }
                }
            }
            let alone = !self.others_wait();
            let queue = &mut self.queues[self.loaded];
            let Some(work) = queue.work.front_mut() else { continue };
            let step = work.left.min(until - self.now);
            let step =
                if alone { step } else { step.min(self.slice_end.saturating_sub(self.now).max(1)) };
            let start = *work.start.get_or_insert(self.now);
            work.left -= step;
            self.now += step;
            queue.ran += step;
            self.held[self.groups[self.loaded]] += step;
            if work.left == 0 {
                queue.done.push_back(Done { number: work.number, start, end: self.now });
                queue.launches -= work.launches;
                queue.finished += work.launches;
                queue.work.pop_front();
            }
            if alone && self.now >= self.slice_end {
                self.slice_end = self.now + self.slice;
            }
        }
    }
}

/// A random generator, the same in every run (xorshift).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number from `low` to below `high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.bits() % (high - low).max(1)
    }
}
