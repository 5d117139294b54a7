//! The agenda: the next event on any GPU, and when it is.
//!
//! A heap of timers. Each owner has exactly one timer, which is moved rather than found and
//! replaced. Timers of the same instant fire in the order of their numbers, so runs are
//! reproducible.

use cgpu_shm::units::Nanos;

use super::records::{GPUS, Global, Gpu, HeapEntry, Process, StreamId, Timer};
use crate::words::Words;

/// The owner of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// A GPU's compute engine: its slice or its switch.
    Engine(Gpu),
    /// The copy engine towards the GPU.
    Up(Gpu),
    /// The copy engine from the GPU.
    Down(Gpu),
    /// An exited process.
    Process(Process),
    /// The head of a stream: its arrival, its end.
    Stream(StreamId),
}

impl Due {
    #[inline]
    fn timer(self) -> Timer {
        Timer(match self {
            Self::Stream(stream) => stream.0,
            Self::Engine(gpu) => STREAMS + gpu.0,
            Self::Up(gpu) => STREAMS + GPUS + gpu.0,
            Self::Down(gpu) => STREAMS + 2 * GPUS + gpu.0,
            Self::Process(process) => STREAMS + 3 * GPUS + process.0,
        })
    }

    #[inline]
    fn of(timer: Timer) -> Self {
        match timer.0 {
            n if n < STREAMS => Self::Stream(StreamId(n)),
            n if n < STREAMS + GPUS => Self::Engine(Gpu(n - STREAMS)),
            n if n < STREAMS + 2 * GPUS => Self::Up(Gpu(n - STREAMS - GPUS)),
            n if n < STREAMS + 3 * GPUS => Self::Down(Gpu(n - STREAMS - 2 * GPUS)),
            n => Self::Process(Process(n - STREAMS - 3 * GPUS)),
        }
    }
}

/// Stream timers come first: a command that ends with a slice ends before the slice.
const STREAMS: u64 = StreamId::COUNT;
const TIMERS: crate::words::At = Global(0).timers();

#[inline]
pub(crate) fn first(words: &impl Words) -> Option<(Nanos, Due)> {
    if words.get(TIMERS) == 0 {
        return None;
    }
    let timer = timer_at(words, 1);
    Some((Nanos(words.get(timer.at())), Due::of(timer)))
}

/// Starts or moves a timer.
pub(crate) fn schedule(words: &mut impl Words, due: Due, at: Nanos) {
    let timer = due.timer();
    words.set(timer.at(), at.0);
    let index = match words.get(timer.index()) {
        0 => {
            let index = words.get(TIMERS) + 1;
            words.set(TIMERS, index);
            index
        }
        index => index,
    };
    sift(words, timer, index);
}

pub(crate) fn cancel(words: &mut impl Words, due: Due) {
    let timer = due.timer();
    let index = words.get(timer.index());
    if index == 0 {
        return;
    }
    words.set(timer.index(), 0);
    let last = words.get(TIMERS);
    words.set(TIMERS, last - 1);
    if index != last {
        let moved = timer_at(words, last);
        sift(words, moved, index);
    }
}

pub(crate) fn runs(words: &impl Words, due: Due) -> bool {
    words.get(due.timer().index()) != 0
}

#[inline]
fn timer_at(words: &impl Words, index: u64) -> Timer {
    Timer(words.get(HeapEntry(index - 1).timer()))
}

#[inline]
fn put(words: &mut impl Words, timer: Timer, index: u64) {
    words.set(HeapEntry(index - 1).timer(), timer.0);
    words.set(timer.index(), index);
}

#[inline]
fn key(words: &impl Words, timer: Timer) -> (u64, u64) {
    (words.get(timer.at()), timer.0)
}

/// Restores the heap around a timer, given an index that is vacant or its own.
fn sift(words: &mut impl Words, timer: Timer, mut index: u64) {
    let own = key(words, timer);
    while index > 1 {
        let parent = timer_at(words, index / 2);
        if key(words, parent) <= own {
            break;
        }
        put(words, parent, index);
        index /= 2;
    }
    let count = words.get(TIMERS);
    while 2 * index <= count {
        let mut child = 2 * index;
        if child < count
            && key(words, timer_at(words, child + 1)) < key(words, timer_at(words, child))
        {
            child += 1;
        }
        let below = timer_at(words, child);
        if own <= key(words, below) {
            break;
        }
        put(words, below, index);
        index = child;
    }
    put(words, timer, index);
}

pub(crate) fn is_valid(words: &impl Words) -> bool {
    (1..=words.get(TIMERS)).all(|index| {
        let timer = timer_at(words, index);
        words.get(timer.index()) == index
            && (index == 1 || key(words, timer_at(words, index / 2)) < key(words, timer))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::mix;
    use crate::timeline::records::WORDS;
    use crate::words::Plain;

    #[test]
    fn timers_fire_by_time_then_number() {
        let mut words = Plain::new(WORDS);
        let mut expected = std::collections::BTreeMap::new();
        for round in 0..20_000_u64 {
            let stream = mix(round) % 50 + 1;
            if mix(round ^ 77).is_multiple_of(3) {
                cancel(&mut words, Due::Stream(StreamId(stream)));
                expected.remove(&stream);
            } else {
                let at = mix(round ^ 99) % 30;
                schedule(&mut words, Due::Stream(StreamId(stream)), Nanos(at));
                expected.insert(stream, at);
            }
            assert!(is_valid(&words));
            let least = expected.iter().map(|(&stream, &at)| (at, stream)).min();
            assert_eq!(
                first(&words),
                least.map(|(at, stream)| (Nanos(at), Due::Stream(StreamId(stream))))
            );
        }
    }
}
