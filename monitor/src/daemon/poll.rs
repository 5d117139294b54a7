//! What the daemon sleeps on: bells, deaths, the socket, the tree, signals, and the time.
//!
//! Each turn ends at a time of its own: a timer would have to be set anew for each, and tell of itself. Where the kernel (5.11) takes the time
//! with the question, that is one call for each sleep instead of two.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use cgpu_shm::clock::{Clock, Monotonic};
use cgpu_shm::units::Nanos;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// What happened. The number tells whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Timer,
    Signal(u64),
    Tree,
    Listener,
    Connection(u64),
    Doorbell(u64),
    RegistrantExit(u64),
    ProcessExit(u64),
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
            Self::Doorbell(number) => (4, number),
            Self::RegistrantExit(number) => (5, number),
            Self::ProcessExit(number) => (7, number),
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
            4 => Some(Self::Doorbell(number)),
            5 => Some(Self::RegistrantExit(number)),
            7 => Some(Self::ProcessExit(number)),
            _ => None,
        }
    }
}

/// What ends a sleep when nothing happens.
#[derive(Debug)]
enum Alarm {
    /// The kernel, with each sleep.
    Sleep,
    /// A timer, and what it is set for: before Linux 5.11, and where a filter of system calls does not know the newer one.
    Timer { timer: OwnedFd, set_for: Nanos },
}

/// One epoll and its alarm.
#[derive(Debug)]
pub(crate) struct Poll {
    epoll: OwnedFd,
    alarm: Alarm,
}

impl Poll {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, alarm: Alarm::Sleep })
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

    /// Sleeps until something happens or the time has come; at most so many things at once. That the time has come is not told: look
    /// at the clock.
    pub(crate) fn wait(&mut self, until: Nanos, heard: &mut Vec<Source>) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        match self.sleep(until, &mut events) {
            Ok(()) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        for event in events {
            match (Source::of(event.data), &mut self.alarm) {
                (Some(Source::Timer), Alarm::Timer { set_for, .. }) => *set_for = Nanos::MAX,
                (Some(source), _) => heard.push(source),
                (None, _) => {}
            }
        }
        Ok(())
    }

    fn sleep(&mut self, until: Nanos, events: &mut Vec<Event>) -> rustix::io::Result<()> {
        if let Alarm::Timer { timer, set_for } = &mut self.alarm {
            set(timer, set_for, until)?;
            epoll::wait(&self.epoll, spare_capacity(events), None)?;
            return Ok(());
        }
        let left = (until != Nanos::MAX).then(|| timespec(until - Monotonic.now()));
        match epoll::wait(&self.epoll, spare_capacity(events), left.as_ref()) {
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
                self.use_timer()?;
                self.sleep(until, events)
            }
            other => other.map(drop),
        }
    }

    fn use_timer(&mut self) -> rustix::io::Result<()> {
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        // At its edge: once for each time that it is set, without being read.
        epoll::add(&self.epoll, &timer, Source::Timer.data(), EventFlags::IN | EventFlags::ET)?;
        self.alarm = Alarm::Timer { timer, set_for: Nanos::MAX };
        Ok(())
    }
}

fn timespec(time: Nanos) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.0 / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(time.0 % 1_000_000_000).unwrap_or(0),
    }
}

/// Sets a timer, if it is not set so.
fn set(timer: &OwnedFd, set_for: &mut Nanos, until: Nanos) -> rustix::io::Result<()> {
    if until != *set_for {
        let it_interval = timespec(Nanos::ZERO);
        // All zero would stop it; it is armed for the past instead.
        let it_value = timespec(Nanos(until.0.max(1)));
        timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value })?;
        *set_for = until;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn poll_wakes_at_the_deadline_and_for_readable_files() {
        wakes(Poll::new().unwrap());
    }

    #[test]
    fn poll_wakes_with_a_timer_only() {
        let mut poll = Poll::new().unwrap();
        poll.use_timer().unwrap();
        wakes(poll);
    }

    fn wakes(mut poll: Poll) {
        let mut heard = Vec::new();
        let start = Monotonic.now();
        poll.wait(start + Nanos::from_millis(3), &mut heard).unwrap();
        assert!(Monotonic.now() >= start + Nanos::from_millis(3));
        assert_eq!(heard, []);
        // The past has come already.
        poll.wait(Nanos(5), &mut heard).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        poll.add(&ours, Source::Doorbell(7)).unwrap();
        io::Write::write_all(&mut &theirs, b"x").unwrap();
        poll.wait(Nanos::MAX, &mut heard).unwrap();
        assert_eq!(heard, [Source::Doorbell(7)]);
        poll.remove(&ours);
        heard.clear();
        poll.wait(Monotonic.now() + Nanos::from_millis(1), &mut heard).unwrap();
        assert_eq!(heard, []);
    }

    #[test]
    fn source_survives_a_round_trip_through_event_data() {
        for source in [
            Source::Timer,
            Source::Signal(2),
            Source::Tree,
            Source::Listener,
            Source::Connection(1 << 40),
            Source::Doorbell(3),
            Source::RegistrantExit(0),
            Source::ProcessExit(5),
        ] {
            assert_eq!(Source::of(source.data()), Some(source));
        }
    }
}
