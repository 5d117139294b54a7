//! Memory shared between processes by descriptors: physical memory, pools, and allocations of
//! pools.

use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};

use cgpu_abi::types::*;
use cgpu_sim::Bytes;
use cgpu_sim::machine::{ExportNumber, Offer, Sendable};

use crate::answer::{Answer, Failure, INVALID_VALUE, NOT_SUPPORTED};
use crate::argument::Out;
use crate::call::Call;
use crate::driver::Driver;
use crate::ipc::{pack, unpack};
use crate::physical::id_of;
use crate::pool::{self, Pool};

/// First eight bytes of an exported pool allocation.
const MAGIC: u64 = u64::from_be_bytes(*b"cgpusimP");

/// First eight bytes of a fabric handle.
const FABRIC: u64 = u64::from_be_bytes(*b"cgpusimF");

/// Size of a page of the host, in bytes.
const PAGE: u64 = 4096;

/// Returns how memory with these types of handles can be exported. Fabric handles are refused
/// unless `fabric`, that is, unless a switch connects the GPU.
pub(crate) fn sendable(types: CUmemAllocationHandleType, fabric: bool) -> Answer<Sendable> {
    let by_number = types & CU_MEM_HANDLE_TYPE_FABRIC != 0;
    pool::check_handle_types(if fabric { types & !CU_MEM_HANDLE_TYPE_FABRIC } else { types })?;
    Ok(Sendable { by_descriptor: types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0, by_number })
}

/// Returns the types of handles by which memory can be exported.
pub(crate) fn handle_types(sendable: Sendable) -> CUmemAllocationHandleType {
    let when = |can, kind| if can { kind } else { CU_MEM_HANDLE_TYPE_NONE };
    when(sendable.by_descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        | when(sendable.by_number, CU_MEM_HANDLE_TYPE_FABRIC)
}

fn has_fabric(driver: &Driver) -> bool {
    driver.machine.gpus().iter().any(cgpu_sim::GpuSpec::has_switch)
}

/// Refuses all handles except descriptors.
fn check(kind: CUmemAllocationHandleType) -> Answer {
    match kind {
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => Ok(()),
        CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT | CU_MEM_HANDLE_TYPE_FABRIC => {
            Err(NOT_SUPPORTED)
        }
        _ => Err(INVALID_VALUE),
    }
}

/// Writes a descriptor, which then belongs to the program.
fn put_descriptor(to: Out<c_void>, descriptor: OwnedFd) -> Answer {
    to.cast::<c_int>().put(descriptor.into_raw_fd())?;
    Ok(())
}

/// Imports a descriptor that is given as a pointer or as a number; it still belongs to the program.
fn borrow<T>(
    driver: &Driver,
    descriptor: usize,
    import: impl FnOnce(&Driver, BorrowedFd<'_>) -> Result<T, cgpu_sim::Error>,
) -> Answer<T> {
    let number = c_int::try_from(descriptor).map_err(|_| INVALID_VALUE)?;
    import(driver, self::descriptor(number).ok_or(INVALID_VALUE)?).map_err(Failure::from)
}

/// Borrows a descriptor of the program for the duration of a call; `None` if it is not open.
pub(crate) fn descriptor<'call>(number: c_int) -> Option<BorrowedFd<'call>> {
    // SAFETY: queries whether the descriptor is open; changes nothing.
    if number < 0 || unsafe { libc::fcntl(number, libc::F_GETFD) } == -1 {
        return None;
    }
    // SAFETY: the descriptor was open just now, and the program does not close it before the call
    // that it is passed to returns.
    Some(unsafe { BorrowedFd::borrow_raw(number) })
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
    let by_number = handle_type == CU_MEM_HANDLE_TYPE_FABRIC && has_fabric(driver);
    if !by_number {
        check(handle_type)?;
    }
    let (id, _) = id_of(driver, handle)?;
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    if by_number {
        let ExportNumber { export, serial } = driver.machine.number_physical(id)?;
        let offer = Offer { export, serial, offset: 0, size: Bytes::ZERO };
        to.cast::<[u8; 64]>().put(pack(FABRIC, 0, &offer))?;
        return Ok(());
    }
    put_descriptor(to, driver.machine.export_physical(id)?)
}

pub(crate) fn cuMemImportFromShareableHandle(
    call: &Call,
    handle: Out<CUmemGenericAllocationHandle>,
    os_handle: Out<c_void>,
    sh_handle_type: CUmemAllocationHandleType,
) -> Answer {
    let driver = call.driver()?;
    let handle = handle.required()?;
    if sh_handle_type == CU_MEM_HANDLE_TYPE_FABRIC && has_fabric(driver) {
        let bytes = os_handle.cast::<[u8; 64]>().read()?;
        let (_, offer) = unpack(FABRIC, &bytes).ok_or(INVALID_VALUE)?;
        let number = ExportNumber { export: offer.export, serial: offer.serial };
        handle.put(driver.machine.import_numbered(number)?.get())?;
        return Ok(());
    }
    check(sh_handle_type)?;
    let id = borrow(driver, os_handle.address(), |driver, fd| driver.machine.import_physical(fd))?;
    handle.put(id.get())?;
    Ok(())
}

/// Returns a descriptor that keeps the memory of a range of addresses, for other devices and
/// interfaces. Here it is a file without bytes.
pub(crate) fn cuMemGetHandleForAddressRange(
    call: &Call,
    handle: Out<c_void>,
    dptr: CUdeviceptr,
    size: usize,
    handle_type: CUmemRangeHandleType,
    flags: c_ulonglong,
) -> Answer {
    let driver = call.driver()?;
    let to = handle.required()?;
    let through_the_bus = c_ulonglong::from(CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE);
    if handle_type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
        || flags & !through_the_bus != 0
        || !dptr.is_multiple_of(PAGE)
        || !(size as u64).is_multiple_of(PAGE)
    {
        return Err(INVALID_VALUE);
    }
    if flags & through_the_bus != 0 {
        return Err(NOT_SUPPORTED);
    }
    put_descriptor(to, driver.machine.keep_range(dptr, Bytes(size as u64))?)
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
    put_descriptor(to, driver.machine.export_pool(pool.id)?)
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
    let site = driver.machine.pool_settings(id)?.site;
    let pool =
        Pool { id, site, handle_types: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, max_size: 0 };
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
