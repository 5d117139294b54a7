//! Results of hooks that account nothing: the driver's answer, or a refusal.

use cgpu_abi::Role;
use cgpu_abi::types::CUresult;
use cgpu_memory::{Denied, Reason, Tenant};
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

/// Defines hooks by name, arguments and result, in which `$call` makes the program's call of the
/// driver. Several names may share arguments and result. With `$order`, the names come in pairs: a
/// null stream is the legacy one for the first, and the thread's own for the second; `$order`
/// makes the `Order` of a stream.
macro_rules! hooks {
    ($call:ident; $($($symbol:ident),+ ($($arguments:tt)*) => $result:expr;)*) => {
        $(hook! { $call [$($symbol)+] ($($arguments)*) $result })*
    };
    ($call:ident, $order:ident;
        $($legacy:ident, $per_thread:ident $arguments:tt => $result:expr;)*) => {$(
        hook! { $call $legacy $arguments {
            let $order = $crate::order::Order::legacy;
            $result
        } }
        hook! { $call $per_thread $arguments {
            let $order = $crate::order::Order::per_thread;
            $result
        } }
    )*};
}

macro_rules! hook {
    ($call:ident [$($symbol:ident)+] $arguments:tt $result:expr) => {
        $(hook! { $call $symbol $arguments $result })+
    };
    ($call:ident $symbol:ident ($($arg:ident: $type:ty),* $(,)?) $result:expr) => {
        pub(crate) unsafe fn $symbol($($arg: $type),*) -> CUresult {
            // SAFETY: the program's own call.
            let $call = || unsafe { driver::$symbol($($arg),*) };
            $result
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

/// Calls `record` if the driver's call has succeeded and memory is accounted. Returns its answer.
pub(super) fn recorded(answer: CUresult, record: impl FnOnce(&'static Tenant)) -> CUresult {
    if let (CUresult::SUCCESS, Some(tenant)) = (answer, process::tenant()) {
        record(tenant);
    }
    answer
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
