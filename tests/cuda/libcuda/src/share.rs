//! Memory between processes by descriptors: physical memory, pools, and allocations of pools.

use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};

use cgpu_abi::types::*;

use crate::answer::{Answer, Failure, INVALID_VALUE, NOT_SUPPORTED};
use crate::argument::Out;
use crate::call::Call;
use crate::driver::Driver;
use crate::ipc::{pack, unpack};
use crate::physical::id_of;
use crate::pool::{self, Pool};

/// What an exported allocation of a pool begins with.
const MAGIC: u64 = u64::from_be_bytes(*b"cgpusimP");

/// Refuses all handles but descriptors.
fn check(kind: CUmemAllocationHandleType) -> Answer {
    match kind {
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => Ok(()),
        CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT | CU_MEM_HANDLE_TYPE_FABRIC => {
            Err(NOT_SUPPORTED)
        }
        _ => Err(INVALID_VALUE),
    }
}

/// Gives the program a descriptor: it is its to close.
fn give(to: Out<c_void>, descriptor: OwnedFd) -> Answer {
    to.cast::<c_int>().put(descriptor.into_raw_fd())?;
    Ok(())
}

/// Looks at a descriptor of the program's, given as a pointer or a number; it stays the program's.
fn borrow<T>(
    driver: &Driver,
    descriptor: usize,
    import: impl FnOnce(&Driver, BorrowedFd<'_>) -> Result<T, cgpu_sim::Error>,
) -> Answer<T> {
    let number = c_int::try_from(descriptor).map_err(|_| INVALID_VALUE)?;
    // SAFETY: asks whether the descriptor is open; changes nothing.
    if number < 0 || unsafe { libc::fcntl(number, libc::F_GETFD) } == -1 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: open, as was just seen, and the program does not close what it has given to a call that has not returned.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    import(driver, borrowed).map_err(Failure::from)
}

pub(crate) fn cuMemExportToShareableHandle(
    call: &Call,
    shareable_handle: Out<c_void>,
    handle: CUmemGenericAllocationHandle,
    handle_type: CUmemAllocationHandleType,
    flags: c_ulonglong,
) -> Answer {
    let driver = call.driver()?;
    let to = shareable_handle.required()?;
    check(handle_type)?;
    let (id, _) = id_of(driver, handle)?;
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    give(to, driver.machine.export_physical(id)?)
}

pub(crate) fn cuMemImportFromShareableHandle(
    call: &Call,
    handle: Out<CUmemGenericAllocationHandle>,
    os_handle: Out<c_void>,
    sh_handle_type: CUmemAllocationHandleType,
) -> Answer {
    let driver = call.driver()?;
    let handle = handle.required()?;
    check(sh_handle_type)?;
    let id = borrow(driver, os_handle.address(), |driver, fd| driver.machine.import_physical(fd))?;
    handle.put(id.get())?;
    Ok(())
}

/// A descriptor of the memory behind a range of mappings, for other interfaces: only `DMA_BUF` there is, and no card here has it.
pub(crate) fn cuMemGetHandleForAddressRange(
    call: &Call,
    handle: Out<c_void>,
    dptr: CUdeviceptr,
    size: usize,
    handle_type: CUmemRangeHandleType,
    _flags: c_ulonglong,
) -> Answer {
    let driver = call.driver()?;
    handle.required()?;
    let known = driver.machine.allocation(dptr).is_some() || driver.machine.mapped(dptr).is_some();
    if handle_type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || size == 0 || !known {
        return Err(INVALID_VALUE);
    }
    Err(NOT_SUPPORTED)
}

pub(crate) fn cuMemPoolExportToShareableHandle(
    call: &Call,
    handle_out: Out<c_void>,
    pool: CUmemoryPool,
    handle_type: CUmemAllocationHandleType,
    flags: c_ulonglong,
) -> Answer {
    let driver = call.driver()?;
    let to = handle_out.required()?;
    check(handle_type)?;
    let pool = pool::find(driver, pool)?;
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    give(to, driver.machine.export_pool(pool.id)?)
}

pub(crate) fn cuMemPoolImportFromShareableHandle(
    call: &Call,
    pool_out: Out<CUmemoryPool>,
    handle: Out<c_void>,
    handle_type: CUmemAllocationHandleType,
    flags: c_ulonglong,
) -> Answer {
    let driver = call.driver()?;
    let to = pool_out.required()?;
    check(handle_type)?;
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    let id = borrow(driver, handle.address(), |driver, fd| driver.machine.import_pool(fd))?;
    let card = driver.machine.pool_settings(id)?.card;
    let pool = Pool { id, card, handle_types: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, max_size: 0 };
    to.put(CUmemoryPool(driver.pools.add(pool)))?;
    Ok(())
}

pub(crate) fn cuMemPoolExportPointer(
    call: &Call,
    share_data_out: Out<CUmemPoolPtrExportData>,
    ptr: CUdeviceptr,
) -> Answer {
    let driver = call.driver()?;
    let to = share_data_out.required()?;
    let (pool, offer) = driver.machine.offer_pooled(ptr)?;
    to.put(CUmemPoolPtrExportData { reserved: pack(MAGIC, pool, &offer) })?;
    Ok(())
}

pub(crate) fn cuMemPoolImportPointer(
    call: &Call,
    ptr_out: Out<CUdeviceptr>,
    pool: CUmemoryPool,
    share_data: Out<CUmemPoolPtrExportData>,
) -> Answer {
    let driver = call.driver()?;
    let to = ptr_out.required()?;
    let id = pool::find(driver, pool)?.id;
    let (of, offer) = unpack(MAGIC, &share_data.read()?.reserved).ok_or(INVALID_VALUE)?;
    to.put(driver.machine.import_pooled(id, of, &offer)?)?;
    Ok(())
}
