//! Model of the turn protocol in single loads and stores: two containers of one thread each, a
//! monitor, and the failures of all three.
//!
//! A step is one load, one store or one system call of one of the three, as `docs/internals/turns.md` has
//! them. Which of them runs next is arbitrary.
//! Time is not modelled: what a timer decides may happen at once or never. Words that only count (the gate word, epochs) are modelled by
//! what is asked of them: whether they have changed since they were read.

/// What differs from the protocol as it is; each of these must be detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// The protocol as it is.
    None,
    /// The monitor sleeps without a poll of the containers that it has just asked to notify.
    NoPollAfterRequest,
    /// A thread at its gate notifies first and reports why afterwards.
    NotifiesBeforeReport,
    /// The gate word is changed before the turn.
    GateBeforeTurn,
    /// A thread goes to sleep whether or not the gate word has changed.
    SleepsWithoutCheck,
    /// The container that gets the turn is not woken.
    NoWake,
    /// A drain is waited for, however long it takes.
    DrainWithoutEnd,
    /// A stale heartbeat is not noticed.
    StaleHeartbeatUnnoticed,
    /// A new monitor knows nothing of what the old one published, and publishes nothing.
    NoAdoption,
    /// A background tenant's new grant is the old word: it is YOURS already.
    NoNewGrant,
    /// A background tenant is not asked to notify when its grant is used up.
    BackgroundGrantUnnotified,
    /// A background tenant that is back in the queue is not told.
    BackgroundStays,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Turn {
    Open,
    Yours,
    Wait,
}

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Thread {
    /// The program does something else.
    Idle,
    /// It is about to launch.
    Launches,
    /// In the slow path: the gate word is to be read,
    ReadsGate,
    /// then the turn,
    ReadsTurn,
    /// then the gate word again.
    ReadsAgain,
    /// It reports that it launches under an open gate, or that it waits.
    Reports,
    /// It checks whether the monitor requested a notification.
    ChecksRequest,
    Notifies,
    /// About to sleep on the gate word.
    AboutToSleep,
    Sleeps,
    /// Not any more.
    Dead,
}

/// A container: its two pages and its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Container {
    // Written by the monitor.
    pub(crate) turn: Turn,
    pub(crate) notify_requested: bool,
    // Written by the container.
    pub(crate) waiting: bool,
    pub(crate) active: bool,
    pub(crate) inflight: bool,
    pub(crate) doorbell: bool,
    // The thread's own.
    pub(crate) thread: Thread,
    /// The gate word has not changed since the thread read it.
    fresh: bool,
    /// What the thread read of the turn.
    read: Turn,
    /// It launches without asking, as long as the gate word is what it was.
    free: bool,
    /// Something is left of the turn that was granted.
    left: bool,
    /// What was granted is a background tenant's: beside the others' turns.
    runs_in_background: bool,
    /// Both words say what the monitor last said, and it has not died since.
    told: bool,
    /// Launches since both say that it is somebody else's turn.
    pub(crate) late: u8,
}

/// What the monitor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Monitor {
    Sleeps,
    /// It polls this one, and then those marked.
    Polls,
    Decides,
    /// It stores the turn of the first that has an order,
    Turns,
    /// changes its gate word,
    ChangesGateWord,
    /// and wakes who waits there.
    Wakes,
    RequestsNotification,
    Dead,
}

/// What the monitor knows of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Seen {
    poll: bool,
    waiting: bool,
    active: bool,
    inflight: bool,
    dead: bool,
    order: Option<Turn>,
    /// What this monitor has last said; none: nothing yet.
    said: Option<Turn>,
}

/// The container that is modelled step by step.
const CLOSE: usize = 0;
/// The other one shares no word with it: what matters is that another container launches, waits and
/// has work in flight. It passes its gate in one step, the monitor knows its state at once, and it
/// does not exit.
const OTHER: usize = 1;

