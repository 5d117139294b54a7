//! The times that the controller goes by. They are the design's; each says what it trades.

use cgpu_shm::units::Nanos;

/// Times of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Mean slice. Longer: fewer switches; shorter: less waiting.
    pub base_slice: Nanos,
    /// Bounds within which it goes by the learned cost of a switch; both are the base where that is set.
    pub slice_range: (Nanos, Nanos),
    /// Longest round: bounds how long a container waits, and how long a new weight takes to show.
    pub max_round: Nanos,
    /// From our write until the first kernel of the woken program is queued.
    pub wakeup_lead: Nanos,
    /// How long before the end of its turn a holder has the next, if that is its own: its gate is told before its work runs out.
    pub extension_lead: Nanos,
    /// How often the gate word of a launching container changes, so that its launches are seen.
    pub bump_interval: Nanos,
    /// The same where no container has launched for [`Tuning::idle_after`] and all have a doorbell.
    pub idle_bump_interval: Nanos,
    /// See [`Tuning::idle_bump_interval`].
    pub idle_after: Nanos,
    /// A member counts as active for this long after a launch.
    pub active_window: Nanos,
    /// Silence that a holder is always allowed, from when its work ends by its own reports. More than the usual bound of work in flight (500 us): after it, what
    /// a gate under that bound could have launched has run, whatever the cells say.
    pub silence_tolerance: Nanos,
    /// A holder runs at least this long before a returning member pre-empts it: bounds the switches.
    pub min_run: Nanos,
    /// What an honest gate has in flight at most, unless two launches are longer.
    pub default_inflight: Nanos,
    /// The same where no container can come that would wait for it: all that compute are in the
    /// queue, or it has high priority.
    pub uncontested_inflight: Nanos,
    /// The same where a container of high priority may come at any moment, and would wait for it.
    pub priority_inflight: Nanos,
    /// Work that a container may have in flight while its gate is open: as the only one that has
    /// the GPU open, and beside others that do not compute. A newcomer has it beside its first
    /// turns; a program keeps the GPU busy with it while it pauses.
    pub open_inflight: (Nanos, Nanos),
    /// High priority takes the GPU for about this long at a time from other containers that want
    /// it.
    pub priority_window: Nanos,
    /// Gaps from which a container is better off beside the others than in turns: about a slice of the GPU's own.
    pub background_gap: Nanos,
    /// A background tenant has its grant for at least this long, and is judged by such stretches.
    pub background_period: Nanos,
    /// Time after which a tenant that left the background may return.
    pub background_cooldown: Nanos,
    /// A host-bound container shares another's turns for this long, then shows in its own ones
    /// whether it still is.
    pub shared_turns_period: Nanos,
    /// Longest wait for a drain, or four slices where those are longer; then others run beside it.
    pub base_drain_timeout: Nanos,
    /// The same for one whose work has shown that it ends by itself within that time: beside others it would take longer, and what
    /// it takes could not be measured.
    pub max_drain_timeout: Nanos,
    /// Most that a container owes for a queue from before its first turn. All of it takes a
    /// container with half of the GPU one second to repay.
    pub max_debt: Nanos,
    /// Least grant that is worth a switch.
    pub min_grant: Nanos,
    /// What a switch costs until the reports have shown it.
    pub assumed_switch_cost: Nanos,
    /// Most that a switch may be said to cost.
    pub max_switch_cost: Nanos,
    /// A turn's report is waited for this long.
    pub report_timeout: Nanos,
    /// A step comes so long after the last: the monitor was stopped or starved, and gates have opened of themselves meanwhile.
    pub lost_after: Nanos,
    /// How long an invalid report is remembered.
    pub distrust_period: Nanos,
    /// Spacing of looks while a turn is closing.
    pub min_step_interval: Nanos,
    /// Interval at which all containers are observed, notified or not.
    pub full_scan_interval: Nanos,
}

/// What switches may cost of the GPU, in thousandths, before slices grow longer.
const MAX_SWITCH_LOSS: u64 = 30;

