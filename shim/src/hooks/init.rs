//! `cuInit`.

use cgpu_abi::types::{CUresult, c_uint};

use crate::driver;
use crate::library::DRIVER;
use crate::process::{self, State, Trigger};

/// Initialises the driver, then the accounting. If the limits cannot be understood or enforced, no
/// call succeeds from then on.
pub(crate) unsafe fn cuInit(flags: c_uint) -> CUresult {
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuInit(flags) };
    if answer != CUresult::SUCCESS {
        return answer;
    }
    DRIVER.pin();
    match process::start(Trigger::Driver) {
        State::Off | State::On(_) => answer,
        State::Refused(refusal) => {
            process::announce(refusal);
            CUresult::ERROR_INVALID_VALUE
        }
    }
}