impl Container {
    fn launch(&mut self) {
        (self.inflight, self.waiting, self.active) = (true, false, true);
        self.late = (self.late + u8::from(self.turn == Turn::Wait && self.told)).min(2);
        self.thread = Thread::Launches;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) containers: [Container; 2],
    seen: [Seen; 2],
    monitor: Monitor,
    /// The container that has the turn, as the monitor knows.
    holder: Option<usize>,
    /// The first container is a background tenant, as the monitor knows.
    is_background: bool,
    closing: bool,
    contended: bool,
    /// A monitor has died. One death, at any step, shows as much as many.
    succeeded: bool,
}

/// What kind of step it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A program that is not stopped for ever goes on.
    Fair,
    /// The container launches.
    Launch(usize),
    /// A time limit has passed: no program may depend on it while all live.
    Late,
    /// A program exits, or starts.
    Failure,
    /// A program does something else, or begins to launch again; a kernel ends. No program may depend
    /// on it.
    Arbitrary,
}

impl State {
    pub(crate) fn initial() -> Self {
        let container = Container {
            turn: Turn::Open,
            notify_requested: true,
            waiting: false,
            active: false,
            inflight: false,
            doorbell: false,
            thread: Thread::Idle,
            fresh: false,
            read: Turn::Open,
            free: false,
            left: false,
            runs_in_background: false,
            told: false,
            late: 0,
        };
        let seen = Seen {
            poll: false,
            waiting: false,
            active: false,
            inflight: false,
            dead: false,
            order: None,
            said: Some(Turn::Open),
        };
        Self {
            containers: [container; 2],
            seen: [seen; 2],
            monitor: Monitor::Sleeps,
            holder: None,
            is_background: false,
            closing: false,
            contended: false,
            succeeded: false,
        }
    }

    pub(crate) fn monitor_lives(&self) -> bool {
        self.monitor != Monitor::Dead
    }

    /// Every state that may be next.
    pub(crate) fn next(&self, mutation: Mutation, out: &mut Vec<(Kind, Self)>) {
        self.steps_from_close_by(mutation, out);
        self.steps_of_the_other(mutation, out);
        self.monitor_steps(mutation, out);
        out.iter_mut().for_each(|(_, next)| next.forget());
    }

    /// Forgets what nobody will look at again, so that states which differ in nothing else are one.
    fn forget(&mut self) {
        for one in &mut self.containers {
            one.free &= one.fresh;
            match one.thread {
                Thread::Idle | Thread::Launches if one.free => one.read = Turn::Open,
                Thread::Idle
                | Thread::Launches
                | Thread::ReadsGate
                | Thread::Sleeps
                | Thread::Dead => {
                    (one.read, one.fresh, one.free) = (Turn::Open, false, false);
                }
                Thread::ReadsTurn => (one.read, one.free) = (Turn::Open, false),
                _ => one.free = false,
            }
            if one.thread == Thread::Dead {
                (one.left, one.late) = (false, 0);
            }
        }
        let other = &mut self.containers[OTHER];
        (other.fresh, other.free, other.doorbell, other.notify_requested) =
            (false, false, false, false);
        if self.monitor != Monitor::Dead {
            let active = other.active || other.waiting || other.inflight;
            let seen = &mut self.seen[OTHER];
            (seen.poll, seen.waiting, seen.active, seen.inflight) =
                (false, other.waiting, active, other.inflight);
        }
        if !matches!(self.monitor, Monitor::Polls | Monitor::Decides) {
            (self.seen[CLOSE].inflight, self.seen[CLOSE].dead) = (false, false);
        }
    }

    fn with(&self, container: usize, change: impl FnOnce(&mut Container)) -> Self {
        let mut next = *self;
        change(&mut next.containers[container]);
        next
    }

