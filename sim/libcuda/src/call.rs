//! One call of the program: injected faults and the journal around it, and the variant of the
//! function that was called.

use core::cell::Cell;
use std::sync::LazyLock;

use cgpu_abi::Flavour;
use cgpu_abi::types::CUresult;
use cgpu_sim::Machine;
use cgpu_sim::faults::Library;
use cgpu_sim::watch::{Arguments, Value, Watch};

use crate::answer::{Answer, NOT_INITIALIZED, NOT_PERMITTED};
use crate::driver::Driver;
use crate::{capture, checkpoint};

#[derive(Debug)]
pub(crate) struct Call {
    /// Whether stream 0 is the calling thread's default stream.
    pub(crate) per_thread: bool,
}

impl Call {
    /// Returns the driver; fails if it is not initialised.
    pub(crate) fn driver(&self) -> Answer<&'static Driver> {
        if IN_HOST_FUNCTION.get() {
            return Err(NOT_PERMITTED);
        }
        let driver = Driver::get().ok_or(NOT_INITIALIZED)?;
        // The driver does not survive a fork: shared state must not be touched, not even its locks.
        if driver.machine.is_inherited() { Err(NOT_INITIALIZED) } else { Ok(driver) }
    }
}

thread_local! {
    /// Whether the thread is running a host function, which must not call the driver.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Runs a host function that the program has enqueued.
pub(crate) fn host_function(function: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    function();
    IN_HOST_FUNCTION.set(false);
}

/// Settings of `CGPU_SIM_FAULT` and `CGPU_SIM_JOURNAL`, read at the first call.
static WATCH: LazyLock<Watch> = LazyLock::new(|| Watch::from_environment(Library::Driver));

/// Returns the machine whose GPU activity the journal records.
fn machine() -> Option<&'static Machine> {
    Driver::get().map(|driver| &driver.machine).filter(|machine| !machine.is_inherited())
}

/// Adds a field to the journal's line about the running call.
pub(crate) fn note<V: Into<Value>>(name: &str, value: impl FnOnce() -> V) {
    WATCH.note(name, value);
}

/// Runs the simulated function of a row.
pub(crate) fn run(
    position: usize,
    flavour: Flavour,
    describe: impl FnOnce(&mut Arguments),
    function: impl FnOnce(&Call) -> Answer,
) -> CUresult {
    let per_thread = matches!(flavour, Flavour::PerThreadStream | Flavour::PerThreadDefault);
    // A locked process blocks in its calls, except in those that could unlock it.
    let _entered = if checkpoint::is_checkpoint_call(position) {
        None
    } else {
        machine().and_then(Machine::enter)
    };
    let simulated = || capture::admit(position).and_then(|()| function(&Call { per_thread }));
    CUresult(WATCH.around(position, describe, machine, || match simulated() {
        Ok(()) => CUresult::SUCCESS.0,
        Err(failure) => failure.0.0,
    }))
}

/// Answers a call of a function that is not simulated.
pub(crate) fn stub(position: usize) -> CUresult {
    CUresult(WATCH.around(position, |_| (), machine, || CUresult::ERROR_NOT_SUPPORTED.0))
}
