//! Model of the turn protocol in single loads and stores: two containers of one thread each, a
//! monitor, and the failures of all three.
//!
//! A step is one load, one store or one system call of one of the three, as in
//! `docs/internals/turns.md`. Which of them runs next is arbitrary. Time is not modelled: what a
//! timer decides may happen at once or never. Words that only count (the gate word, epochs) are
//! modelled by whether they have changed since they were read.

/// A change of the protocol; each must be detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    None,
    /// The monitor sleeps without a poll of the containers that it has just requested to notify.
    NoPollAfterRequest,
    /// A thread at its gate notifies first and reports why afterwards.
    NotifiesBeforeReport,
    /// The gate word is changed before the turn.
    GateBeforeTurn,
    /// A thread goes to sleep whether or not the gate word has changed.
    SleepsWithoutCheck,
    /// The container that gets the turn is not woken.
    NoWake,
    /// The monitor waits for a drain without a time limit.
    DrainWithoutEnd,
    /// A stale heartbeat is not noticed.
    StaleHeartbeatUnnoticed,
    /// A new monitor knows nothing of what the old one published, and publishes nothing.
    NoAdoption,
    /// A background tenant's new grant does not change the turn word, which is YOURS already.
    NoNewGrant,
    /// A background tenant is not requested to notify when its grant is used up.
    BackgroundGrantUnnotified,
    /// A background tenant that is back in the queue keeps its turn word.
    BackgroundStays,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Turn {
    Open,
    Yours,
    Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Thread {
    /// The program does something else.
    Idle,
    Launches,
    /// Slow path: about to read the gate word,
    ReadsGate,
    /// then the turn,
    ReadsTurn,
    /// then the gate word again.
    ReadsAgain,
    /// About to report that it launches under an open gate, or that it waits.
    Reports,
    /// About to check whether the monitor requested a notification.
    ChecksRequest,
    Notifies,
    /// About to sleep on the gate word.
    AboutToSleep,
    Sleeps,
    /// Its process has exited.
    Exited,
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
    pub(crate) thread: Thread,
    /// Whether the gate word is unchanged since the thread read it.
    fresh: bool,
    /// The turn that the thread read.
    read: Turn,
    /// Whether it launches on the fast path while the gate word is unchanged.
    on_fast_path: bool,
    /// Whether budget of the granted turn is left.
    has_budget: bool,
    /// Whether the grant is a background tenant's, beside the others' turns.
    runs_in_background: bool,
    /// Whether both words have the monitor's last decision, and it has not exited since.
    is_current: bool,
    /// Launches since both words say WAIT.
    pub(crate) late: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Monitor {
    Sleeps,
    /// It polls the marked containers.
    Polls,
    Decides,
    /// It stores the turn of the first container with an order,
    Turns,
    /// changes its gate word,
    ChangesGateWord,
    /// and wakes the thread that waits on it.
    Wakes,
    RequestsNotification,
    Exited,
}

/// What the monitor knows of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Seen {
    poll: bool,
    waiting: bool,
    active: bool,
    inflight: bool,
    exited: bool,
    order: Option<Turn>,
    /// The turn that this monitor published last; none: nothing yet.
    published: Option<Turn>,
}

/// The container that is modelled step by step.
const DETAILED: usize = 0;
/// The other container shares no word with it. What matters is that it launches, waits and has work
/// in flight. It passes its gate in one step, the monitor knows its state at once, and it does not
/// exit.
const OTHER: usize = 1;

impl Container {
    fn launch(&mut self) {
        (self.inflight, self.waiting, self.active) = (true, false, true);
        self.late = (self.late + u8::from(self.turn == Turn::Wait && self.is_current)).min(2);
        self.thread = Thread::Launches;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) containers: [Container; 2],
    seen: [Seen; 2],
    monitor: Monitor,
    /// The container that has the turn, for the monitor.
    holder: Option<usize>,
    /// Whether the first container is a background tenant, for the monitor.
    is_background: bool,
    closing: bool,
    contended: bool,
    /// Whether a monitor has exited. One exit, at any step, shows as much as many.
    succeeded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A program continues that is not stopped for ever.
    Fair,
    Launch(usize),
    /// A time limit has passed. No program may depend on it while all live.
    Late,
    /// A program exits, or starts.
    Failure,
    /// A program does something else, or begins to launch again; a kernel ends. No program may
    /// depend on it.
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
            on_fast_path: false,
            has_budget: false,
            runs_in_background: false,
            is_current: false,
            late: 0,
        };
        let seen = Seen {
            poll: false,
            waiting: false,
            active: false,
            inflight: false,
            exited: false,
            order: None,
            published: Some(Turn::Open),
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
        self.monitor != Monitor::Exited
    }

    pub(crate) fn next(&self, mutation: Mutation, out: &mut Vec<(Kind, Self)>) {
        self.detailed_steps(mutation, out);
        self.other_steps(mutation, out);
        self.monitor_steps(mutation, out);
        out.iter_mut().for_each(|(_, next)| next.forget());
    }

    /// Clears what no step will read again, so that states that differ in nothing else are one.
    fn forget(&mut self) {
        for one in &mut self.containers {
            one.on_fast_path &= one.fresh;
            match one.thread {
                Thread::Idle | Thread::Launches if one.on_fast_path => one.read = Turn::Open,
                Thread::Idle
                | Thread::Launches
                | Thread::ReadsGate
                | Thread::Sleeps
                | Thread::Exited => {
                    (one.read, one.fresh, one.on_fast_path) = (Turn::Open, false, false);
                }
                Thread::ReadsTurn => (one.read, one.on_fast_path) = (Turn::Open, false),
                _ => one.on_fast_path = false,
            }
            if one.thread == Thread::Exited {
                (one.has_budget, one.late) = (false, 0);
            }
        }
        let other = &mut self.containers[OTHER];
        (other.fresh, other.on_fast_path, other.doorbell, other.notify_requested) =
            (false, false, false, false);
        if self.monitor != Monitor::Exited {
            let active = other.active || other.waiting || other.inflight;
            let seen = &mut self.seen[OTHER];
            (seen.poll, seen.waiting, seen.active, seen.inflight) =
                (false, other.waiting, active, other.inflight);
        }
        if !matches!(self.monitor, Monitor::Polls | Monitor::Decides) {
            (self.seen[DETAILED].inflight, self.seen[DETAILED].exited) = (false, false);
        }
    }

    fn with(&self, container: usize, change: impl FnOnce(&mut Container)) -> Self {
        let mut next = *self;
        change(&mut next.containers[container]);
        next
    }

    fn detailed_steps(&self, mutation: Mutation, out: &mut Vec<(Kind, Self)>) {
        let (container, own) = (DETAILED, &self.containers[DETAILED]);
        if own.thread == Thread::Exited {
            return;
        }
        // Its queued work ends with it; its words stay.
        out.push((
            Kind::Failure,
            self.with(container, |one| (one.thread, one.inflight) = (Thread::Exited, false)),
        ));
        if own.inflight {
            // Or never: an endless kernel.
            out.push((Kind::Arbitrary, self.with(container, |one| one.inflight = false)));
        }
        match own.thread {
            Thread::Idle => {
                out.push((
                    Kind::Arbitrary,
                    self.with(container, |one| one.thread = Thread::Launches),
                ));
                // After silence it no longer counts as active.
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
                        (one.on_fast_path, one.fresh) = (true, true);
                        one.launch();
                    };
                    out.push((Kind::Launch(container), self.with(container, open)));
                }
            }
            _ => {}
        }
        out.extend(self.thread_step(container, mutation));
    }

    fn other_steps(&self, mutation: Mutation, out: &mut Vec<(Kind, Self)>) {
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
                if own.turn == Turn::Open || (own.turn == Turn::Yours && own.has_budget) {
                    step(Kind::Launch(OTHER), &|one| {
                        one.launch();
                        one.has_budget = false;
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

    /// Returns the next step of a thread that neither sleeps nor idles.
    fn thread_step(&self, container: usize, mutation: Mutation) -> Option<(Kind, Self)> {
        let own = &self.containers[container];
        let notifies_first = mutation == Mutation::NotifiesBeforeReport;
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
            Thread::Launches if own.on_fast_path && own.fresh => launch(&|_| {}),
            Thread::Launches => to(Thread::ReadsGate),
            Thread::ReadsGate => fair(&|one| (one.fresh, one.thread) = (true, Thread::ReadsTurn)),
            Thread::ReadsTurn => {
                fair(&|one| (one.read, one.thread) = (one.turn, Thread::ReadsAgain))
            }
            Thread::ReadsAgain if !own.fresh => to(Thread::ReadsGate),
            Thread::ReadsAgain => match own.read {
                Turn::Open if own.active => launch(&|one| one.on_fast_path = true),
                Turn::Yours if own.has_budget => launch(&|one| one.has_budget = false),
                _ if notifies_first && !own.waiting => to(Thread::ChecksRequest),
                _ => to(Thread::Reports),
            },
            Thread::Reports => fair(&|one| {
                // A thread that was waiting already does not notify again.
                let notifies = !one.waiting && !notifies_first;
                if one.read == Turn::Open {
                    one.active = true
                } else {
                    one.waiting = true
                }
                one.thread = if notifies { Thread::ChecksRequest } else { Thread::AboutToSleep };
            }),
            Thread::ChecksRequest if own.notify_requested => to(Thread::Notifies),
            Thread::ChecksRequest | Thread::Notifies => fair(&|one| {
                one.doorbell |= one.thread == Thread::Notifies;
                one.thread = if notifies_first { Thread::Reports } else { Thread::AboutToSleep };
            }),
            Thread::AboutToSleep if own.read == Turn::Open => to(Thread::ReadsGate),
            Thread::AboutToSleep if own.fresh || mutation == Mutation::SleepsWithoutCheck => {
                to(Thread::Sleeps)
            }
            Thread::AboutToSleep => to(Thread::ReadsGate),
            Thread::Idle | Thread::Sleeps | Thread::Exited => None,
        }
    }

    fn monitor_steps(&self, mutation: Mutation, out: &mut Vec<(Kind, Self)>) {
        if self.monitor == Monitor::Exited {
            let mut started = Self { monitor: Monitor::Polls, ..*self };
            started.forget_accounting();
            for (seen, one) in started.seen.iter_mut().zip(&mut started.containers) {
                // As if it had published the found words itself.
                let published = (mutation == Mutation::NoAdoption).then_some(one.turn);
                *seen = Seen { poll: true, published, ..*seen };
                one.doorbell = false;
            }
            out.push((Kind::Failure, started));
            return;
        }
        let mut exited = Self { monitor: Monitor::Exited, succeeded: true, ..*self };
        exited.seen = Self::initial().seen;
        exited.forget_accounting();
        // A container launches freely until the next monitor publishes something.
        exited.containers.iter_mut().for_each(|one| (one.is_current, one.late) = (false, 0));
        // The other mutations are detected without it.
        let matters = matches!(
            mutation,
            Mutation::None | Mutation::StaleHeartbeatUnnoticed | Mutation::NoAdoption
        );
        if matters && !self.succeeded {
            out.push((Kind::Failure, exited));
        }
        match self.monitor {
            Monitor::Sleeps => {
                if self.containers[DETAILED].doorbell {
                    let mut next = self.poll_next(DETAILED);
                    (
                        next.containers[DETAILED].doorbell,
                        next.containers[DETAILED].notify_requested,
                    ) = (false, false);
                    out.push((Kind::Fair, next));
                }
                // By its own timer, and by the other container: it polls the holder, and a
                // container that launches freely.
                let on_fast_path =
                    self.containers[DETAILED].turn == Turn::Open && self.seen[DETAILED].active;
                out.push((
                    Kind::Fair,
                    if on_fast_path { self.poll_next(DETAILED) } else { self.poll_next(OTHER) },
                ));
            }
            Monitor::Polls => out.push((Kind::Fair, self.poll())),
            Monitor::Decides => self.decide(mutation, out),
            Monitor::Turns | Monitor::ChangesGateWord | Monitor::Wakes => {
                out.push((Kind::Fair, self.write(mutation)))
            }
            Monitor::RequestsNotification => {
                let mut next = Self { monitor: Monitor::Sleeps, ..*self };
                let (one, seen) = (&mut next.containers[DETAILED], &mut next.seen[DETAILED]);
                let is_background =
                    self.is_background && mutation != Mutation::BackgroundGrantUnnotified;
                let held = one.turn == Turn::Wait || (one.turn == Turn::Yours && is_background);
                let wanted = one.turn == Turn::Open || (held && !seen.waiting);
                if wanted && !one.notify_requested && mutation != Mutation::NoPollAfterRequest {
                    // A thread that came to its gate before the request did not notify.
                    (seen.poll, next.monitor) = (true, Monitor::Polls);
                }
                one.notify_requested = wanted;
                out.push((Kind::Fair, next));
            }
            Monitor::Exited => {}
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

    /// Reads the cells of the marked containers.
    fn poll(&self) -> Self {
        let mut next = Self { monitor: Monitor::Decides, ..*self };
        let (one, seen) = (&self.containers[DETAILED], &mut next.seen[DETAILED]);
        if seen.poll {
            seen.poll = false;
            seen.exited = one.thread == Thread::Exited;
            seen.waiting = one.waiting && !seen.exited;
            seen.active = (one.active || one.waiting) && !seen.exited;
            seen.inflight = one.inflight;
        }
        next
    }

    fn decide(&self, mutation: Mutation, out: &mut Vec<(Kind, Self)>) {
        let mut next = Self { monitor: Monitor::Turns, ..*self };
        let active = self.seen.map(|seen| seen.active);
        if active != [true; 2] && !(next.contended && self.seen.iter().any(|seen| seen.waiting)) {
            // An active container launches freely, a silent one must wait; if none is active, all
            // launch freely.
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
        if seen.exited {
            return next.pass_on(Some(holder), out);
        }
        if next.closing {
            if !seen.inflight {
                return next.pass_on(Some(holder), out);
            }
            // The drain may have timed out, or not.
            if mutation != Mutation::DrainWithoutEnd {
                next.pass_on(Some(holder), out);
            }
            out.push((Kind::Fair, next));
            return;
        }
        // Its turn has ended, or it was silent for too long.
        let mut closing = next;
        closing.closing = true;
        closing.order(holder, Turn::Wait);
        out.push((Kind::Fair, closing));
        out.push((Kind::Fair, next));
    }

    /// A waiting container may become a background tenant. A background tenant gets a new grant, or
    /// returns to the queue.
    fn update_background(&self, mutation: Mutation, out: &mut Vec<(Kind, Self)>) {
        let seen = &self.seen[DETAILED];
        let mut next = *self;
        if self.is_background {
            next.is_background = false;
            if mutation != Mutation::BackgroundStays {
                next.order(DETAILED, Turn::Wait);
            }
            // No program may depend on it: a waiting one always gets a new grant.
            out.push((Kind::Arbitrary, next));
            next = *self;
        }
        // For the monitor its gate says YOURS already.
        let eligible = self.is_background || self.holder == Some(OTHER);
        if seen.waiting && !seen.exited && eligible {
            let again = !(self.is_background && mutation == Mutation::NoNewGrant);
            next.is_background = true;
            next.seen[DETAILED].order = again.then_some(Turn::Yours);
            out.push((Kind::Fair, next));
        }
    }

    fn forget_accounting(&mut self) {
        (self.holder, self.is_background, self.closing, self.contended) =
            (None, false, false, false);
    }

    /// Passes the turn to a waiting container. `from` has had it, and is the last choice.
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
            let mut passed = next;
            passed.holder = Some(successor);
            passed.seen[successor].order = Some(Turn::Yours);
            out.push((Kind::Fair, passed));
        }
    }

    fn in_queue(&self, container: usize) -> bool {
        container == OTHER || !self.is_background
    }

    fn order(&mut self, container: usize, turn: Turn) {
        self.seen[container].order = (self.seen[container].published != Some(turn)).then_some(turn);
    }

    /// Carries out the next part of the first order: turn, gate word, wake.
    fn write(&self, mutation: Mutation) -> Self {
        let mut next = *self;
        // Revocations come before grants.
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
        let runs_in_background = container == DETAILED && self.is_background && turn == Turn::Yours;
        let store = |one: &mut Container| {
            (one.turn, one.runs_in_background) = (turn, runs_in_background);
            one.has_budget = turn == Turn::Yours;
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
            (seen.order, seen.published, next.monitor) = (None, Some(turn), Monitor::Turns);
            return next;
        }
        next.monitor = match self.monitor {
            Monitor::Turns => {
                (one.is_current, one.late) = (false, 0);
                if mutation == Mutation::GateBeforeTurn {
                    bump(one)
                } else {
                    store(one)
                }
                Monitor::ChangesGateWord
            }
            Monitor::ChangesGateWord => {
                one.is_current = true;
                if mutation == Mutation::GateBeforeTurn {
                    store(one)
                } else {
                    bump(one)
                }
                Monitor::Wakes
            }
            _ => {
                // One step after the change, so a thread that went to sleep before is asleep by
                // now.
                if mutation != Mutation::NoWake {
                    wake(one);
                }
                (seen.order, seen.published) = (None, Some(turn));
                Monitor::Turns
            }
        };
        next
    }

    /// Checks the invariants; returns the violated one.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let yours = self
            .containers
            .iter()
            .filter(|one| one.turn == Turn::Yours && !one.runs_in_background)
            .count();
        if yours > 1 {
            return Some("two containers have the turn");
        }
        // One launch may have been between reading and launching.
        if self.containers.iter().any(|one| one.late > 1) {
            return Some("a container launches after its turn");
        }
        let detailed = &self.containers[DETAILED];
        if self.monitor == Monitor::Sleeps
            && detailed.runs_in_background
            && detailed.turn == Turn::Yours
            && !self.is_background
        {
            return Some("a container launches beside the others, but is not a background tenant");
        }
        None
    }
}