    fn steps_from_close_by(&self, mutation: Mutation, out: &mut Vec<(Kind, Self)>) {
        let (container, own) = (CLOSE, &self.containers[CLOSE]);
        if own.thread == Thread::Dead {
            return;
        }
        // What it had queued goes with it; its words stay as they are.
        out.push((
            Kind::Failure,
            self.with(container, |one| (one.thread, one.inflight) = (Thread::Dead, false)),
        ));
        if own.inflight {
            // Or never: a kernel without end.
            out.push((Kind::Arbitrary, self.with(container, |one| one.inflight = false)));
        }
        match own.thread {
            Thread::Idle => {
                out.push((
                    Kind::Arbitrary,
                    self.with(container, |one| one.thread = Thread::Launches),
                ));
                // Silence: the monitor forgets that it was active.
                if own.active && !own.inflight {
                    out.push((Kind::Fair, self.with(container, |one| one.active = false)));
                }
            }
            Thread::Launches => {
                out.push((Kind::Arbitrary, self.with(container, |one| one.thread = Thread::Idle)))
            }
            Thread::Sleeps => {
                out.push((Kind::Late, self.with(container, |one| one.thread = Thread::ReadsGate)));
                if !self.monitor_lives() && mutation != Mutation::StaleHeartbeatUnnoticed {
                    let open = |one: &mut Container| {
                        (one.free, one.fresh) = (true, true);
                        one.launch();
                    };
                    out.push((Kind::Launch(container), self.with(container, open)));
                }
            }
            _ => {}
        }
        out.extend(self.goes_on(container, mutation));
    }

    fn steps_of_the_other(&self, mutation: Mutation, out: &mut Vec<(Kind, Self)>) {
        let own = &self.containers[OTHER];
        let mut step = |kind, change: &dyn Fn(&mut Container)| {
            out.push((kind, self.with(OTHER, |one| change(one))));
        };
        if own.inflight {
            step(Kind::Arbitrary, &|one| one.inflight = false);
        }
        match own.thread {
            Thread::Idle => {
                step(Kind::Arbitrary, &|one| (one.thread, one.active) = (Thread::Launches, true))
            }
            Thread::Launches => {
                step(Kind::Arbitrary, &|one| (one.thread, one.active) = (Thread::Idle, false));
                if own.turn == Turn::Open || (own.turn == Turn::Yours && own.left) {
                    step(Kind::Launch(OTHER), &|one| {
                        one.launch();
                        one.left = false;
                    });
                } else {
                    step(Kind::Fair, &|one| (one.waiting, one.thread) = (true, Thread::Sleeps));
                }
            }
            _ if !self.monitor_lives() && mutation != Mutation::StaleHeartbeatUnnoticed => {
                step(Kind::Launch(OTHER), &Container::launch);
            }
            _ => {}
        }
    }

