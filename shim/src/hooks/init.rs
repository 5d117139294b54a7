//! `cuInit`.

use cgpu_abi::types::{CUresult, c_uint};
use cgpu_memory::Tenant;
use cgpu_shm::named_count;
use tracing::warn;

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
        State::Off => answer,
        State::On(tenant) => {
            count_unknown_functions(tenant);
            answer
        }
        State::Refused(refusal) => {
            process::announce(refusal);
            CUresult::ERROR_INVALID_VALUE
        }
    }
}

/// Counts the driver's functions that take memory, by their names, and that the table lacks. Calls
/// of them are not charged.
fn count_unknown_functions(tenant: &Tenant) {
    for name in DRIVER.table().unknown() {
        warn!("the driver's {name} is not known: it is not charged");
        named_count::count(&tenant.region().shared().header.unknown_function, name);
    }
}
