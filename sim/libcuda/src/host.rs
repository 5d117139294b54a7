//! Host memory that the GPU can reach: pinned, registered and managed.
//!
//! Addresses are unified: host memory has the same address on the GPU.

use core::ptr;
use std::collections::BTreeMap;

use cgpu_abi::types::*;
use cgpu_sim::machine::ContextId;

use crate::answer::{
    Answer, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE,
    OUT_OF_MEMORY,
};
use crate::argument::Out;
use crate::call::Call;
use crate::context::Context;
use crate::driver::lock;

/// Origin of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Allocated by the driver.
    Pinned,
    /// The program's own memory, pinned.
    Registered,
    /// Migrates between host and GPU.
    Managed,
}

/// One allocation or registration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostRange {
    pub(crate) first: usize,
    pub(crate) bytes: usize,
    pub(crate) kind: Kind,
    pub(crate) flags: c_uint,
    /// Context that it belongs to, and with which it ends.
    context: ContextId,
    pub(crate) context_handle: CUcontext,
}

/// All ranges, by first byte.
#[derive(Debug, Default)]
pub(crate) struct HostMemory(BTreeMap<usize, HostRange>);

impl HostMemory {
    pub(crate) fn find(&self, address: usize) -> Option<HostRange> {
        let (_, range) = self.0.range(..=address).next_back()?;
        (address - range.first < range.bytes).then_some(*range)
    }

    /// Returns whether one range contains all the bytes.
    pub(crate) fn holds(&self, address: usize, bytes: usize) -> bool {
        self.find(address).is_some_and(|range| bytes <= range.bytes - (address - range.first))
    }

    fn add(
        &mut self,
        first: usize,
        bytes: usize,
        kind: Kind,
        flags: c_uint,
        context: &Context,
    ) -> Answer {
        let end = first.checked_add(bytes).ok_or(INVALID_VALUE)?;
        let before = self.0.range(..end).next_back();
        if before.is_some_and(|(_, range)| range.first + range.bytes > first) {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        let context_handle = context.handle;
        self.0.insert(
            first,
            HostRange { first, bytes, kind, flags, context: context.id, context_handle },
        );
        Ok(())
    }

    /// Allocates zeroed host memory. Returns its address.
    pub(crate) fn map(
        &mut self,
        bytes: usize,
        kind: Kind,
        flags: c_uint,
        context: &Context,
    ) -> Answer<usize> {
        // SAFETY: requests a new mapping at any address, so memory in use is not affected.
        let place = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if place == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        let first = place.expose_provenance();
        self.add(first, bytes, kind, flags, context)?;
        Ok(first)
    }

    /// Frees memory from [`HostMemory::map`].
    pub(crate) fn unmap(&mut self, first: usize, kind: Kind) -> Answer {
        let range = self.0.get(&first).filter(|range| range.kind == kind).ok_or(INVALID_VALUE)?;
        // SAFETY: the whole of our own mapping, which the program no longer uses.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(first), range.bytes) };
        self.0.remove(&first);
        Ok(())
    }

    pub(crate) fn forget(&mut self, context: &Context) {
        let ranges = self.0.values().filter(|range| range.context == context.id);
        for range in ranges.copied().collect::<Vec<_>>() {
            if range.kind == Kind::Registered {
                self.0.remove(&range.first);
            } else {
                // It was found just now.
                let _ = self.unmap(range.first, range.kind);
            }
        }
    }
}

pub(crate) fn cuMemHostAlloc(
    call: &Call,
    pp: Out<*mut c_void>,
    bytesize: usize,
    flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let context = driver.current()?;
    let pp = pp.required()?;
    if bytesize == 0 || flags & !7 != 0 {
        return Err(INVALID_VALUE);
    }
    let place = lock(&driver.host).map(bytesize, Kind::Pinned, flags, &context)?;
    pp.put(ptr::with_exposed_provenance_mut(place))?;
    Ok(())
}

pub(crate) fn cuMemAllocHost_v2(call: &Call, pp: Out<*mut c_void>, bytesize: usize) -> Answer {
    cuMemHostAlloc(call, pp, bytesize, 0)
}

pub(crate) fn cuMemAllocHost(call: &Call, pp: Out<*mut c_void>, bytesize: c_uint) -> Answer {
    cuMemHostAlloc(call, pp, bytesize as usize, 0)
}

pub(crate) fn cuMemFreeHost(call: &Call, p: Out<c_void>) -> Answer {
    let driver = call.driver()?;
    let context = lock(&driver.host).find(p.address()).ok_or(INVALID_VALUE)?.context;
    // Copies may still use it.
    driver.machine.synchronize_context(context)?;
    lock(&driver.host).unmap(p.address(), Kind::Pinned)
}

pub(crate) fn cuMemHostRegister_v2(
    call: &Call,
    p: Out<c_void>,
    bytesize: usize,
    flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let context = driver.current()?;
    if p.is_null() || bytesize == 0 {
        return Err(INVALID_VALUE);
    }
    lock(&driver.host).add(p.address(), bytesize, Kind::Registered, flags, &context)
}
pub(crate) use cuMemHostRegister_v2 as cuMemHostRegister;

pub(crate) fn cuMemHostUnregister(call: &Call, p: Out<c_void>) -> Answer {
    let driver = call.driver()?;
    let mut host = lock(&driver.host);
    let registered = host.0.get(&p.address()).is_some_and(|range| range.kind == Kind::Registered);
    if !registered {
        return Err(HOST_MEMORY_NOT_REGISTERED);
    }
    host.0.remove(&p.address());
    Ok(())
}

pub(crate) fn cuMemHostGetFlags(call: &Call, flags: Out<c_uint>, p: Out<c_void>) -> Answer {
    let driver = call.driver()?;
    let range = lock(&driver.host).find(p.address()).ok_or(INVALID_VALUE)?;
    flags.put(range.flags)?;
    Ok(())
}

pub(crate) fn cuMemHostGetDevicePointer_v2(
    call: &Call,
    pdptr: Out<CUdeviceptr>,
    p: Out<c_void>,
    _flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    lock(&driver.host).find(p.address()).ok_or(INVALID_VALUE)?;
    pdptr.put(p.address() as CUdeviceptr)?;
    Ok(())
}

/// Always fails: host memory has addresses above 32 bits.
pub(crate) fn cuMemHostGetDevicePointer(
    call: &Call,
    _pdptr: Out<CUdeviceptr_v1>,
    p: Out<c_void>,
    _flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    lock(&driver.host).find(p.address()).ok_or(INVALID_VALUE)?;
    Err(OUT_OF_MEMORY)
}