    /// The next step of a thread that neither sleeps nor idles.
    fn goes_on(&self, container: usize, mutation: Mutation) -> Option<(Kind, Self)> {
        let own = &self.containers[container];
        let rings_first = mutation == Mutation::NotifiesBeforeReport;
        let to = |thread| Some((Kind::Fair, self.with(container, |one| one.thread = thread)));
        let fair = |change: &dyn Fn(&mut Container)| {
            Some((Kind::Fair, self.with(container, |one| change(one))))
        };
        let launch = |change: &dyn Fn(&mut Container)| {
            let launched = |one: &mut Container| {
                change(one);
                one.launch();
            };
            Some((Kind::Launch(container), self.with(container, launched)))
        };
        match own.thread {
            Thread::Launches if own.free && own.fresh => launch(&|_| {}),
            Thread::Launches => to(Thread::ReadsGate),
            Thread::ReadsGate => fair(&|one| (one.fresh, one.thread) = (true, Thread::ReadsTurn)),
            Thread::ReadsTurn => {
                fair(&|one| (one.read, one.thread) = (one.turn, Thread::ReadsAgain))
            }
            Thread::ReadsAgain if !own.fresh => to(Thread::ReadsGate),
            Thread::ReadsAgain => match own.read {
                Turn::Open if own.active => launch(&|one| one.free = true),
                Turn::Yours if own.left => launch(&|one| one.left = false),
                _ if rings_first && !own.waiting => to(Thread::ChecksRequest),
                _ => to(Thread::Reports),
            },
            Thread::Reports => fair(&|one| {
                // Who was held already when it came by last does not ring again.
                let rings = !one.waiting && !rings_first;
                if one.read == Turn::Open {
                    one.active = true
                } else {
                    one.waiting = true
                }
                one.thread = if rings { Thread::ChecksRequest } else { Thread::AboutToSleep };
            }),
            Thread::ChecksRequest if own.notify_requested => to(Thread::Notifies),
            Thread::ChecksRequest | Thread::Notifies => fair(&|one| {
                one.doorbell |= one.thread == Thread::Notifies;
                one.thread = if rings_first { Thread::Reports } else { Thread::AboutToSleep };
            }),
            Thread::AboutToSleep if own.read == Turn::Open => to(Thread::ReadsGate),
            Thread::AboutToSleep if own.fresh || mutation == Mutation::SleepsWithoutCheck => {
                to(Thread::Sleeps)
            }
            Thread::AboutToSleep => to(Thread::ReadsGate),
            Thread::Idle | Thread::Sleeps | Thread::Dead => None,
        }
    }

    fn monitor_steps(&self, mutation: Mutation, out: &mut Vec<(Kind, Self)>) {
        if self.monitor == Monitor::Dead {
            let mut born = Self { monitor: Monitor::Polls, ..*self };
            born.forget_accounting();
            for (seen, one) in born.seen.iter_mut().zip(&mut born.containers) {
                // As if it had said itself what it finds.
                let said = (mutation == Mutation::NoAdoption).then_some(one.turn);
                *seen = Seen { poll: true, said, ..*seen };
                one.doorbell = false;
            }
            out.push((Kind::Failure, born));
            return;
        }
        let mut dead = Self { monitor: Monitor::Dead, succeeded: true, ..*self };
        dead.seen = Self::initial().seen;
        dead.forget_accounting();
        // Whose gate has opened since launches on until the next monitor says something.
        dead.containers.iter_mut().for_each(|one| (one.told, one.late) = (false, 0));
        // What is wrong about the others shows without it.
        let matters = matches!(
            mutation,
            Mutation::None | Mutation::StaleHeartbeatUnnoticed | Mutation::NoAdoption
        );
        if matters && !self.succeeded {
            out.push((Kind::Failure, dead));
        }
        match self.monitor {
            Monitor::Sleeps => {
                if self.containers[CLOSE].doorbell {
                    let mut next = self.poll_next(CLOSE);
                    (next.containers[CLOSE].doorbell, next.containers[CLOSE].notify_requested) =
                        (false, false);
                    out.push((Kind::Fair, next));
                }
                // Its own timer, and what the other one does: it looks at whose turn it is, and at who launches freely.
                let free = self.containers[CLOSE].turn == Turn::Open && self.seen[CLOSE].active;
                out.push((
                    Kind::Fair,
                    if free { self.poll_next(CLOSE) } else { self.poll_next(OTHER) },
                ));
            }
            Monitor::Polls => out.push((Kind::Fair, self.poll())),
            Monitor::Decides => self.decide(mutation, out),
            Monitor::Turns | Monitor::ChangesGateWord | Monitor::Wakes => {
                out.push((Kind::Fair, self.write(mutation)))
            }
            Monitor::RequestsNotification => {
                let mut next = Self { monitor: Monitor::Sleeps, ..*self };
                let (one, seen) = (&mut next.containers[CLOSE], &mut next.seen[CLOSE]);
                let is_background =
                    self.is_background && mutation != Mutation::BackgroundGrantUnnotified;
                let held = one.turn == Turn::Wait || (one.turn == Turn::Yours && is_background);
                let wanted = one.turn == Turn::Open || (held && !seen.waiting);
                if wanted && !one.notify_requested && mutation != Mutation::NoPollAfterRequest {
                    // Who came to its gate before it was armed did not ring.
                    (seen.poll, next.monitor) = (true, Monitor::Polls);
                }
                one.notify_requested = wanted;
                out.push((Kind::Fair, next));
            }
            Monitor::Dead => {}
        }
    }

