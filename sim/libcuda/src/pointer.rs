//! Addresses: the allocation that contains one, and its attributes.

use core::ptr;

use cgpu_abi::types::*;
use cgpu_sim::machine::{
    Access, Allocation, MappedRange, Origin, PhysicalPlace, Side as MachineSide,
};

use crate::answer::{Answer, INVALID_VALUE, NOT_FOUND};
use crate::argument::{Out, Received};
use crate::call::Call;
use crate::driver::{Driver, count, lock};
use crate::host::Kind;
use crate::location;
use crate::pool;
use crate::share::handle_types;
use crate::visible::NO_GPU;

#[derive(Clone, Copy)]
struct AddressInfo {
    first: u64,
    bytes: u64,
    context: CUcontext,
    gpu: usize,
    memory: CUmemorytype,
    /// The address on the host, if it has one.
    host: Option<usize>,
    managed: bool,
    /// The allocation's unique number.
    buffer: u64,
    mapped: bool,
    /// The pool that it was allocated from.
    pool: CUmemoryPool,
    /// Whether an IPC handle can be created for it.
    legacy_ipc: bool,
    /// Its locality domain; -1 if it is in none.
    domain: c_int,
    /// The types of handles that it can be exported as.
    handle_types: CUmemAllocationHandleType,
    access: CUmemAccess_flags,
}

impl AddressInfo {
    fn device(first: u64, bytes: u64, gpu: usize) -> Self {
        Self {
            first,
            bytes,
            context: CUcontext::NULL,
            gpu,
            memory: CU_MEMORYTYPE_DEVICE,
            host: None,
            managed: false,
            buffer: first,
            mapped: false,
            pool: CUmemoryPool::NULL,
            legacy_ipc: false,
            domain: -1,
            handle_types: CU_MEM_HANDLE_TYPE_NONE,
            access: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        }
    }

    fn allocation(driver: &Driver, allocation: &Allocation) -> Self {
        let mut info = Self::device(allocation.address, allocation.size.0, allocation.gpu);
        match allocation.origin {
            Origin::Context(its) | Origin::Opened(its) => {
                let owner = driver
                    .contexts
                    .find(|context| context.id == its && context.multiprocessors.is_none());
                info.context = owner.map(|(handle, _)| CUcontext(handle)).unwrap_or_default();
                info.legacy_ipc = matches!(allocation.origin, Origin::Context(_));
            }
            // Belongs to no context.
            Origin::Pool(pool) | Origin::Imported(pool) => {
                info.pool = pool::handle_of(driver, pool);
                if let Some(pool) = driver.pools.get(info.pool.0) {
                    info.handle_types = pool.handle_types;
                    info.domain = location::ordinal(pool.site);
                }
            }
        }
        info
    }

    fn mapping(driver: &Driver, range: &MappedRange) -> Self {
        let mut info = Self::device(range.address, range.size.0, 0);
        info.mapped = true;
        let side = match range.place {
            PhysicalPlace::On(site) => {
                info.gpu = site.gpu;
                info.domain = location::ordinal(site);
                MachineSide::Gpu(site.gpu)
            }
            PhysicalPlace::Host => {
                info.memory = CU_MEMORYTYPE_HOST;
                MachineSide::Host
            }
            PhysicalPlace::Team => {
                // The first of its GPUs that has access.
                let reaches = |&gpu: &usize| {
                    let access = driver.machine.access(range.address, MachineSide::Gpu(gpu));
                    access.is_ok_and(|access| access != Access::None)
                };
                info.gpu = (0..driver.machine.gpus().len()).find(reaches).unwrap_or_default();
                MachineSide::Gpu(info.gpu)
            }
        };
        info.handle_types = handle_types(range.sendable);
        info.access = match driver.machine.access(range.address, side) {
            Ok(Access::ReadWrite) => CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            Ok(Access::Read) => CU_MEM_ACCESS_FLAGS_PROT_READ,
            _ => CU_MEM_ACCESS_FLAGS_PROT_NONE,
        };
        info
    }
}

/// Returns the properties of an address; `None` if the driver does not know it.
fn info(driver: &Driver, address: CUdeviceptr) -> Answer<Option<AddressInfo>> {
    if let Some(allocation) = driver.machine.allocation(address) {
        return Ok(Some(AddressInfo::allocation(driver, &allocation)));
    }
    if let Some((first, bytes, context)) = lock(&driver.buffers).find(address) {
        let gpu = driver.context(context)?.gpu;
        return Ok(Some(AddressInfo { context, ..AddressInfo::device(first, bytes, gpu) }));
    }
    if let Some(range) = driver.machine.mapped(address) {
        return Ok(Some(AddressInfo::mapping(driver, &range)));
    }
    let place = count(address)?;
    Ok(lock(&driver.host).find(place).map(|range| {
        let managed = range.kind == Kind::Managed;
        let gpu = driver.contexts.get(range.context_handle.0).map_or(0, |context| context.gpu);
        AddressInfo {
            context: range.context_handle,
            memory: if managed { CU_MEMORYTYPE_DEVICE } else { CU_MEMORYTYPE_HOST },
            host: Some(place),
            managed,
            ..AddressInfo::device(range.first as u64, range.bytes as u64, gpu)
        }
    }))
}