impl Tuning {
    /// The default: slices of 6 ms.
    pub const DEFAULT: Self = Self {
        base_slice: Nanos::from_millis(6),
        slice_range: (Nanos::from_millis(6), Nanos::from_millis(10)),
        max_round: Nanos::from_millis(50),
        wakeup_lead: Nanos::from_micros(60),
        extension_lead: Nanos::from_micros(400),
        bump_interval: Nanos::from_millis(5),
        idle_bump_interval: Nanos::from_millis(100),
        idle_after: Nanos::from_millis(1000),
        active_window: Nanos::from_millis(20),
        silence_tolerance: Nanos::from_millis(1),
        min_run: Nanos::from_millis(1),
        default_inflight: Nanos::from_micros(500),
        uncontested_inflight: Nanos::from_millis(2),
        priority_inflight: Nanos::from_micros(250),
        open_inflight: (Nanos::from_millis(200), Nanos::from_millis(20)),
        priority_window: Nanos::from_millis(100),
        background_gap: Nanos::from_micros(750),
        background_period: Nanos::from_millis(50),
        background_cooldown: Nanos::from_millis(2000),
        shared_turns_period: Nanos::from_millis(4000),
        base_drain_timeout: Nanos::from_millis(24),
        max_drain_timeout: Nanos::from_millis(100),
        max_debt: Nanos::from_millis(250),
        min_grant: Nanos::from_micros(500),
        assumed_switch_cost: Nanos::from_micros(100),
        max_switch_cost: Nanos::from_micros(500),
        report_timeout: Nanos::from_millis(50),
        lost_after: Nanos::from_millis(1000),
        distrust_period: Nanos::from_millis(1000),
        min_step_interval: Nanos::from_micros(20),
        full_scan_interval: Nanos::from_millis(50),
    };

    /// With a mean slice of `base`, whatever a switch costs.
    #[must_use]
    pub fn with_base(self, base: Nanos) -> Self {
        Self { base_slice: base, slice_range: (base, base), ..self }
    }

    /// The mean slice of which a switch of this cost is [`MAX_SWITCH_LOSS`], within the bounds.
    #[must_use]
    pub fn base_for(&self, switch: Nanos) -> Nanos {
        Nanos(switch.0.saturating_mul(1000) / MAX_SWITCH_LOSS)
            .clamp(self.slice_range.0, self.slice_range.1)
    }

    /// How long a drain is waited for.
    #[must_use]
    pub fn drain_timeout(&self) -> Nanos {
        self.base_drain_timeout.max(Nanos(self.base_slice.0.saturating_mul(4)))
    }

    /// Every time `percent` / 100 as long: for a simulated GPU whose time runs slower.
    #[must_use]
    pub fn scaled(self, percent: u32) -> Self {
        let scaled = |time: Nanos| Nanos(time.0.saturating_mul(u64::from(percent)) / 100);
        Self {
            base_slice: scaled(self.base_slice),
            slice_range: (scaled(self.slice_range.0), scaled(self.slice_range.1)),
            max_round: scaled(self.max_round),
            wakeup_lead: scaled(self.wakeup_lead),
            extension_lead: scaled(self.extension_lead),
            bump_interval: scaled(self.bump_interval),
            idle_bump_interval: scaled(self.idle_bump_interval),
            idle_after: scaled(self.idle_after),
            active_window: scaled(self.active_window),
            silence_tolerance: scaled(self.silence_tolerance),
            min_run: scaled(self.min_run),
            default_inflight: scaled(self.default_inflight),
            uncontested_inflight: scaled(self.uncontested_inflight),
            priority_inflight: scaled(self.priority_inflight),
            open_inflight: (scaled(self.open_inflight.0), scaled(self.open_inflight.1)),
            priority_window: scaled(self.priority_window),
            background_gap: scaled(self.background_gap),
            background_period: scaled(self.background_period),
            background_cooldown: scaled(self.background_cooldown),
            shared_turns_period: scaled(self.shared_turns_period),
            base_drain_timeout: scaled(self.base_drain_timeout),
            max_drain_timeout: scaled(self.max_drain_timeout),
            max_debt: scaled(self.max_debt),
            min_grant: scaled(self.min_grant),
            assumed_switch_cost: scaled(self.assumed_switch_cost),
            max_switch_cost: scaled(self.max_switch_cost),
            report_timeout: scaled(self.report_timeout),
            lost_after: scaled(self.lost_after),
            distrust_period: scaled(self.distrust_period),
            min_step_interval: scaled(self.min_step_interval),
            full_scan_interval: scaled(self.full_scan_interval),
        }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self::DEFAULT
    }
}