    fn poll_next(&self, container: usize) -> Self {
        let mut next = Self { monitor: Monitor::Polls, ..*self };
        next.seen[container].poll = true;
        if let Some(holder) = self.holder {
            next.seen[holder].poll = true;
        }
        next
    }

    /// Reads the cells of whom it has to look at.
    fn poll(&self) -> Self {
        let mut next = Self { monitor: Monitor::Decides, ..*self };
        let (one, seen) = (&self.containers[CLOSE], &mut next.seen[CLOSE]);
        if seen.poll {
            seen.poll = false;
            seen.dead = one.thread == Thread::Dead;
            seen.waiting = one.waiting && !seen.dead;
            seen.active = (one.active || one.waiting) && !seen.dead;
            seen.inflight = one.inflight;
        }
        next
    }

    fn decide(&self, mutation: Mutation, out: &mut Vec<(Kind, Self)>) {
        let mut next = Self { monitor: Monitor::Turns, ..*self };
        let active = self.seen.map(|seen| seen.active);
        if active != [true; 2] && !(next.contended && self.seen.iter().any(|seen| seen.waiting)) {
            // Who is active launches freely, who is silent asks first; nobody: all freely.
            next.forget_accounting();
            for container in 0..2 {
                let turn =
                    if active[container] || active == [false; 2] { Turn::Open } else { Turn::Wait };
                next.order(container, turn);
            }
            out.push((Kind::Fair, next));
            return;
        }
        next.contended = true;
        next.update_background(mutation, out);
        let Some(holder) = next.holder else { return next.pass_on(None, out) };
        let seen = &self.seen[holder];
        if seen.dead {
            return next.pass_on(Some(holder), out);
        }
        if next.closing {
            if !seen.inflight {
                return next.pass_on(Some(holder), out);
            }
            // The drain has taken too long, or has not yet.
            if mutation != Mutation::DrainWithoutEnd {
                next.pass_on(Some(holder), out);
            }
            out.push((Kind::Fair, next));
            return;
        }
        // Its time is up, or it was silent for too long.
        let mut closes = next;
        closes.closing = true;
        closes.order(holder, Turn::Wait);
        out.push((Kind::Fair, closes));
        out.push((Kind::Fair, next));
    }

    /// Whoever waits may become a guest instead; a guest has a new grant, or is back in line.
    fn update_background(&self, mutation: Mutation, out: &mut Vec<(Kind, Self)>) {
        let seen = &self.seen[CLOSE];
        let mut next = *self;
        if self.is_background {
            next.is_background = false;
            if mutation != Mutation::BackgroundStays {
                next.order(CLOSE, Turn::Wait);
            }
            // Nobody may depend on it: a new grant is what whoever waits has coming.
            out.push((Kind::Arbitrary, next));
            next = *self;
        }
        // By the books alone its gate says YOURS already.
        let invited = self.is_background || self.holder == Some(OTHER);
        if seen.waiting && !seen.dead && invited {
            let again = !(self.is_background && mutation == Mutation::NoNewGrant);
            next.is_background = true;
            next.seen[CLOSE].order = again.then_some(Turn::Yours);
            out.push((Kind::Fair, next));
        }
    }

    fn forget_accounting(&mut self) {
        (self.holder, self.is_background, self.closing, self.contended) =
            (None, false, false, false);
    }

