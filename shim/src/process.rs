//! How this process starts to account memory, and what a hook needs to know of that.
//!
//! Starting never blocks: racing threads start twice, one state is published, and the other's slot
//! is released.

use cgpu_memory::{Found, Monotonic, Reason, Refusal, Start, System, Tenant, is_called_for};
use tracing::{info, warn};

use crate::devices::Devices;
pub(crate) use crate::state::{State, Trigger, announce, count, count_export_table, tenant};
use crate::{driver, gate, gpus, log, state};

/// State of the accounting, for a hook that allocates.
#[derive(Clone, Copy)]
pub(crate) enum Accounting {
    /// Memory is accounted: charge.
    On(&'static Tenant),
    /// The call goes to the driver unchanged.
    Pass,
    /// Nothing may be allocated.
    Refused,
}

#[inline]
pub(crate) fn accounting() -> Accounting {
    match state::get() {
        Some(State::On(tenant)) => Accounting::On(tenant),
        Some(State::Off) => Accounting::Pass,
        Some(State::Refused(_)) => Accounting::Refused,
        None => accounting_before_init(),
    }
}

/// Starts, if that has not happened in this process, and returns the state.
pub(crate) fn start(trigger: Trigger) -> &'static State {
    state::get().unwrap_or_else(|| start_once(trigger))
}

/// Returns the accounted devices; none before the driver is initialised.
#[inline]
pub(crate) fn devices(tenant: &Tenant) -> &'static Devices {
    state::devices().unwrap_or_else(|| learn_devices(tenant))
}

#[cold]
fn learn_devices(tenant: &Tenant) -> &'static Devices {
    state::publish_devices(|| gpus::driver_is_initialised().then(|| gpus::devices_of(tenant)))
}

/// Handles a call before any `cuInit` that we saw. The driver may have been initialised by internal
/// calls, so it is queried.
#[cold]
fn accounting_before_init() -> Accounting {
    if !gpus::driver_is_initialised() {
        let reason = if state::ever_started() { Reason::AfterFork } else { Reason::BeforeInit };
        count(reason);
        return Accounting::Pass;
    }
    match start(Trigger::Driver) {
        State::On(tenant) => Accounting::On(tenant),
        State::Off => Accounting::Pass,
        State::Refused(_) => Accounting::Refused,
    }
}

#[cold]
fn start_once(trigger: Trigger) -> &'static State {
    log::start();
    let (state, is_new) = state::publish(|| decide(trigger));
    if is_new {
        log_start(state);
    }
    if let (State::On(tenant), true) = (state, is_new) {
        gate::install(tenant);
    }
    state
}

fn log_start(state: &State) {
    match state {
        State::Off => info!("nothing is limited: calls go to the driver as they are"),
        State::Refused(refusal) => warn!("start refused: {refusal}"),
        State::On(tenant) => {
            let directory = tenant.region().directory().display();
            let slot = tenant.slot_owner().slot().get();
            info!(slot, mps = gpus::driver_has_mps(), "calls are accounted in {directory}");
        }
    }
}

/// Reads the settings, and checks whether they can be enforced.
fn decide(trigger: Trigger) -> State {
    // If no monitor has reported the GPUs, NVML is started for them, which takes longer than
    // everything else together.
    let found = if is_called_for(&System) { gpus::inventory(trigger) } else { Found::NOTHING };
    let by_driver = trigger == Trigger::Driver;
    match Tenant::start(&System, found.as_inventory(), &Monotonic) {
        Ok(Start::On(_)) if by_driver && let Some(name) = driver::missing() => {
            State::Refused(Refusal::new(format!(
                "expected a driver with {name}, without which no limit can be kept; this one \
                 lacks it: use a newer driver"
            )))
        }
        Ok(Start::On(tenant)) => State::On(tenant),
        Ok(Start::Off(Reason::NoGpus))
            if by_driver && found.is_empty() && gpus::driver_has_gpus() =>
        {
            State::Refused(Refusal::new(
                "expected GPUs with a UUID, by which limits are kept; the driver gives none: use a \
                 newer driver",
            ))
        }
        Ok(Start::Off(reason)) => {
            count(reason);
            State::Off
        }
        Err(refusal) => State::Refused(refusal),
    }
}
