//! What a hook answers where it accounts nothing: the driver's answer, or a refusal.

use cgpu_abi::Role;
use cgpu_abi::types::CUresult;
use cgpu_memory::{Denied, Reason};
use tracing::warn;

use crate::process;

/// The tenant, for a hook that takes memory. Returns from the hook where there is none: with
/// `$pass`, the driver's answer, where nothing is limited, and with a refusal where the start was
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

/// What a hook answers while the start is refused: the driver that the program sees has not been
/// initialised.
pub(super) const NOT_STARTED: CUresult = CUresult::ERROR_NOT_INITIALIZED;

/// What a hook answers where a limit refuses memory.
#[cold]
pub(super) fn denied(denied: Denied) -> CUresult {
    let Denied { reason, wanted, used, limit } = denied;
    warn!(wanted = wanted.0, used = used.0, limit = limit.0, "refused: {reason:?}");
    CUresult::ERROR_OUT_OF_MEMORY
}

/// A function that takes memory which is not accounted yet: refused where there is a limit to keep.
pub(crate) fn refuse(role: Role, real: impl FnOnce() -> CUresult) -> CUresult {
    let tenant = tenant_or_return!(real());
    if !process::devices(tenant).any_limited(tenant) {
        return real();
    }
    tenant.count(if role == Role::Managed { Reason::ManagedRefused } else { Reason::Unsupported });
    CUresult::ERROR_NOT_SUPPORTED
}

/// A function whose memory is accounted elsewhere or not at all: passed, and counted.
pub(crate) fn pass(role: Role, real: impl FnOnce() -> CUresult) -> CUresult {
    let tenant = tenant_or_return!(real());
    tenant.count(uncharged(role));
    real()
}

/// Why a function that is passed charges nothing.
fn uncharged(role: Role) -> Reason {
    match role {
        Role::External => Reason::Imported,
        _ => Reason::GrownUnseen,
    }
}
