//! The turn protocol as a machine of single loads and stores: two containers of one thread each, a monitor, and what can befall them.
//!
//! A step is one load, one store or one system call of one of the three, as `docs/turns.md` has them; whoever runs next is anybody's guess.
//! Time is not modelled: what a timer decides may happen at once or never. Words that only count (the gate word, epochs) are modelled by
//! what is asked of them: whether they have changed since they were read.

/// What differs from the protocol as it is; each of these must be found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// The protocol as it is.
    None,
    /// The monitor sleeps without a look at those whose bell it has just asked for.
    NoLookAfterArming,
    /// Whoever comes to its gate rings first and says why afterwards.
    RingsBeforeItSays,
    /// The gate word is changed before the turn.
    GateBeforeTurn,
    /// A thread goes to sleep whether or not the gate word has changed.
    SleepsUnasked,
    /// Whose turn it is, is not woken.
    NoWake,
    /// A drain is waited for, however long it takes.
    DrainWithoutEnd,
    /// A heart that stands still is not noticed.
    StalenessUnnoticed,
    /// A new monitor knows nothing of what the old one said, and says nothing.
    NoAdoption,
    /// A guest's new grant is the old word: it is YOURS already.
    NoNewGrant,
    /// A guest is not asked to ring when its grant is used up.
    GuestUnheard,
    /// A guest that is back in line is not told.
    GuestStays,
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
    /// It says that it launches under an open gate, or that it waits.
    Says,
    /// It looks whether the monitor wants to know.
    Asks,
    Rings,
    /// About to sleep on the gate word.
    Dozes,
    Sleeps,
    /// Not any more.
    Dead,
}

/// A container: its two pages and its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Container {
    // Written by the monitor.
    pub(crate) turn: Turn,
    pub(crate) armed: bool,
    // Written by the container.
    pub(crate) waiting: bool,
    pub(crate) active: bool,
    pub(crate) inflight: bool,
    pub(crate) bell: bool,
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
    /// What was granted is a guest's: beside the others' turns.
    visits: bool,
    /// Both words say what the monitor last said, and it has not died since.
    told: bool,
    /// Launches since both say that it is somebody else's turn.
    pub(crate) late: u8,
}

/// What the monitor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Monitor {
    Sleeps,
    /// It looks at this one, and then at those marked.
    Looks,
    Decides,
    /// It stores the turn of the first that has an order,
    Turns,
    /// changes its gate word,
    Bumps,
    /// and wakes who waits there.
    Wakes,
    Arms,
    Dead,
}

/// What the monitor knows of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Seen {
    look: bool,
    waiting: bool,
    active: bool,
    inflight: bool,
    dead: bool,
    order: Option<Turn>,
    /// What this monitor has last said; none: nothing yet.
    said: Option<Turn>,
}

/// The container that is seen from close by.
const CLOSE: usize = 0;
/// The other one shares no word with it: what matters is that there is somebody who launches, waits, and has work in flight. It visits its
/// gate in one step, the monitor knows all about it at once, and it does not die.
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
    /// Whose turn it is by the monitor's books.
    holder: Option<usize>,
    /// The container that is seen from close by is a guest, by the monitor's books.
    guest: bool,
    closing: bool,
    contended: bool,
    /// A monitor has died. One of its deaths, at any step, says as much as many.
    succeeded: bool,
}

/// What kind of step it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Somebody goes on; what is not stopped for ever does.
    Fair,
    /// The container launches.
    Launch(usize),
    /// A time limit has passed for want of something better: nobody may depend on it while all live.
    Late,
    /// Somebody dies, or is born.
    Fate,
    /// A program does something else, or begins to launch again; a kernel ends. Nobody may depend on it.
    Whim,
}

