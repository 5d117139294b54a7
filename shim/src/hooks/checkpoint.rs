//! Checkpoints of processes: memory that is moved off the GPUs is refunded, and charged again
//! before it returns.

use cgpu_abi::Role;
use cgpu_abi::types::*;

use super::answer::refuse;
use crate::driver;
use crate::process;

/// Moves the process's memory to the host.
pub(crate) unsafe fn cuCheckpointProcessCheckpoint(
    pid: c_int,
    arguments: *mut CUcheckpointCheckpointArgs,
) -> CUresult {
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuCheckpointProcessCheckpoint(pid, arguments) };
    if let (CUresult::SUCCESS, Some((tenant, pid))) =
        (answer, process::tenant().zip(u32::try_from(pid).ok()))
    {
        tenant.checkpoints().checkpointed(pid);
    }
    answer
}

/// Charges the memory again; refused if it does not fit. A restore on other GPUs is always refused,
/// because the process would go on accounting for the former ones.
pub(crate) unsafe fn cuCheckpointProcessRestore(
    pid: c_int,
    arguments: *mut CUcheckpointRestoreArgs,
) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuCheckpointProcessRestore(pid, arguments) };
    let tenant = tenant_or_return!(call());
    // SAFETY: null, or the program's own record, which the driver would read as well.
    if unsafe { moves(arguments) } {
        return refuse(Role::Allocates, call);
    }
    let Ok(id) = u32::try_from(pid) else { return call() };
    let Ok(restoring) = tenant.checkpoints().begin_restore(id) else {
        return CUresult::ERROR_OUT_OF_MEMORY;
    };
    let answer = call();
    if answer == CUresult::SUCCESS || !is_checkpointed(pid) {
        restoring.restored();
    }
    answer
}

/// Returns whether the driver still has the process's memory on the host. Another process may have
/// restored it, or it may have exited.
fn is_checkpointed(pid: c_int) -> bool {
    // SAFETY: the state is writable.
    let state = driver::get(|state| unsafe { driver::cuCheckpointProcessGetState(pid, state) });
    state == Ok(CU_PROCESS_STATE_CHECKPOINTED)
}

/// Returns whether one GPU is to replace another.
///
/// # Safety
///
/// The record is null or readable, and so are the pairs that it refers to.
unsafe fn moves(arguments: *const CUcheckpointRestoreArgs) -> bool {
    if arguments.is_null() {
        return false;
    }
    // SAFETY: guaranteed by the caller.
    let arguments = unsafe { arguments.read() };
    if arguments.gpu_pairs.is_null() {
        return false;
    }
    (0..arguments.gpu_pairs_count).any(|place| {
        // SAFETY: below the number of pairs, all of which the caller guarantees.
        let at = unsafe { arguments.gpu_pairs.add(place as usize) };
        // SAFETY: as above.
        let pair = unsafe { at.read() };
        pair.old_uuid.bytes != pair.new_uuid.bytes
    })
}
