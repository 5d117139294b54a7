//! The times that the controller goes by. They are the design's; each says what it trades.

use cgpu_shm::units::Nanos;

/// Times of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Mean slice. Longer: fewer switches; shorter: less waiting.
    pub base: Nanos,
    /// Bounds within which it goes by the learned cost of a switch; both are the base where that is set.
    pub bases: (Nanos, Nanos),
    /// A whole round at most: bounds how long anyone waits, and how long a new weight takes to show.
    pub round: Nanos,
    /// From our write until the first kernel of the woken program is queued.
    pub lead: Nanos,
    /// How long before the end of its turn a holder has the next, if that is its own: its gate is told before its work runs out.
    pub ahead: Nanos,
    /// How often the gate word of a launching container changes, so that its launches are seen.
    pub bump: Nanos,
    /// The same where nobody has launched for [`Tuning::quiet`] and everybody has a bell.
    pub slow_bump: Nanos,
    /// See [`Tuning::slow_bump`].
    pub quiet: Nanos,
    /// A member counts as active for this long after a launch.
    pub active: Nanos,
    /// Silence that a holder is always allowed, from when its work ends by its own reports. More than the usual bound of work in flight (500 us): after it, what
    /// a gate under that bound could have launched has run, whatever the cells say.
    pub tolerance: Nanos,
    /// A holder runs at least this long before a returning member pre-empts it: bounds the switches.
    pub run: Nanos,
    /// What an honest gate has in flight at most, unless two launches are longer.
    pub bound: Nanos,
    /// The same where nobody comes who would wait for it: all who compute are in the queue, or it has high priority.
    pub wide: Nanos,
    /// The same where somebody of high priority may come at any moment, who waits for it.
    pub tight: Nanos,
    /// Work that a container may have in flight while its gate is open: as the only one that has
    /// the GPU open, and beside others that do not compute. A newcomer has it beside its first
    /// turns; a program keeps the GPU busy with it while it pauses.
    pub backlog: (Nanos, Nanos),
    /// High priority takes the GPU for about this long at a stretch from those who want it too.
    pub window: Nanos,
    /// Gaps from which a container is better off beside the others than in turns: about a slice of the GPU's own.
    pub sparse: Nanos,
    /// A background tenant has its grant for at least this long, and is judged by such stretches.
    pub background_period: Nanos,
    /// Time after which a tenant that left the background may return.
    pub background_cooldown: Nanos,
    /// A host-bound container shares another's turns for this long, then shows in its own ones
    /// whether it still is.
    pub shared: Nanos,
    /// Longest wait for a drain, or four slices where those are longer; then others run beside it.
    pub drain: Nanos,
    /// The same for one whose work has shown that it ends by itself within that time: beside others it would take longer, and what
    /// it takes could not be measured.
    pub long_drain: Nanos,
    /// Most that a container owes for a queue from before its first turn. All of it takes a
    /// container with half of the GPU one second to repay.
    pub debt: Nanos,
    /// Least grant that is worth a switch.
    pub least: Nanos,
    /// What a switch costs until the reports have shown it.
    pub bubble: Nanos,
    /// Most that a switch may be said to cost.
    pub bubble_most: Nanos,
    /// A turn's report is waited for this long.
    pub report_timeout: Nanos,
    /// A step comes so long after the last: the monitor was stopped or starved, and gates have opened of themselves meanwhile.
    pub lost: Nanos,
    /// How long an invalid report is remembered.
    pub distrust: Nanos,
    /// Spacing of looks while a turn is closing.
    pub spacing: Nanos,
    /// Everybody is looked at this often, rung or not.
    pub full_scan_interval: Nanos,
}

/// What switches may cost of the GPU, in thousandths, before slices grow longer.
const LOSS: u64 = 30;

impl Tuning {
    /// The default: slices of 6 ms.
    pub const DEFAULT: Self = Self {
        base: Nanos::from_millis(6),
        bases: (Nanos::from_millis(6), Nanos::from_millis(10)),
        round: Nanos::from_millis(50),
        lead: Nanos::from_micros(60),
        ahead: Nanos::from_micros(400),
        bump: Nanos::from_millis(5),
        slow_bump: Nanos::from_millis(100),
        quiet: Nanos::from_millis(1000),
        active: Nanos::from_millis(20),
        tolerance: Nanos::from_millis(1),
        run: Nanos::from_millis(1),
        bound: Nanos::from_micros(500),
        wide: Nanos::from_millis(2),
        tight: Nanos::from_micros(250),
        backlog: (Nanos::from_millis(200), Nanos::from_millis(20)),
        window: Nanos::from_millis(100),
        sparse: Nanos::from_micros(750),
        background_period: Nanos::from_millis(50),
        background_cooldown: Nanos::from_millis(2000),
        shared: Nanos::from_millis(4000),
        drain: Nanos::from_millis(24),
        long_drain: Nanos::from_millis(100),
        debt: Nanos::from_millis(250),
        least: Nanos::from_micros(500),
        bubble: Nanos::from_micros(100),
        bubble_most: Nanos::from_micros(500),
        report_timeout: Nanos::from_millis(50),
        lost: Nanos::from_millis(1000),
        distrust: Nanos::from_millis(1000),
        spacing: Nanos::from_micros(20),
        full_scan_interval: Nanos::from_millis(50),
    };

    /// With a mean slice of `base`, whatever a switch costs.
    #[must_use]
    pub fn with_base(self, base: Nanos) -> Self {
        Self { base, bases: (base, base), ..self }
    }

    /// The mean slice of which a switch of this cost is [`LOSS`], within the bounds.
    #[must_use]
    pub fn base_for(&self, switch: Nanos) -> Nanos {
        Nanos(switch.0.saturating_mul(1000) / LOSS).clamp(self.bases.0, self.bases.1)
    }

    /// How long a drain is waited for.
    #[must_use]
    pub fn drain_timeout(&self) -> Nanos {
        self.drain.max(Nanos(self.base.0.saturating_mul(4)))
    }

    /// Every time `percent` / 100 as long: for a simulated GPU whose time runs slower.
    #[must_use]
    pub fn scaled(self, percent: u32) -> Self {
        let scaled = |time: Nanos| Nanos(time.0.saturating_mul(u64::from(percent)) / 100);
        Self {
            base: scaled(self.base),
            bases: (scaled(self.bases.0), scaled(self.bases.1)),
            round: scaled(self.round),
            lead: scaled(self.lead),
            ahead: scaled(self.ahead),
            bump: scaled(self.bump),
            slow_bump: scaled(self.slow_bump),
            quiet: scaled(self.quiet),
            active: scaled(self.active),
            tolerance: scaled(self.tolerance),
            run: scaled(self.run),
            bound: scaled(self.bound),
            wide: scaled(self.wide),
            tight: scaled(self.tight),
            backlog: (scaled(self.backlog.0), scaled(self.backlog.1)),
            window: scaled(self.window),
            sparse: scaled(self.sparse),
            background_period: scaled(self.background_period),
            background_cooldown: scaled(self.background_cooldown),
            shared: scaled(self.shared),
            drain: scaled(self.drain),
            long_drain: scaled(self.long_drain),
            debt: scaled(self.debt),
            least: scaled(self.least),
            bubble: scaled(self.bubble),
            bubble_most: scaled(self.bubble_most),
            report_timeout: scaled(self.report_timeout),
            lost: scaled(self.lost),
            distrust: scaled(self.distrust),
            spacing: scaled(self.spacing),
            full_scan_interval: scaled(self.full_scan_interval),
        }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self::DEFAULT
    }
}
