//! Results of hooks that account nothing: the driver's answer, or a refusal.

use cgpu_abi::Role;
use cgpu_abi::types::CUresult;
use cgpu_memory::{Denied, Reason};
use tracing::warn;

use crate::process;

/// Evaluates to the tenant, for a hook that takes memory. If there is none, returns from the hook:
/// with `$pass`, the driver's answer, if nothing is limited, or with an error if the start was
/// refused.
macro_rules! tenant_or_return {
    ($pass:expr) => {
        match $crate::process::accounting() {
            $crate::process::Accounting::On(tenant) => tenant,
            $crate::process::Accounting::Pass => return $pass,
            $crate::process::Accounting::Refused => return $crate::hooks::answer::NOT_STARTED,
        }
    };
}

/// Result of a hook when the start was refused: to the program the driver is not initialised.
pub(super) const NOT_STARTED: CUresult = CUresult::ERROR_NOT_INITIALIZED;

#[cold]
pub(super) fn denied(denied: Denied) -> CUresult {
    let Denied { reason, wanted, used, limit } = denied;
    warn!(wanted = wanted.0, used = used.0, limit = limit.0, "refused: {reason:?}");
    CUresult::ERROR_OUT_OF_MEMORY
}

/// Refuses a function whose memory cannot be accounted, if there is a limit.
pub(crate) fn refuse(role: Role, real: impl FnOnce() -> CUresult) -> CUresult {
    let tenant = tenant_or_return!(real());
    if !process::devices(tenant).any_limited(tenant) {
        return real();
    }
    tenant.count(if role == Role::Managed { Reason::ManagedRefused } else { Reason::Unsupported });
    CUresult::ERROR_NOT_SUPPORTED
}

/// Passes and counts a function whose memory is accounted elsewhere or not at all.
pub(crate) fn pass(role: Role, real: impl FnOnce() -> CUresult) -> CUresult {
    let tenant = tenant_or_return!(real());
    tenant.count(uncharged(role));
    real()
}

fn uncharged(role: Role) -> Reason {
    match role {
        Role::External => Reason::Imported,
        _ => Reason::GrownUnseen,
    }
}
