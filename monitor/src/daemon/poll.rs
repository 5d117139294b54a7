//! What the daemon sleeps on: bells, deaths, the socket, the tree, signals, and one timer.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use cgpu_proto::units::Nanos;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

/// What happened. The number tells whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Timer,
    Signal(u64),
    Tree,
    Listener,
    Connection(u64),
    Bell(u64),
    Death(u64),
}

impl Source {
    const KIND: u32 = 56;

    fn data(self) -> EventData {
        let (kind, number) = match self {
            Self::Timer => (0, 0),
            Self::Signal(number) => (1, number),
            Self::Tree => (6, 0),
            Self::Listener => (2, 0),
            Self::Connection(number) => (3, number),
            Self::Bell(number) => (4, number),
            Self::Death(number) => (5, number),
        };
        EventData::new_u64(kind << Self::KIND | number)
    }

    fn of(data: EventData) -> Option<Self> {
        let number = data.u64() & ((1 << Self::KIND) - 1);
        match data.u64() >> Self::KIND {
            0 => Some(Self::Timer),
            1 => Some(Self::Signal(number)),
            6 => Some(Self::Tree),
            2 => Some(Self::Listener),
            3 => Some(Self::Connection(number)),
            4 => Some(Self::Bell(number)),
            5 => Some(Self::Death(number)),
            _ => None,
        }
    }
}

/// The present time.
pub(crate) fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    Nanos(seconds.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanos.unwrap_or(0)))
}

/// One epoll and its timer.
#[derive(Debug)]
pub(crate) struct Poll {
    epoll: OwnedFd,
    timer: OwnedFd,
    set_for: Nanos,
}

impl Poll {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let poll = Self { epoll, timer, set_for: Nanos::MAX };
        // At its edge: once for each time that it is set, without being read.
        epoll::add(&poll.epoll, &poll.timer, Source::Timer.data(), EventFlags::IN | EventFlags::ET)?;
        Ok(poll)
    }

    /// Wakes us when something can be read there, again and again until it is read.
    pub(crate) fn add(&self, what: impl AsFd, source: Source) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, what, source.data(), EventFlags::IN)?)
    }

    /// The opposite.
    pub(crate) fn remove(&self, what: impl AsFd) {
        // It is there, or it is not: either way it no longer is.
        let _ = epoll::delete(&self.epoll, what);
    }

    /// Sleeps until something happens or the time has come; at most so many things at once. A timer that went off is not told: look
    /// at the clock.
    pub(crate) fn wait(&mut self, until: Nanos, heard: &mut Vec<Source>) -> io::Result<()> {
        if until != self.set_for {
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            // All zero would stop it; it is armed for the past instead.
            let at = until.0.max(1);
            let it_value = Timespec {
                tv_sec: i64::try_from(at / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(at % 1_000_000_000).unwrap_or(0),
            };
            let setting = Itimerspec { it_interval: zero, it_value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &setting)?;
            self.set_for = until;
        }
        let mut events = Vec::with_capacity(64);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        for event in events {
            match Source::of(event.data) {
                Some(Source::Timer) => self.set_for = Nanos::MAX,
                Some(source) => heard.push(source),
                None => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_timer_and_what_can_be_read_wake_us() {
        let mut poll = Poll::new().unwrap();
        let mut heard = Vec::new();
        let start = now();
        poll.wait(start + Nanos::from_millis(3), &mut heard).unwrap();
        assert!(now() >= start + Nanos::from_millis(3));
        assert_eq!(heard, []);
        // The past has come already.
        poll.wait(Nanos(5), &mut heard).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        poll.add(&ours, Source::Bell(7)).unwrap();
        io::Write::write_all(&mut &theirs, b"x").unwrap();
        poll.wait(Nanos::MAX, &mut heard).unwrap();
        assert_eq!(heard, [Source::Bell(7)]);
        poll.remove(&ours);
        heard.clear();
        poll.wait(now() + Nanos::from_millis(1), &mut heard).unwrap();
        assert_eq!(heard, []);
    }

    #[test]
    fn every_source_comes_back_as_it_went() {
        for source in [
            Source::Timer,
            Source::Signal(2),
            Source::Tree,
            Source::Listener,
            Source::Connection(1 << 40),
            Source::Bell(3),
            Source::Death(0),
        ] {
            assert_eq!(Source::of(source.data()), Some(source));
        }
    }
}
