//! What the daemon sleeps on: doorbells, exits, the socket, the tree, signals, and the time.
//!
//! Turns end at ever new times, and a timer would have to be set for each and then be read. Where
//! the kernel (5.11) takes the deadline with the wait, a sleep is one system call instead of two.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cgpu_shm::clock::{Clock, Monotonic};
use cgpu_shm::units::Nanos;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::control::socket::Door;

/// The source of an event. The number says which of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Timer,
    Signal(u64),
    Tree,
    /// A client that is to be accepted.
    Listener(Door),
    /// Connections of users that may not write.
    Users,
    /// Results of accesses to containers' files.
    Files,
    /// Results of the prober for which a client waits.
    Prober,
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
            Self::Listener(Door::All) => (2, 0),
            Self::Listener(Door::Owner) => (10, 0),
            Self::Connection(number) => (3, number),
            Self::Doorbell(number) => (4, number),
            Self::RegistrantExit(number) => (5, number),
            Self::ProcessExit(number) => (7, number),
            Self::Users => (8, 0),
            Self::Files => (9, 0),
            Self::Prober => (11, 0),
        };
        EventData::new_u64(kind << Self::KIND | number)
    }

    fn of(data: EventData) -> Option<Self> {
        let number = data.u64() & ((1 << Self::KIND) - 1);
        match data.u64() >> Self::KIND {
            0 => Some(Self::Timer),
            1 => Some(Self::Signal(number)),
            6 => Some(Self::Tree),
            2 => Some(Self::Listener(Door::All)),
            10 => Some(Self::Listener(Door::Owner)),
            3 => Some(Self::Connection(number)),
            4 => Some(Self::Doorbell(number)),
            5 => Some(Self::RegistrantExit(number)),
            7 => Some(Self::ProcessExit(number)),
            8 => Some(Self::Users),
            9 => Some(Self::Files),
            11 => Some(Self::Prober),
            _ => None,
        }
    }
}

/// What ends a sleep at its deadline.
#[derive(Debug)]
enum Alarm {
    /// The kernel, by the wait's timeout.
    Sleep,
    /// A timer, and the time that it is set for: before Linux 5.11, and where a system call filter
    /// refuses the newer call.
    Timer { timer: OwnedFd, set_for: Nanos },
}

#[derive(Debug)]
pub(crate) struct Poll {
    epoll: OwnedFd,
    alarm: Alarm,
}

impl Poll {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, alarm: Alarm::Sleep })
    }

    /// Makes a sleep end when the file can be read, until it is read (level-triggered).
    pub(crate) fn add(&self, what: impl AsFd, source: Source) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, what, source.data(), EventFlags::IN)?)
    }

    /// Makes a sleep end at each write to a pipe, whether it is read or not (edge-triggered). A
    /// byte that is read before the sleep ends may be missed. Some kernels from Linux 5.5 to 5.13
    /// tell of a write to an empty pipe only.
    pub(crate) fn add_pipe(&self, pipe: impl AsFd, source: Source) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::ET;
        Ok(epoll::add(&self.epoll, pipe, source.data(), flags)?)
    }

    pub(crate) fn remove(&self, what: impl AsFd) {
        // One that was not added needs no removal.
        let _ = epoll::delete(&self.epoll, what);
    }

    /// Sleeps until an event arrives or the deadline is reached, and adds the sources of at most 64
    /// events to `ready`. The deadline adds none: compare the clock.
    pub(crate) fn wait(&mut self, until: Nanos, ready: &mut Vec<Source>) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        match self.sleep(until, &mut events) {
            Ok(()) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        for event in events {
            match (Source::of(event.data), &mut self.alarm) {
                (Some(Source::Timer), Alarm::Timer { set_for, .. }) => *set_for = Nanos::MAX,
                (Some(source), _) => ready.push(source),
                (None, _) => {}
            }
        }
        Ok(())
    }

    /// Returns a source that is ready, each in turn, without sleeping. This set may be a source of
    /// another one.
    pub(crate) fn next_ready(&self) -> io::Result<Option<Source>> {
        let mut this = [PollFd::new(&self.epoll, PollFlags::IN)];
        if rustix::event::poll(&mut this, Some(&timespec(Nanos::ZERO)))? == 0 {
            return Ok(None);
        }
        let mut events = Vec::with_capacity(1);
        epoll::wait(&self.epoll, spare_capacity(&mut events), None)?;
        Ok(events.first().and_then(|event| Source::of(event.data)))
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
        // Edge-triggered: one event for each time that it is set, and it need not be read.
        epoll::add(&self.epoll, &timer, Source::Timer.data(), EventFlags::IN | EventFlags::ET)?;
        self.alarm = Alarm::Timer { timer, set_for: Nanos::MAX };
        Ok(())
    }
}

