//! What each hooked function does: one file for each noun of the driver, each function under the driver's name for it.
//!
//! All of them ask the books ([`cgpu_memory`]) and the real function, in the order that the case needs; none decides anything.
//! Every hook without a limit is the real call.
//!
//! # Safety
//!
//! A hook may be called as the driver's function of its name may: its pointers are what that function wants them to be, null where it
//! allows null. Whoever calls is the program itself (`entry.rs`), and a hook looks at nothing that the driver would not look at.

/// The tenant, for a hook that takes memory. Returns from the hook where there is none: with `$pass`, the driver's answer, where
/// nothing is limited, and with a refusal where the start was refused.
macro_rules! tenant_or_return {
    ($pass:expr) => {
        match $crate::process::accounting() {
            $crate::process::Accounting::On(tenant) => tenant,
            $crate::process::Accounting::Pass => return $pass,
            $crate::process::Accounting::Refused => return $crate::hooks::NOT_STARTED,
        }
    };
}

mod array;
mod capture;
mod checkpoint;
mod context;
mod copy;
mod device;
mod endpoint;
mod graph;
mod green;
mod init;
mod ipc;
mod launch;
mod managed;
mod memory;
mod module;
mod multicast;
mod nvml;
mod physical;
mod pool;
mod proc_address;
mod refused;
mod sparse;
mod synchronise;

pub(crate) use array::*;
pub(crate) use capture::*;
pub(crate) use checkpoint::*;
pub(crate) use context::*;
pub(crate) use copy::*;
pub(crate) use device::*;
pub(crate) use endpoint::*;
pub(crate) use graph::*;
pub(crate) use green::*;
pub(crate) use init::*;
pub(crate) use ipc::*;
pub(crate) use launch::*;
pub(crate) use managed::*;
pub(crate) use memory::*;
pub(crate) use module::*;
pub(crate) use multicast::{
    cuMulticastBindAddr, cuMulticastBindAddr_v2, cuMulticastBindMem, cuMulticastBindMem_v2,
    cuMulticastCreate, cuMulticastUnbind,
};
pub(crate) use nvml::*;
pub(crate) use physical::*;
pub(crate) use pool::*;
pub(crate) use proc_address::*;
pub(crate) use sparse::*;
pub(crate) use synchronise::*;

use cgpu_abi::Role;
use cgpu_abi::types::CUresult;
use cgpu_memory::Reason;

use crate::process;

/// What a hook answers while the start is refused: the driver that the program sees has not been initialised.
const NOT_STARTED: CUresult = CUresult::ERROR_NOT_INITIALIZED;

/// A function that takes memory which is not accounted yet: refused where there is a limit to keep.
pub(crate) fn refuse(role: Role, real: impl FnOnce() -> CUresult) -> CUresult {
    let tenant = tenant_or_return!(real());
    if !process::devices(tenant).any_limited(tenant) {
        return real();
    }
    tenant.count(if role == Role::Managed { Reason::ManagedRefused } else { Reason::Unsupported });
    CUresult::ERROR_NOT_SUPPORTED
}

/// A function whose memory is on other books than ours, or on none: passed, and counted.
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
