//! Checkpoints of processes by their ids. A process can checkpoint any process that has initialised
//! the driver on these GPUs, itself included.
//!
//! A locked process blocks in its calls. A checkpointed one has no memory on any GPU: its bytes
//! stay in the process ([`cgpu_sim::Machine::checkpoint_process`]). These functions need no
//! initialised driver and never block, so that a process can unlock itself. They do nothing by
//! halves, so no process is ever in the state `FAILED`.

use cgpu_abi::driver_index as row;
use cgpu_abi::types::*;
use cgpu_sim::Machine;
use cgpu_sim::Nanos;
use cgpu_sim::machine::Progress;

use crate::answer::{Answer, Failure, INVALID_VALUE, NOT_INITIALIZED, NOT_READY, NOT_SUPPORTED};
use crate::argument::{In, Out, Received, values};
use crate::call::Call;
use crate::driver::Driver;
use crate::version::CUDA;

values!(CUcheckpointOperationHandle);

/// The first version that lets programs store the GPU's contents themselves.
const CUSTOM_STORAGE: u32 = 13_040;

/// Returns whether a row is one of these functions.
pub(crate) fn is_checkpoint_call(position: usize) -> bool {
    const ROWS: [usize; 7] = [
        row::cuCheckpointProcessRestore,
        row::cuCheckpointProcessCheckpoint,
        row::cuCheckpointOperationComplete,
        row::cuCheckpointProcessGetRestoreThreadId,
        row::cuCheckpointProcessGetState,
        row::cuCheckpointProcessLock,
        row::cuCheckpointProcessUnlock,
    ];
    ROWS.contains(&position)
}

/// Calls `act` with this process's machine, or with one that is opened for the call.
fn with<T>(pid: c_int, act: impl FnOnce(&Machine, u32) -> Answer<T>) -> Answer<T> {
    let pid = u32::try_from(pid).map_err(|_| INVALID_VALUE)?;
    match Driver::get() {
        Some(driver) if driver.machine.is_inherited() => Err(NOT_INITIALIZED),
        Some(driver) => act(&driver.machine, pid),
        None => act(&Machine::from_environment().map_err(Failure::from)?, pid),
    }
}

/// Refuses a pointer for custom storage: the GPU's contents cannot be given to another process
/// here.
fn refuse_custom_storage(out: usize) -> Answer {
    match out {
        0 => Ok(()),
        _ if *CUDA < CUSTOM_STORAGE => Err(INVALID_VALUE),
        _ => Err(NOT_SUPPORTED),
    }
}

fn require(condition: bool) -> Answer {
    if condition { Ok(()) } else { Err(INVALID_VALUE) }
}

pub(crate) fn cuCheckpointProcessLock(
    _call: &Call,
    pid: c_int,
    args: Out<CUcheckpointLockArgs>,
) -> Answer {
    let args = if args.is_null() { CUcheckpointLockArgs::default() } else { args.read()? };
    require(args.reserved0 == 0 && args.reserved1 == [0; 7])?;
    let timeout = (args.timeout_ms != 0).then(|| Nanos::from_millis(u64::from(args.timeout_ms)));
    let locked = with(pid, |machine, pid| Ok(machine.lock_process(pid, timeout)?))?;
    if locked { Ok(()) } else { Err(NOT_READY) }
}

pub(crate) fn cuCheckpointProcessCheckpoint(
    _call: &Call,
    pid: c_int,
    args: Out<CUcheckpointCheckpointArgs>,
) -> Answer {
    if !args.is_null() {
        let args = args.read()?;
        require(args.reserved == [0; 56])?;
        refuse_custom_storage(args.custom_storage_info_out)?;
    }
    with(pid, |machine, pid| Ok(machine.checkpoint_process(pid)?))
}

/// Checks the GPUs on which a process is to be restored: each must map to itself. Migration to
/// another GPU is not simulated.
fn check_pairs(machine: &Machine, pid: u32, pairs: &[CUcheckpointGpuPair]) -> Answer {
    let uuid = |gpu: usize| machine.gpus()[gpu].uuid(gpu);
    for gpu in machine.checkpointed_gpus(pid)? {
        let pair =
            pairs.iter().find(|pair| pair.old_uuid.bytes == uuid(gpu)).ok_or(INVALID_VALUE)?;
        let mut all = 0..machine.gpus().len();
        let to = all.find(|&to| uuid(to) == pair.new_uuid.bytes).ok_or(INVALID_VALUE)?;
        require(machine.gpus()[to].model.key == machine.gpus()[gpu].model.key)?;
        if to != gpu {
            return Err(NOT_SUPPORTED);
        }
    }
    Ok(())
}

pub(crate) fn cuCheckpointProcessRestore(
    _call: &Call,
    pid: c_int,
    args: Out<CUcheckpointRestoreArgs>,
) -> Answer {
    let mut pairs = Vec::new();
    if !args.is_null() {
        let args = args.read()?;
        require(args.reserved == [0; 40] && args.padding0 == 0)?;
        refuse_custom_storage(args.custom_storage_info_out)?;
        // SAFETY: the program gives the number of pairs; they are valid for the call.
        let given: In<CUcheckpointGpuPair> = unsafe { In::received(args.gpu_pairs) };
        pairs = given.read_all(crate::driver::count(args.gpu_pairs_count)?)?;
    }
    with(pid, |machine, pid| {
        if !pairs.is_empty() && machine.progress(pid)? == Progress::Checkpointed {
            check_pairs(machine, pid, &pairs)?;
        }
        Ok(machine.restore_process(pid)?)
    })
}

pub(crate) fn cuCheckpointProcessUnlock(
    _call: &Call,
    pid: c_int,
    args: Out<CUcheckpointUnlockArgs>,
) -> Answer {
    if !args.is_null() {
        require(args.read()?.reserved == [0; 8])?;
    }
    with(pid, |machine, pid| Ok(machine.unlock_process(pid)?))
}

/// Reports a process that is being locked as running.
pub(crate) fn cuCheckpointProcessGetState(
    _call: &Call,
    pid: c_int,
    state: Out<CUprocessState>,
) -> Answer {
    let state = state.required()?;
    state.put(match with(pid, |machine, pid| Ok(machine.progress(pid)?))? {
        Progress::Running | Progress::Locking => CU_PROCESS_STATE_RUNNING,
        Progress::Locked => CU_PROCESS_STATE_LOCKED,
        Progress::Checkpointed => CU_PROCESS_STATE_CHECKPOINTED,
    })?;
    Ok(())
}

/// Names the process's first thread: no thread takes part in a restore here.
pub(crate) fn cuCheckpointProcessGetRestoreThreadId(
    _call: &Call,
    pid: c_int,
    tid: Out<c_int>,
) -> Answer {
    let tid = tid.required()?;
    with(pid, |machine, pid| Ok(machine.progress(pid)?))?;
    tid.put(pid)?;
    Ok(())
}

/// Always fails: custom storage is not simulated, so there is none to complete.
pub(crate) fn cuCheckpointOperationComplete(
    _call: &Call,
    _handle: CUcheckpointOperationHandle,
) -> Answer {
    Err(INVALID_VALUE)
}
