//! Initialisation, errors, versions.
//!
//! Users are counted: the library is attached to the machine from the first `nvmlInit` to the last
//! `nvmlShutdown`. That `nvmlInit` is a *start*. It takes `CGPU_SIM_NVML_INIT_MS`, its line in the
//! journal has the number of starts so far (`starts`), and `CGPU_SIM_FAULT` applies to starts only.
//! Unlike the driver, the library survives a fork: the child attaches at its next call, which is
//! not a start.

use std::sync::{Arc, Mutex, PoisonError};

use cgpu_abi::nvml_types::*;
use cgpu_sim::Machine;

use crate::answer::{Answer, Failure, INSUFFICIENT_SIZE, NOT_FOUND, UNINITIALIZED};
use crate::argument::{Out, Received, values};
use crate::exports::WATCH;
use crate::version;

values!(nvmlDevice_t);

static LIBRARY: Mutex<Library> = Mutex::new(Library { users: 0, starts: 0, machine: None });

struct Library {
    users: usize,
    /// Number of starts by this process and the processes that it was forked from.
    starts: u64,
    machine: Option<Arc<Machine>>,
}

fn attach() -> Answer<Arc<Machine>> {
    let machine = Machine::from_environment().map_err(|error| {
        eprintln!("cgpu-sim: {error}");
        Failure::from(error)
    })?;
    Ok(Arc::new(machine))
}

/// Returns whether the library has users, so that another `nvmlInit` is not a start.
pub(crate) fn is_started() -> bool {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner).users > 0
}

/// Returns the machine, if the library has users.
pub(crate) fn machine() -> Answer<Arc<Machine>> {
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    match library.machine.take() {
        None => Err(UNINITIALIZED),
        Some(machine) if machine.is_inherited() => {
            // The parent's machine: its destructor must not run here.
            core::mem::forget(machine);
            Ok(Arc::clone(library.machine.insert(attach()?)))
        }
        Some(machine) => Ok(Arc::clone(library.machine.insert(machine))),
    }
}

pub(crate) fn nvmlInitWithFlags(_flags: c_uint) -> Answer {
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    if library.machine.is_none() {
        library.starts += 1;
        WATCH.note("starts", || library.starts);
        let machine = attach()?;
        machine.spend(machine.figures().attaching);
        library.machine = Some(machine);
    }
    library.users += 1;
    Ok(())
}

pub(crate) fn nvmlInit_v2() -> Answer {
    nvmlInitWithFlags(0)
}
pub(crate) use nvmlInit_v2 as nvmlInit;

pub(crate) fn nvmlShutdown() -> Answer {
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    library.users = library.users.checked_sub(1).ok_or(UNINITIALIZED)?;
    if library.users == 0 {
        library.machine = None;
    }
    Ok(())
}

pub(crate) fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    result.description().unwrap_or(c"Unknown Error").as_ptr()
}

/// Writes a text, if it fits.
pub(crate) fn put_text(to: Out<c_char>, length: c_uint, text: &str) -> Answer {
    to.required()?;
    if (length as usize) <= text.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    to.put_text(text, length as usize)?;
    Ok(())
}

pub(crate) fn nvmlSystemGetDriverVersion(version: Out<c_char>, length: c_uint) -> Answer {
    machine()?;
    put_text(version, length, version::release(*version::CUDA))
}

/// NVML's version is CUDA's major version and the driver's.
pub(crate) fn nvmlSystemGetNVMLVersion(version: Out<c_char>, length: c_uint) -> Answer {
    machine()?;
    let cuda = *version::CUDA;
    put_text(version, length, &format!("{}.{}", cuda / 1000, version::release(cuda)))
}

pub(crate) fn nvmlSystemGetCudaDriverVersion_v2(cuda_driver_version: Out<c_int>) -> Answer {
    machine()?;
    cuda_driver_version.put(version::CUDA.cast_signed())?;
    Ok(())
}
pub(crate) use nvmlSystemGetCudaDriverVersion_v2 as nvmlSystemGetCudaDriverVersion;

/// Writes the process's first argument, truncated to fit.
pub(crate) fn nvmlSystemGetProcessName(pid: c_uint, name: Out<c_char>, length: c_uint) -> Answer {
    machine()?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NOT_FOUND)?;
    let program = line
        .split(|byte| *byte == 0)
        .next()
        .filter(|program| !program.is_empty())
        .ok_or(NOT_FOUND)?;
    name.put_text(&String::from_utf8_lossy(program), length as usize)?;
    Ok(())
}
