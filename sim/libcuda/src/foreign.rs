//! A simulated graphics interface: creates the memory and semaphores that this driver imports.
//!
//! No Vulkan runs on a simulated GPU, so this takes its place. It is a private table, as real
//! drivers have for their own runtimes: `cuGetExportTable` returns it for [`NAME`]. This adds no
//! symbol, works through a shim that passes private tables on, and needs no context. In C:
//!
//! ```c
//! struct foreign {
//!     size_t bytes;                                                     /* of the table */
//!     CUresult (*allocate)(CUdevice, uint64_t bytes, uint64_t *memory); /* vkAllocateMemory */
//!     CUresult (*descriptor)(uint64_t memory, int *fd);                 /* vkGetMemoryFdKHR */
//!     CUresult (*free)(uint64_t memory);                                /* vkFreeMemory */
//!     /* vkCreateSemaphore: binary, or a timeline if `counts` */
//!     CUresult (*semaphore)(int counts, uint64_t *semaphore);
//!     CUresult (*semaphore_descriptor)(uint64_t semaphore, int *fd);    /* vkGetSemaphoreFdKHR */
//!     CUresult (*signal)(uint64_t semaphore, uint64_t value);           /* vkSignalSemaphore */
//!     CUresult (*value)(uint64_t semaphore, uint64_t *value);  /* vkGetSemaphoreCounterValue */
//!     CUresult (*destroy)(uint64_t semaphore);                          /* vkDestroySemaphore */
//! };
//! ```
//!
//! Its memory is allocated on the GPU in multiples of 2 MiB, and charged to the calling process.
//! The other interface accesses the bytes by mapping a descriptor of the memory. Each call for a
//! descriptor returns a new one, and an import takes over the one that it is given.

use core::ffi::c_void;
use std::os::fd::IntoRawFd;

use cgpu_abi::types::*;
use cgpu_sim::Bytes;
use cgpu_sim::machine::{PhysicalId, PhysicalPlace, SemaphoreId};

use crate::answer::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_INITIALIZED};
use crate::argument::{Out, Received};
use crate::driver::Driver;
use crate::physical::GRANULARITY;

/// Identifier of the table.
pub(crate) const NAME: CUuuid = CUuuid { bytes: *b"cgpu-sim foreign" };

#[repr(C)]
pub(crate) struct Foreign {
    bytes: usize,
    allocate: unsafe extern "C" fn(CUdevice, u64, *mut u64) -> CUresult,
    descriptor: unsafe extern "C" fn(u64, *mut c_int) -> CUresult,
    free: unsafe extern "C" fn(u64) -> CUresult,
    semaphore: unsafe extern "C" fn(c_int, *mut u64) -> CUresult,
    semaphore_descriptor: unsafe extern "C" fn(u64, *mut c_int) -> CUresult,
    signal: unsafe extern "C" fn(u64, u64) -> CUresult,
    value: unsafe extern "C" fn(u64, *mut u64) -> CUresult,
    destroy: unsafe extern "C" fn(u64) -> CUresult,
}

static FOREIGN: Foreign = Foreign {
    bytes: size_of::<Foreign>(),
    allocate,
    descriptor,
    free,
    semaphore,
    semaphore_descriptor,
    signal,
    value,
    destroy,
};

pub(crate) fn table() -> *const c_void {
    (&raw const FOREIGN).cast()
}

fn driver() -> Answer<&'static Driver> {
    let driver = Driver::get().ok_or(NOT_INITIALIZED)?;
    if driver.machine.is_inherited() { Err(NOT_INITIALIZED) } else { Ok(driver) }
}

fn answer(result: Answer) -> CUresult {
    match result {
        Ok(()) => CUresult::SUCCESS,
        Err(failure) => failure.0,
    }
}

/// Defines a function of the table; its arguments are converted as in `exports`.
macro_rules! entries {
    ($(
        fn $name:ident($driver:ident, $($argument:ident: $type:ty => $received:ty),*) $body:block
    )*) => {$(
        unsafe extern "C" fn $name($($argument: $type),*) -> CUresult {
            answer((|| -> Answer {
                let $driver = driver()?;
                // SAFETY: a pointer is NULL or valid for the value that it is named after: the
                // table's contract, by the documentation of this module.
                $(let $argument: $received = unsafe { Received::received($argument) };)*
                $body
            })())
        }
    )*};
}

fn semaphore_of(driver: &Driver, handle: u64) -> Answer<SemaphoreId> {
    let handle = usize::try_from(handle).map_err(|_| INVALID_HANDLE)?;
    Ok(*driver.foreign.get(handle).ok_or(INVALID_HANDLE)?)
}

entries! {
    fn allocate(
        driver,
        device: CUdevice => CUdevice,
        bytes: u64 => u64,
        memory: *mut u64 => Out<u64>
    ) {
        let place = PhysicalPlace::On(driver.gpu(device)?.into());
        let whole = bytes.checked_next_multiple_of(GRANULARITY).ok_or(INVALID_VALUE)?;
        memory.required()?.put(driver.machine.create_physical(place, Bytes(whole), true)?.get())?;
        Ok(())
    }

    fn descriptor(driver, memory: u64 => u64, fd: *mut c_int => Out<c_int>) {
        fd.required()?.put(driver.machine.export_physical(PhysicalId::of(memory))?.into_raw_fd())?;
        Ok(())
    }

    fn free(driver, memory: u64 => u64) {
        driver.machine.release_physical(PhysicalId::of(memory))?;
        Ok(())
    }

    fn semaphore(driver, counts: c_int => c_int, semaphore: *mut u64 => Out<u64>) {
        let semaphore = semaphore.required()?;
        semaphore.put(driver.foreign.add(driver.machine.create_semaphore(counts != 0)?) as u64)?;
        Ok(())
    }

    fn semaphore_descriptor(driver, semaphore: u64 => u64, fd: *mut c_int => Out<c_int>) {
        let id = semaphore_of(driver, semaphore)?;
        fd.required()?.put(driver.machine.export_semaphore(id)?.into_raw_fd())?;
        Ok(())
    }

    fn signal(driver, semaphore: u64 => u64, value: u64 => u64) {
        driver.machine.signal_now(semaphore_of(driver, semaphore)?, value)?;
        Ok(())
    }

    fn value(driver, semaphore: u64 => u64, value: *mut u64 => Out<u64>) {
        value.put(driver.machine.semaphore_value(semaphore_of(driver, semaphore)?)?)?;
        Ok(())
    }

    fn destroy(driver, semaphore: u64 => u64) {
        let id = semaphore_of(driver, semaphore)?;
        driver.foreign.remove(usize::try_from(semaphore).map_err(|_| INVALID_HANDLE)?);
        driver.machine.close_semaphore(id)?;
        Ok(())
    }
}