    /// Gives the turn to somebody who waits; `from` has had it, and is the last choice.
    fn pass_on(self, from: Option<usize>, out: &mut Vec<(Kind, Self)>) {
        let mut successors: Vec<usize> = (0..2)
            .filter(|container| {
                self.in_queue(*container)
                    && self.seen[*container].waiting
                    && Some(*container) != from
            })
            .collect();
        if successors.is_empty() {
            successors.extend(from.filter(|container| self.seen[*container].waiting));
        }
        let mut next = self;
        (next.holder, next.closing) = (None, false);
        for container in (0..2).filter(|container| self.in_queue(*container)) {
            next.order(container, Turn::Wait);
        }
        if successors.is_empty() {
            out.push((Kind::Fair, next));
        }
        for successor in successors {
            let mut given = next;
            given.holder = Some(successor);
            given.seen[successor].order = Some(Turn::Yours);
            out.push((Kind::Fair, given));
        }
    }

    fn in_queue(&self, container: usize) -> bool {
        container == OTHER || !self.is_background
    }

    fn order(&mut self, container: usize, turn: Turn) {
        self.seen[container].order = (self.seen[container].said != Some(turn)).then_some(turn);
    }

    /// Carries out the next piece of the first order: turn, gate word, wake.
    fn write(&self, mutation: Mutation) -> Self {
        let mut next = *self;
        // What takes the GPU away comes before what gives it.
        let revokes = |seen: &Seen| seen.order == Some(Turn::Wait);
        let first = self.seen.iter().position(revokes);
        let Some(container) =
            first.or_else(|| self.seen.iter().position(|seen| seen.order.is_some()))
        else {
            next.monitor = Monitor::RequestsNotification;
            return next;
        };
        let (one, seen) = (&mut next.containers[container], &mut next.seen[container]);
        let Some(turn) = seen.order else { return next };
        let runs_in_background = container == CLOSE && self.is_background && turn == Turn::Yours;
        let store = |one: &mut Container| {
            (one.turn, one.runs_in_background) = (turn, runs_in_background);
            one.left = turn == Turn::Yours;
        };
        let bump = |one: &mut Container| one.fresh = false;
        let wake = |one: &mut Container| {
            if turn != Turn::Wait && one.thread == Thread::Sleeps {
                one.thread = Thread::ReadsGate;
            }
        };
        if container == OTHER {
            store(one);
            if turn != Turn::Wait && one.thread == Thread::Sleeps {
                (one.thread, one.waiting) = (Thread::Launches, false);
            }
            (seen.order, seen.said, next.monitor) = (None, Some(turn), Monitor::Turns);
            return next;
        }
        next.monitor = match self.monitor {
            Monitor::Turns => {
                (one.told, one.late) = (false, 0);
                if mutation == Mutation::GateBeforeTurn {
                    bump(one)
                } else {
                    store(one)
                }
                Monitor::ChangesGateWord
            }
            Monitor::ChangesGateWord => {
                one.told = true;
                if mutation == Mutation::GateBeforeTurn {
                    store(one)
                } else {
                    bump(one)
                }
                Monitor::Wakes
            }
            _ => {
                // A step later than the change: whoever went to sleep before is asleep by now.
                if mutation != Mutation::NoWake {
                    wake(one);
                }
                (seen.order, seen.said) = (None, Some(turn));
                Monitor::Turns
            }
        };
        next
    }

    /// What must hold in every state; else why it does not.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let yours = self
            .containers
            .iter()
            .filter(|one| one.turn == Turn::Yours && !one.runs_in_background)
            .count();
        if yours > 1 {
            return Some("two containers are told that the turn is theirs");
        }
        // One launch may have been between reading and launching.
        if self.containers.iter().any(|one| one.late > 1) {
            return Some("a container launches on though its turn is over");
        }
        let close = &self.containers[CLOSE];
        if self.monitor == Monitor::Sleeps
            && close.runs_in_background
            && close.turn == Turn::Yours
            && !self.is_background
        {
            return Some("a container launches beside the others though it is no guest");
        }
        None
    }
}