impl AsFd for Poll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn timespec(time: Nanos) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.0 / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(time.0 % 1_000_000_000).unwrap_or(0),
    }
}

/// Sets a timer, unless it is set for that time already.
fn set(timer: &OwnedFd, set_for: &mut Nanos, until: Nanos) -> rustix::io::Result<()> {
    if until != *set_for {
        let it_interval = timespec(Nanos::ZERO);
        // All zero would disarm it, so a time in the past stands in for zero.
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
        let mut ready = Vec::new();
        let start = Monotonic.now();
        poll.wait(start + Nanos::from_millis(3), &mut ready).unwrap();
        assert!(Monotonic.now() >= start + Nanos::from_millis(3));
        assert_eq!(ready, []);
        // A time in the past ends the sleep at once.
        poll.wait(Nanos(5), &mut ready).unwrap();
        let (reader, writer) = UnixStream::pair().unwrap();
        poll.add(&reader, Source::Doorbell(7)).unwrap();
        io::Write::write_all(&mut &writer, b"x").unwrap();
        poll.wait(Nanos::MAX, &mut ready).unwrap();
        assert_eq!(ready, [Source::Doorbell(7)]);
        poll.remove(&reader);
        ready.clear();
        poll.wait(Monotonic.now() + Nanos::from_millis(1), &mut ready).unwrap();
        assert_eq!(ready, []);
    }

    #[test]
    fn each_write_wakes_although_none_is_read() {
        let mut poll = Poll::new().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        poll.add_pipe(&reader, Source::Doorbell(7)).unwrap();
        for _ in 0..3 {
            let mut ready = Vec::new();
            rustix::io::write(&writer, b"x").unwrap();
            poll.wait(Nanos::MAX, &mut ready).unwrap();
            assert_eq!(ready, [Source::Doorbell(7)]);
            ready.clear();
            poll.wait(Nanos(5), &mut ready).unwrap();
            assert_eq!(ready, [], "once");
        }
    }

    #[test]
    fn sources_in_a_set_of_their_own_are_served_in_turn() {
        let users = Poll::new().unwrap();
        let pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        for (number, (reader, writer)) in (0..).zip(&pairs) {
            users.add(reader, Source::Connection(number)).unwrap();
            io::Write::write_all(&mut &*writer, b"x").unwrap();
        }
        let mut poll = Poll::new().unwrap();
        poll.add(&users, Source::Users).unwrap();
        let mut ready = Vec::new();
        poll.wait(Nanos::MAX, &mut ready).unwrap();
        assert_eq!(ready, [Source::Users]);
        ready.clear();
        // None is read, so each stays readable.
        let served = (0..6).map(|_| users.next_ready().unwrap().unwrap());
        let served: Vec<Source> = served.collect();
        assert_eq!(served, [0, 1, 2, 0, 1, 2].map(Source::Connection));
        drop(pairs);
        assert_eq!(users.next_ready().unwrap(), None);
    }

    #[test]
    fn source_survives_a_round_trip_through_event_data() {
        for source in [
            Source::Timer,
            Source::Signal(2),
            Source::Tree,
            Source::Listener(Door::All),
            Source::Listener(Door::Owner),
            Source::Connection(1 << 40),
            Source::Doorbell(3),
            Source::RegistrantExit(0),
            Source::ProcessExit(5),
            Source::Users,
            Source::Files,
            Source::Prober,
        ] {
            assert_eq!(Source::of(source.data()), Some(source));
        }
    }
}
