//! One call of the program: faults and journal around it, and what a function may know of how it was called.

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

/// How a function was called.
#[derive(Debug)]
pub(crate) struct Call {
    /// Whether stream 0 is the calling thread's own.
    pub(crate) per_thread: bool,
}

impl Call {
    /// The initialised driver.
    pub(crate) fn driver(&self) -> Answer<&'static Driver> {
        if IN_HOST_FUNCTION.get() {
            return Err(NOT_PERMITTED);
        }
        let driver = Driver::get().ok_or(NOT_INITIALIZED)?;
        // The driver does not survive a fork: nothing shared may be touched, not even its locks.
        if driver.machine.is_inherited() { Err(NOT_INITIALIZED) } else { Ok(driver) }
    }
}

thread_local! {
    /// Set while the thread runs a function of the program in stream order: such a function may not call the driver.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function of the program in stream order.
pub(crate) fn host_function(function: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    function();
    IN_HOST_FUNCTION.set(false);
}

/// What `CGPU_SIM_FAULT` and `CGPU_SIM_JOURNAL` ask for, read at the first call.
static WATCH: LazyLock<Watch> = LazyLock::new(|| Watch::from_environment(Library::Driver));

/// The machine that a journal asks what the GPUs did.
fn machine() -> Option<&'static Machine> {
    Driver::get().map(|driver| &driver.machine).filter(|machine| !machine.is_inherited())
}

/// Has the running call say more of itself in the journal.
pub(crate) fn note<V: Into<Value>>(name: &str, value: impl FnOnce() -> V) {
    WATCH.note(name, value);
}

/// Runs the function behind a row.
pub(crate) fn play(
    position: usize,
    flavour: Flavour,
    describe: impl FnOnce(&mut Arguments),
    function: impl FnOnce(&Call) -> Answer,
) -> CUresult {
    let per_thread = matches!(flavour, Flavour::PerThreadStream | Flavour::PerThreadDefault);
    // A process that is locked keeps its calls waiting, but for those that could unlock it.
    let _entered =
        if checkpoint::is_about(position) { None } else { machine().and_then(Machine::enter) };
    let simulated = || capture::admit(position).and_then(|()| function(&Call { per_thread }));
    CUresult(WATCH.around(position, describe, machine, || match simulated() {
        Ok(()) => CUresult::SUCCESS.0,
        Err(failure) => failure.0.0,
    }))
}

/// Answers for a row that is not played.
pub(crate) fn stub(position: usize) -> CUresult {
    CUresult(WATCH.around(position, |_| (), machine, || CUresult::ERROR_NOT_SUPPORTED.0))
}
