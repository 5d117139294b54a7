//! Checkpoints of processes: what is taken off the GPUs is uncharged, and is charged again
//! before it comes back.

use cgpu_abi::Role;
use cgpu_abi::types::*;

use super::answer::refuse;
use crate::driver;
use crate::process;

/// The process's memory is the host's then.
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

/// It takes again what it had: refused where that does not fit. On other GPUs than before it is
/// refused altogether, because the process would go on to account the ones it was on.
pub(crate) unsafe fn cuCheckpointProcessRestore(
    pid: c_int,
    arguments: *mut CUcheckpointRestoreArgs,
) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuCheckpointProcessRestore(pid, arguments) };
    let tenant = tenant_or_return!(call());
    // SAFETY: the program's own record, if there is one.
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

/// Whether the driver still has the process's memory on the host: another one may have restored it,
/// or it has died.
fn is_checkpointed(pid: c_int) -> bool {
    let mut state = 0;
    // SAFETY: writable.
    let answer = unsafe { driver::cuCheckpointProcessGetState(pid, &raw mut state) };
    answer == CUresult::SUCCESS && state == CU_PROCESS_STATE_CHECKPOINTED
}

/// Whether a GPU is to take another one's place.
///
/// # Safety
///
/// The record is null or readable, and so are the pairs that it names.
unsafe fn moves(arguments: *const CUcheckpointRestoreArgs) -> bool {
    if arguments.is_null() {
        return false;
    }
    // SAFETY: the caller vouches for it.
    let arguments = unsafe { arguments.read() };
    if arguments.gpu_pairs.is_null() {
        return false;
    }
    (0..arguments.gpu_pairs_count).any(|place| {
        // SAFETY: the caller vouches for as many pairs.
        let at = unsafe { arguments.gpu_pairs.add(place as usize) };
        // SAFETY: as above.
        let pair = unsafe { at.read() };
        pair.old_uuid.bytes != pair.new_uuid.bytes
    })
}
