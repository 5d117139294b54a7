//! What an address is: its allocation, and its attributes.

use core::ptr;

use cgpu_abi::types::*;

use crate::answer::{Answer, INVALID_VALUE, NOT_FOUND};
use crate::argument::{Out, Received};
use crate::call::Call;
use crate::driver::{Driver, count, lock};
use crate::host::Kind;
use crate::physical;

/// What is known about an address.
#[derive(Clone, Copy)]
struct About {
    first: u64,
    bytes: u64,
    context: CUcontext,
    card: usize,
    memory: CUmemorytype,
    /// Where the host reaches it.
    host: Option<usize>,
    managed: bool,
    /// A number of its own, for as long as it lives.
    buffer: u64,
    mapped: bool,
}

/// Finds out about an address; `None` if it is nothing to the driver.
fn about(driver: &Driver, address: CUdeviceptr) -> Answer<Option<About>> {
    if let Some(allocation) = driver.machine.allocation(address) {
        let owner = driver.contexts.find(|context| context.id == allocation.context);
        return Ok(Some(About {
            first: allocation.address,
            bytes: allocation.size.0,
            context: owner.map(|(handle, _)| CUcontext(handle)).unwrap_or_default(),
            card: allocation.card,
            memory: CU_MEMORYTYPE_DEVICE,
            host: None,
            managed: false,
            buffer: allocation.address,
            mapped: false,
        }));
    }
    if let Ok((first, bytes)) = physical::range(driver, address) {
        let backing = lock(&driver.mappings).resolve(address).unwrap_or(0);
        let card = driver.machine.allocation(backing).map_or(0, |allocation| allocation.card);
        return Ok(Some(About {
            first,
            bytes,
            context: CUcontext::NULL,
            card,
            memory: CU_MEMORYTYPE_DEVICE,
            host: None,
            managed: false,
            buffer: first,
            mapped: true,
        }));
    }
    let place = count(address)?;
    Ok(lock(&driver.host).find(place).map(|range| {
        let managed = range.kind == Kind::Managed;
        About {
            first: range.first as u64,
            bytes: range.bytes as u64,
            context: range.context_handle,
            card: driver.contexts.get(range.context_handle.0).map_or(0, |context| context.card),
            memory: if managed { CU_MEMORYTYPE_DEVICE } else { CU_MEMORYTYPE_HOST },
            host: Some(place),
            managed,
            buffer: range.first as u64,
            mapped: false,
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
    let about = about(driver, dptr)?.ok_or(NOT_FOUND)?;
    pbase.put_if_asked(about.first);
    psize.put_if_asked(count(about.bytes)?);
    Ok(())
}

/// Writes one attribute; false if the address does not have it.
fn put(
    driver: &Driver,
    data: Out<c_void>,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
    about: Option<About>,
) -> Answer<bool> {
    let Some(about) = about else { return Ok(false) };
    match attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT => data.cast::<CUcontext>().put(about.context)?,
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => data.cast::<CUmemorytype>().put(about.memory)?,
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER => data.cast::<CUdeviceptr>().put(address)?,
        CU_POINTER_ATTRIBUTE_HOST_POINTER => match about.host {
            Some(host) => data.cast::<*mut c_void>().put(ptr::with_exposed_provenance_mut(host))?,
            None => return Ok(false),
        },
        CU_POINTER_ATTRIBUTE_BUFFER_ID => data.cast::<u64>().put(about.buffer)?,
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        | CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        | CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => data.cast::<u8>().put(0)?,
        CU_POINTER_ATTRIBUTE_IS_MANAGED => data.cast::<u8>().put(u8::from(about.managed))?,
        CU_POINTER_ATTRIBUTE_MAPPED => data.cast::<u8>().put(u8::from(about.mapped))?,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
            data.cast::<c_int>().put(c_int::try_from(about.card).unwrap_or(c_int::MAX))?;
        }
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR | CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => {
            data.cast::<CUdeviceptr>().put(about.first)?;
        }
        CU_POINTER_ATTRIBUTE_RANGE_SIZE | CU_POINTER_ATTRIBUTE_MAPPING_SIZE => {
            data.cast::<usize>().put(count(about.bytes)?)?;
        }
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => data.cast::<u64>().put(0)?,
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
            data.cast::<CUmemAccess_flags>().put(CU_MEM_ACCESS_FLAGS_PROT_READWRITE)?;
        }
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => {
            let pool = lock(&driver.pooled).pool_of(driver, about.first);
            data.cast::<CUmemoryPool>().put(pool)?;
        }
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
    let about = about(driver, address)?;
    if put(driver, data, attribute, address, about)? { Ok(()) } else { Err(INVALID_VALUE) }
}

/// As the single one, except that what an address does not have reads as NULL or 0 and is no error.
pub(crate) fn cuPointerGetAttributes(
    call: &Call,
    num_attributes: c_uint,
    attributes: Out<CUpointer_attribute>,
    data: Out<*mut c_void>,
    address: CUdeviceptr,
) -> Answer {
    let driver = call.driver()?;
    let number = count(num_attributes)?;
    let about = about(driver, address)?;
    for (attribute, to) in attributes.read_all(number)?.into_iter().zip(data.read_all(number)?) {
        // SAFETY: the program gave a place for each attribute, large enough for its type.
        let to: Out<c_void> = unsafe { Received::received(to) };
        to.required()?;
        if !put(driver, to, attribute, address, about)? {
            match attribute {
                CU_POINTER_ATTRIBUTE_MEMORY_TYPE | CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
                    to.cast::<c_uint>().put(0)?
                }
                CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => to.cast::<c_int>().put(-2)?,
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

/// The only attribute that can be set, and what it asks for is always so here.
pub(crate) fn cuPointerSetAttribute(
    call: &Call,
    value: crate::argument::In<c_void>,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> Answer {
    let driver = call.driver()?;
    value.required()?;
    let known = about(driver, address)?.is_some();
    if known && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS { Ok(()) } else { Err(INVALID_VALUE) }
}
