//! Initialisation and shutdown: the program's uses of NVML are kept apart from our own
//! ([`crate::nvml_uses`]).

use cgpu_abi::nvml_types::{c_uint, nvmlReturn_t};

use crate::{nvml, nvml_uses};

pub(crate) unsafe fn nvmlInit() -> nvmlReturn_t {
    // SAFETY: the program's own call.
    nvml_uses::begin(|| unsafe { nvml::nvmlInit() })
}

/// One more use.
pub(crate) unsafe fn nvmlInit_v2() -> nvmlReturn_t {
    // SAFETY: the program's own call.
    nvml_uses::begin(|| unsafe { nvml::nvmlInit_v2() })
}

/// With flags, which matter only for the first use.
pub(crate) unsafe fn nvmlInitWithFlags(flags: c_uint) -> nvmlReturn_t {
    // SAFETY: the program's own call.
    nvml_uses::begin(|| unsafe { nvml::nvmlInitWithFlags(flags) })
}

pub(crate) unsafe fn nvmlShutdown() -> nvmlReturn_t {
    // SAFETY: the program's own call.
    nvml_uses::end(|| unsafe { nvml::nvmlShutdown() })
}

/// Makes a call that NVML refuses until the program has initialised it.
pub(crate) fn if_initialised(call: impl FnOnce() -> nvmlReturn_t) -> nvmlReturn_t {
    if nvml_uses::is_hidden() { nvmlReturn_t::ERROR_UNINITIALIZED } else { call() }
}
