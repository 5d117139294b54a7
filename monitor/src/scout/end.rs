//! Ends a process that the watcher wants ended, if it is still the one that was meant.
//!
//! A process id is a number that the kernel gives out again. So the process is first got hold of by a descriptor, which names it and no later one;
//! only then everything is looked at again: it was started when the one that was found was, NVML still has it on the card, it still belongs to the
//! same container, and still has what it was found for. Then it is signalled through the descriptor. Whoever died in between is not there to
//! be signalled, and whoever has the number by now is another one and was not meant.

use rustix::process::{Pid, PidfdFlags, Signal as Number, pidfd_open, pidfd_send_signal};

use super::nvml::Library;
use super::residents::{Census, Kin, drives};
use crate::message::{Cause, Shim, Signal};
use crate::watch::Order;

/// Carries an order out; why not, where it was not to be.
pub(super) fn end(order: &Order, library: Option<&Library>, kin: &[Kin]) -> Result<(), String> {
    let pid = i32::try_from(order.name.pid).ok().and_then(Pid::from_raw).ok_or("it is no process")?;
    let process =
        pidfd_open(pid, PidfdFlags::empty()).map_err(|error| format!("it cannot be got hold of: {error}"))?;
    let library = library.ok_or("NVML does not answer")?;
    if !library.is_on(order.card, order.name.pid) {
        return Err("it has left the card".into());
    }
    let found = Census::new(kin).resident(order.name.pid).ok_or("it has gone")?;
    if found.name != order.name {
        return Err("it is another process by now".into());
    }
    if found.owner != Some(order.owner.0) {
        return Err("it is another container's by now".into());
    }
    if !drives(order.name.pid) {
        return Err("it has no driver open: NVML may mean another process".into());
    }
    if order.cause == Cause::Unshimmed && found.shim == Shim::Bound {
        return Err("it has the shim by now".into());
    }
    let signal = match order.signal {
        Signal::Term => Number::TERM,
        Signal::Kill => Number::KILL,
    };
    pidfd_send_signal(&process, signal).map_err(|error| format!("it cannot be signalled: {error}"))
}
