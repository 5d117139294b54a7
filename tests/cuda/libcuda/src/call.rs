//! One call of the program: faults and journal around it, and what a function may know of how it was called.

use core::cell::Cell;

use cgpu_abi::Flavour;
use cgpu_abi::types::CUresult;

use crate::answer::{Answer, NOT_INITIALIZED, NOT_PERMITTED};
use crate::driver::Driver;
use crate::watch::WATCH;

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

/// Runs the function behind a row.
pub(crate) fn play(position: usize, flavour: Flavour, function: impl FnOnce(&Call) -> Answer) -> CUresult {
    let per_thread = matches!(flavour, Flavour::PerThreadStream | Flavour::PerThreadDefault);
    WATCH.around(position, || match function(&Call { per_thread }) {
        Ok(()) => CUresult::SUCCESS,
        Err(failure) => failure.0,
    })
}

/// Answers for a row that is not played.
pub(crate) fn stub(position: usize) -> CUresult {
    WATCH.around(position, || CUresult::ERROR_NOT_SUPPORTED)
}
