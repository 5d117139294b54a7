//! The times of the scheduler. They are constants of the design; each states its trade-off.

use cgpu_shm::units::Nanos;

/// Times of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Mean slice. Longer: fewer switches; shorter: less waiting.
    pub base_slice: Nanos,
    /// Range in which the slice follows the learned cost of a switch; both ends are the base if
    /// that is configured.
    pub slice_range: (Nanos, Nanos),
    /// Longest round: bounds how long a container waits, and how long a new weight takes to apply.
    pub max_round: Nanos,
    /// Time from our write until the first kernel of the woken program is queued.
    pub wakeup_lead: Nanos,
    /// How long before the end of its turn a holder gets the next one, if that is its own: the gate
    /// is updated before its work runs out.
    pub extension_lead: Nanos,
    /// Interval at which the gate word of a launching container changes, so that its launches are
    /// seen.
    pub bump_interval: Nanos,
    /// The same if no container has launched for [`Tuning::idle_after`] and all have a doorbell.
    pub idle_bump_interval: Nanos,
    /// See [`Tuning::idle_bump_interval`].
    pub idle_after: Nanos,
    /// How long a member counts as active after a launch.
    pub active_window: Nanos,
    /// Silence that a holder is always allowed after the reported end of its work. It exceeds the
    /// usual bound of work in flight (500 us): after it, all that a gate could have launched under
    /// that bound has run, whatever the cells say.
    pub silence_tolerance: Nanos,
    /// A holder runs at least this long before a returning member pre-empts it: bounds the
    /// switches.
    pub min_run: Nanos,
    /// Least time between two turns that a container takes by interrupting others', under fixed
    /// shares and if it uses little of them.
    pub least_interval: Nanos,
    /// Most work in flight that a compliant gate allows, unless two launches are longer.
    pub default_inflight: Nanos,
    /// The same if no container can arrive that would wait for it: all that compute are in the
    /// queue, or it has high priority.
    pub uncontested_inflight: Nanos,
    /// The same if a container of high priority may arrive at any time and would wait for it.
    pub priority_inflight: Nanos,
    /// Work that a container may have in flight while its gate is open: as the only one that has
    /// the GPU open, and beside others that do not compute. A newcomer has it beside its first
    /// turns; a program keeps the GPU busy with it while it pauses.
    pub open_inflight: (Nanos, Nanos),
    /// About how long high priority takes the GPU at a time from other containers that want it.
    pub priority_window: Nanos,
    /// Gaps from which a container is better off beside the others than in turns: about one of the
    /// GPU's own slices.
    pub background_gap: Nanos,
    /// How long a background tenant has its grant at least, and the period by which it is judged.
    pub background_period: Nanos,
    /// Time after which a tenant that left the background may return.
    pub background_cooldown: Nanos,
    /// How long a host-bound container shares another's turns before its own turns are measured
    /// again.
    pub shared_turns_period: Nanos,
    /// Longest wait for a drain, or four slices if those are longer; then others run beside it.
    pub base_drain_timeout: Nanos,
    /// The same for a container whose work is known to end by itself within that time: beside
    /// others it would take longer, and could not be measured.
    pub max_drain_timeout: Nanos,
    /// Most debt of a container for a queue from before its first turn. With half of the GPU, it
    /// takes one second to repay all of it.
    pub max_debt: Nanos,
    /// Least grant that is worth a switch.
    pub min_grant: Nanos,
    /// Cost of a switch until reports have shown it.
    pub assumed_switch_cost: Nanos,
    /// Most that a switch may be reported to cost.
    pub max_switch_cost: Nanos,
    /// How long a turn's report is waited for.
    pub report_timeout: Nanos,
    /// Time without a step after which the monitor was stopped or starved, and gates have opened by
    /// themselves.
    pub lost_after: Nanos,
    /// How long a container is distrusted after an invalid report.
    pub distrust_period: Nanos,
    /// Interval of steps while a turn is closing.
    pub min_step_interval: Nanos,
    /// Interval at which all containers are observed, notified or not.
    pub full_scan_interval: Nanos,
}

/// Most of the GPU, in thousandths, that switches may cost before slices grow.
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
        least_interval: Nanos::from_millis(15),
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

    /// Sets a mean slice of `base`, whatever a switch costs.
    #[must_use]
    pub fn with_base(self, base: Nanos) -> Self {
        Self { base_slice: base, slice_range: (base, base), ..self }
    }

    /// Returns the mean slice at which a switch of this cost is [`MAX_SWITCH_LOSS`], within the
    /// range.
    #[must_use]
    pub fn base_for(&self, switch: Nanos) -> Nanos {
        Nanos(switch.0.saturating_mul(1000) / MAX_SWITCH_LOSS)
            .clamp(self.slice_range.0, self.slice_range.1)
    }

    /// Returns how long a drain is waited for.
    #[must_use]
    pub fn drain_timeout(&self) -> Nanos {
        self.base_drain_timeout.max(Nanos(self.base_slice.0.saturating_mul(4)))
    }

    /// Scales every time by `percent` / 100, for a simulated GPU whose time runs slower.
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
            least_interval: scaled(self.least_interval),
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