impl State {
    pub(crate) fn initial() -> Self {
        let container = Container {
            turn: Turn::Open,
            armed: true,
            waiting: false,
            active: false,
            inflight: false,
            bell: false,
            thread: Thread::Idle,
            fresh: false,
            read: Turn::Open,
            free: false,
            left: false,
            visits: false,
            told: false,
            late: 0,
        };
        let seen = Seen {
            look: false,
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
            guest: false,
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
                Thread::Idle | Thread::Launches | Thread::ReadsGate | Thread::Sleeps | Thread::Dead => {
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
        (other.fresh, other.free, other.bell, other.armed) = (false, false, false, false);
        if self.monitor != Monitor::Dead {
            let active = other.active || other.waiting || other.inflight;
            let seen = &mut self.seen[OTHER];
            (seen.look, seen.waiting, seen.active, seen.inflight) =
                (false, other.waiting, active, other.inflight);
        }
        if !matches!(self.monitor, Monitor::Looks | Monitor::Decides) {
            (self.seen[CLOSE].inflight, self.seen[CLOSE].dead) = (false, false);
        }
    }

    fn with(&self, who: usize, change: impl FnOnce(&mut Container)) -> Self {
        let mut next = *self;
        change(&mut next.containers[who]);
        next
    }

    fn steps_from_close_by(&self, mutation: Mutation, out: &mut Vec<(Kind, Self)>) {
        let (who, own) = (CLOSE, &self.containers[CLOSE]);
        if own.thread == Thread::Dead {
            return;
        }
        // What it had queued goes with it; its words stay as they are.
        out.push((Kind::Fate, self.with(who, |one| (one.thread, one.inflight) = (Thread::Dead, false))));
        if own.inflight {
            // Or never: a kernel without end.
            out.push((Kind::Whim, self.with(who, |one| one.inflight = false)));
        }
        match own.thread {
            Thread::Idle => {
                out.push((Kind::Whim, self.with(who, |one| one.thread = Thread::Launches)));
                // Silence: the monitor forgets that it was active.
                if own.active && !own.inflight {
                    out.push((Kind::Fair, self.with(who, |one| one.active = false)));
                }
            }
            Thread::Launches => out.push((Kind::Whim, self.with(who, |one| one.thread = Thread::Idle))),
            Thread::Sleeps => {
                out.push((Kind::Late, self.with(who, |one| one.thread = Thread::ReadsGate)));
                if !self.monitor_lives() && mutation != Mutation::StalenessUnnoticed {
                    let open = |one: &mut Container| {
                        (one.free, one.fresh) = (true, true);
                        one.launch();
                    };
                    out.push((Kind::Launch(who), self.with(who, open)));
                }
            }
            _ => {}
        }
        out.extend(self.goes_on(who, mutation));
    }

    fn steps_of_the_other(&self, mutation: Mutation, out: &mut Vec<(Kind, Self)>) {
        let own = &self.containers[OTHER];
        let mut step = |kind, change: &dyn Fn(&mut Container)| {
            out.push((kind, self.with(OTHER, |one| change(one))));
        };
        if own.inflight {
            step(Kind::Whim, &|one| one.inflight = false);
        }
        match own.thread {
            Thread::Idle => step(Kind::Whim, &|one| (one.thread, one.active) = (Thread::Launches, true)),
            Thread::Launches => {
                step(Kind::Whim, &|one| (one.thread, one.active) = (Thread::Idle, false));
                if own.turn == Turn::Open || (own.turn == Turn::Yours && own.left) {
                    step(Kind::Launch(OTHER), &|one| {
                        one.launch();
                        one.left = false;
                    });
                } else {
                    step(Kind::Fair, &|one| (one.waiting, one.thread) = (true, Thread::Sleeps));
                }
            }
            _ if !self.monitor_lives() && mutation != Mutation::StalenessUnnoticed => {
                step(Kind::Launch(OTHER), &Container::launch);
            }
            _ => {}
        }
    }

    /// The next step of a thread that neither sleeps nor idles.
    fn goes_on(&self, who: usize, mutation: Mutation) -> Option<(Kind, Self)> {
        let own = &self.containers[who];
        let rings_first = mutation == Mutation::RingsBeforeItSays;
        let to = |thread| Some((Kind::Fair, self.with(who, |one| one.thread = thread)));
        let fair = |change: &dyn Fn(&mut Container)| Some((Kind::Fair, self.with(who, |one| change(one))));
        let launch = |change: &dyn Fn(&mut Container)| {
            let launched = |one: &mut Container| {
                change(one);
                one.launch();
            };
            Some((Kind::Launch(who), self.with(who, launched)))
        };
        match own.thread {
            Thread::Launches if own.free && own.fresh => launch(&|_| {}),
            Thread::Launches => to(Thread::ReadsGate),
            Thread::ReadsGate => fair(&|one| (one.fresh, one.thread) = (true, Thread::ReadsTurn)),
            Thread::ReadsTurn => fair(&|one| (one.read, one.thread) = (one.turn, Thread::ReadsAgain)),
            Thread::ReadsAgain if !own.fresh => to(Thread::ReadsGate),
            Thread::ReadsAgain => match own.read {
                Turn::Open if own.active => launch(&|one| one.free = true),
                Turn::Yours if own.left => launch(&|one| one.left = false),
                _ if rings_first && !own.waiting => to(Thread::Asks),
                _ => to(Thread::Says),
            },
            Thread::Says => fair(&|one| {
                // Who was held already when it came by last does not ring again.
                let rings = !one.waiting && !rings_first;
                if one.read == Turn::Open {
                    one.active = true
                } else {
                    one.waiting = true
                }
                one.thread = if rings { Thread::Asks } else { Thread::Dozes };
            }),
            Thread::Asks if own.armed => to(Thread::Rings),
            Thread::Asks | Thread::Rings => fair(&|one| {
                one.bell |= one.thread == Thread::Rings;
                one.thread = if rings_first { Thread::Says } else { Thread::Dozes };
            }),
            Thread::Dozes if own.read == Turn::Open => to(Thread::ReadsGate),
            Thread::Dozes if own.fresh || mutation == Mutation::SleepsUnasked => to(Thread::Sleeps),
            Thread::Dozes => to(Thread::ReadsGate),
            Thread::Idle | Thread::Sleeps | Thread::Dead => None,
        }
    }

    fn monitor_steps(&self, mutation: Mutation, out: &mut Vec<(Kind, Self)>) {
        if self.monitor == Monitor::Dead {
            let mut born = Self { monitor: Monitor::Looks, ..*self };
            born.forget_books();
            for (seen, one) in born.seen.iter_mut().zip(&mut born.containers) {
                // As if it had said itself what it finds.
                let said = (mutation == Mutation::NoAdoption).then_some(one.turn);
                *seen = Seen { look: true, said, ..*seen };
                one.bell = false;
            }
            out.push((Kind::Fate, born));
            return;
        }
        let mut dead = Self { monitor: Monitor::Dead, succeeded: true, ..*self };
        dead.seen = Self::initial().seen;
        dead.forget_books();
        // Whose gate has opened since launches on until the next monitor says something.
        dead.containers.iter_mut().for_each(|one| (one.told, one.late) = (false, 0));
        // What is wrong about the others shows without it.
        let matters =
            matches!(mutation, Mutation::None | Mutation::StalenessUnnoticed | Mutation::NoAdoption);
        if matters && !self.succeeded {
            out.push((Kind::Fate, dead));
        }
        match self.monitor {
            Monitor::Sleeps => {
                if self.containers[CLOSE].bell {
                    let mut next = self.look_at(CLOSE);
                    (next.containers[CLOSE].bell, next.containers[CLOSE].armed) = (false, false);
                    out.push((Kind::Fair, next));
                }
                // Its own timer, and what the other one does: it looks at whose turn it is, and at who launches freely.
                let free = self.containers[CLOSE].turn == Turn::Open && self.seen[CLOSE].active;
                out.push((Kind::Fair, if free { self.look_at(CLOSE) } else { self.look_at(OTHER) }));
            }
            Monitor::Looks => out.push((Kind::Fair, self.look())),
            Monitor::Decides => self.decide(mutation, out),
            Monitor::Turns | Monitor::Bumps | Monitor::Wakes => out.push((Kind::Fair, self.write(mutation))),
            Monitor::Arms => {
                let mut next = Self { monitor: Monitor::Sleeps, ..*self };
                let (one, seen) = (&mut next.containers[CLOSE], &mut next.seen[CLOSE]);
                let guest = self.guest && mutation != Mutation::GuestUnheard;
                let held = one.turn == Turn::Wait || (one.turn == Turn::Yours && guest);
                let wanted = one.turn == Turn::Open || (held && !seen.waiting);
                if wanted && !one.armed && mutation != Mutation::NoLookAfterArming {
                    // Who came to its gate before it was armed did not ring.
                    (seen.look, next.monitor) = (true, Monitor::Looks);
                }
                one.armed = wanted;
                out.push((Kind::Fair, next));
            }
            Monitor::Dead => {}
        }
    }

    fn look_at(&self, who: usize) -> Self {
        let mut next = Self { monitor: Monitor::Looks, ..*self };
        next.seen[who].look = true;
        if let Some(holder) = self.holder {
            next.seen[holder].look = true;
        }
        next
    }

    /// Reads the cells of whom it has to look at.
    fn look(&self) -> Self {
        let mut next = Self { monitor: Monitor::Decides, ..*self };
        let (one, seen) = (&self.containers[CLOSE], &mut next.seen[CLOSE]);
        if seen.look {
            seen.look = false;
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
            next.forget_books();
            for who in 0..2 {
                let turn = if active[who] || active == [false; 2] { Turn::Open } else { Turn::Wait };
                next.order(who, turn);
            }
            out.push((Kind::Fair, next));
            return;
        }
        next.contended = true;
        next.watch_guest(mutation, out);
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
    fn watch_guest(&self, mutation: Mutation, out: &mut Vec<(Kind, Self)>) {
        let seen = &self.seen[CLOSE];
        let mut next = *self;
        if self.guest {
            next.guest = false;
            if mutation != Mutation::GuestStays {
                next.order(CLOSE, Turn::Wait);
            }
            // Nobody may depend on it: a new grant is what whoever waits has coming.
            out.push((Kind::Whim, next));
            next = *self;
        }
        // By the books alone its gate says YOURS already.
        let invited = self.guest || self.holder == Some(OTHER);
        if seen.waiting && !seen.dead && invited {
            let again = !(self.guest && mutation == Mutation::NoNewGrant);
            next.guest = true;
            next.seen[CLOSE].order = again.then_some(Turn::Yours);
            out.push((Kind::Fair, next));
        }
    }

    fn forget_books(&mut self) {
        (self.holder, self.guest, self.closing, self.contended) = (None, false, false, false);
    }

    /// Gives the turn to somebody who waits; `from` has had it, and is the last choice.
    fn pass_on(self, from: Option<usize>, out: &mut Vec<(Kind, Self)>) {
        let mut heirs: Vec<usize> = (0..2)
            .filter(|who| self.in_line(*who) && self.seen[*who].waiting && Some(*who) != from)
            .collect();
        if heirs.is_empty() {
            heirs.extend(from.filter(|who| self.seen[*who].waiting));
        }
        let mut next = self;
        (next.holder, next.closing) = (None, false);
        for who in (0..2).filter(|who| self.in_line(*who)) {
            next.order(who, Turn::Wait);
        }
        if heirs.is_empty() {
            out.push((Kind::Fair, next));
        }
        for heir in heirs {
            let mut given = next;
            given.holder = Some(heir);
            given.seen[heir].order = Some(Turn::Yours);
            out.push((Kind::Fair, given));
        }
    }

    fn in_line(&self, who: usize) -> bool {
        who == OTHER || !self.guest
    }

    fn order(&mut self, who: usize, turn: Turn) {
        self.seen[who].order = (self.seen[who].said != Some(turn)).then_some(turn);
    }

    /// Carries out the next piece of the first order: turn, gate word, wake.
    fn write(&self, mutation: Mutation) -> Self {
        let mut next = *self;
        // What takes the GPU away comes before what gives it.
        let revokes = |seen: &Seen| seen.order == Some(Turn::Wait);
        let first = self.seen.iter().position(revokes);
        let Some(who) = first.or_else(|| self.seen.iter().position(|seen| seen.order.is_some())) else {
            next.monitor = Monitor::Arms;
            return next;
        };
        let (one, seen) = (&mut next.containers[who], &mut next.seen[who]);
        let Some(turn) = seen.order else { return next };
        let visits = who == CLOSE && self.guest && turn == Turn::Yours;
        let store = |one: &mut Container| {
            (one.turn, one.visits) = (turn, visits);
            one.left = turn == Turn::Yours;
        };
        let bump = |one: &mut Container| one.fresh = false;
        let wake = |one: &mut Container| {
            if turn != Turn::Wait && one.thread == Thread::Sleeps {
                one.thread = Thread::ReadsGate;
            }
        };
        if who == OTHER {
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
                Monitor::Bumps
            }
            Monitor::Bumps => {
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
        let yours = self.containers.iter().filter(|one| one.turn == Turn::Yours && !one.visits).count();
        if yours > 1 {
            return Some("two containers are told that the turn is theirs");
        }
        // One launch may have been between reading and launching.
        if self.containers.iter().any(|one| one.late > 1) {
            return Some("a container launches on though its turn is over");
        }
        let close = &self.containers[CLOSE];
        if self.monitor == Monitor::Sleeps && close.visits && close.turn == Turn::Yours && !self.guest {
            return Some("a container launches beside the others though it is no guest");
        }
        None
    }
}