pub(crate) fn cuMemGetAddressRange_v2(
    call: &Call,
    pbase: Out<CUdeviceptr>,
    psize: Out<usize>,
    dptr: CUdeviceptr,
) -> Answer {
    let driver = call.driver()?;
    driver.current()?;
    let info = info(driver, dptr)?.ok_or(NOT_FOUND)?;
    pbase.put_if_not_null(info.first);
    psize.put_if_not_null(count(info.bytes)?);
    Ok(())
}

/// Writes one attribute. Returns false if the address does not have it.
fn put(
    driver: &Driver,
    data: Out<c_void>,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
    info: Option<AddressInfo>,
) -> Answer<bool> {
    let Some(info) = info else { return Ok(false) };
    match attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT => data.cast::<CUcontext>().put(info.context)?,
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => data.cast::<CUmemorytype>().put(info.memory)?,
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER => data.cast::<CUdeviceptr>().put(address)?,
        CU_POINTER_ATTRIBUTE_HOST_POINTER => match info.host {
            Some(host) => data.cast::<*mut c_void>().put(ptr::with_exposed_provenance_mut(host))?,
            None => return Ok(false),
        },
        CU_POINTER_ATTRIBUTE_BUFFER_ID => data.cast::<u64>().put(info.buffer)?,
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        | CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => data.cast::<u8>().put(0)?,
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
            data.cast::<u8>().put(u8::from(info.legacy_ipc))?;
        }
        CU_POINTER_ATTRIBUTE_IS_MANAGED => data.cast::<u8>().put(u8::from(info.managed))?,
        CU_POINTER_ATTRIBUTE_MAPPED => data.cast::<u8>().put(u8::from(info.mapped))?,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
            data.cast::<c_int>().put(driver.device(info.gpu))?;
        }
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR | CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => {
            data.cast::<CUdeviceptr>().put(info.first)?;
        }
        CU_POINTER_ATTRIBUTE_RANGE_SIZE | CU_POINTER_ATTRIBUTE_MAPPING_SIZE => {
            data.cast::<usize>().put(count(info.bytes)?)?;
        }
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => {
            data.cast::<u64>().put(info.handle_types.into())?
        }
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
            data.cast::<CUmemAccess_flags>().put(info.access)?;
        }
        CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL => data.cast::<c_int>().put(info.domain)?,
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => data.cast::<CUmemoryPool>().put(info.pool)?,
        _ => return Err(INVALID_VALUE),
    }
    Ok(true)
}

pub(crate) fn cuPointerGetAttribute(
    call: &Call,
    data: Out<c_void>,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> Answer {
    let driver = call.driver()?;
    data.required()?;
    let info = info(driver, address)?;
    if put(driver, data, attribute, address, info)? { Ok(()) } else { Err(INVALID_VALUE) }
}

/// Like the single query, except that a missing attribute reads as NULL or 0 and is not an error.
pub(crate) fn cuPointerGetAttributes(
    call: &Call,
    num_attributes: c_uint,
    attributes: Out<CUpointer_attribute>,
    data: Out<*mut c_void>,
    address: CUdeviceptr,
) -> Answer {
    let driver = call.driver()?;
    let number = count(num_attributes)?;
    let info = info(driver, address)?;
    for (attribute, to) in attributes.read_all(number)?.into_iter().zip(data.read_all(number)?) {
        // SAFETY: the program passes an address for each attribute, with space for its type.
        let to: Out<c_void> = unsafe { Received::received(to) };
        to.required()?;
        if !put(driver, to, attribute, address, info)? {
            match attribute {
                CU_POINTER_ATTRIBUTE_MEMORY_TYPE | CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
                    to.cast::<c_uint>().put(0)?
                }
                CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => to.cast::<c_int>().put(NO_GPU)?,
                CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL => to.cast::<c_int>().put(-1)?,
                CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
                | CU_POINTER_ATTRIBUTE_IS_MANAGED
                | CU_POINTER_ATTRIBUTE_MAPPED
                | CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
                | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
                | CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => to.cast::<u8>().put(0)?,
                _ => to.cast::<u64>().put(0)?,
            }
        }
    }
    Ok(())
}

/// Accepts the only attribute that can be set, whose effect is permanent here.
pub(crate) fn cuPointerSetAttribute(
    call: &Call,
    value: crate::argument::In<c_void>,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> Answer {
    let driver = call.driver()?;
    value.required()?;
    let known = info(driver, address)?.is_some();
    if known && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS { Ok(()) } else { Err(INVALID_VALUE) }
}
