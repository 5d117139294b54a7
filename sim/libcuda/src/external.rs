//! Memory of other interfaces, such as Vulkan: imported by a file descriptor, accessed through
//! buffers and arrays.
//!
//! The memory is charged to the process that allocated it; an importer pays nothing. A *window* is
//! one mapping of all of it. A buffer is a part of a window's addresses; an array is stored in one.
//! The memory exists while an import, a window, a descriptor or its creator holds it.
//! [`crate::foreign`] simulates the other interface.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use cgpu_abi::types::*;
use cgpu_sim::machine::{Access, PhysicalId, PhysicalPlace, Side};
use cgpu_sim::{Bytes, Error};

use crate::answer::{Answer, Failure, INVALID_HANDLE, INVALID_VALUE, OPERATING_SYSTEM};
use crate::argument::{In, Out, Received, values};
use crate::array::{Array, Memory};
use crate::call::Call;
use crate::context::Context;
use crate::driver::{Driver, lock};
use crate::{layout, share};

values!(CUexternalMemory);

/// Imported memory. It is released on drop.
#[derive(Debug)]
pub(crate) struct External {
    context: Arc<Context>,
    id: PhysicalId,
    /// Size of the whole allocation.
    whole: Bytes,
    /// Size that the program imported.
    size: u64,
}

impl External {
    pub(crate) fn is_in(&self, context: &Context) -> bool {
        self.context.id == context.id
    }

    /// Returns the end of a part; fails unless it lies in the memory.
    fn end(&self, offset: u64, size: u64) -> Answer<u64> {
        let end = offset.checked_add(size).filter(|&end| size > 0 && end <= self.size);
        end.ok_or(INVALID_VALUE)
    }
}

impl Drop for External {
    fn drop(&mut self) {
        if let Some(driver) = Driver::get() {
            // Cannot fail: the import owns it.
            let _ = driver.machine.release_physical(self.id);
        }
    }
}

/// Addresses at which all of an external memory is mapped. It is unmapped on drop.
#[derive(Debug)]
pub(crate) struct Window {
    first: u64,
    whole: Bytes,
}

impl Window {
    fn open(driver: &Driver, memory: &External) -> Answer<Self> {
        let machine = &driver.machine;
        let first = machine.reserve_addresses(memory.whole, 0, 0)?;
        let window = Self { first, whole: memory.whole };
        let side = Side::Gpu(memory.context.gpu);
        machine.map(first, memory.whole, memory.id)?;
        machine.set_access(first, memory.whole, &[(side, Access::ReadWrite)])?;
        Ok(window)
    }

    /// Returns the address of a byte of the memory.
    pub(crate) fn at(&self, offset: u64) -> CUdeviceptr {
        self.first + offset
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(driver) = Driver::get() {
            // Nothing is mapped if opening failed.
            let _ = driver.machine.unmap(self.first, self.whole);
            let _ = driver.machine.free_addresses(self.first, self.whole);
        }
    }
}

/// All buffers of the process, by address.
#[derive(Debug, Default)]
pub(crate) struct Buffers(BTreeMap<u64, Buffer>);

/// A part of an external memory, as linear memory of a context.
#[derive(Debug)]
struct Buffer {
    context: Arc<Context>,
    bytes: u64,
    _window: Window,
}

impl Buffers {
    /// Returns the buffer that contains an address: first byte, size, context.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, u64, CUcontext)> {
        let (&first, buffer) = self.0.range(..=address).next_back()?;
        (address - first < buffer.bytes).then(|| (first, buffer.bytes, buffer.context.handle))
    }

    pub(crate) fn forget(&mut self, context: &Context) {
        self.0.retain(|_, buffer| buffer.context.id != context.id);
    }
}

/// Frees a buffer after the work of its context. Returns `None` if no buffer begins at the address.
pub(crate) fn free(driver: &Driver, address: CUdeviceptr) -> Option<Answer> {
    let context =
        lock(&driver.buffers).0.get(&address).map(|buffer| Arc::clone(&buffer.context))?;
    let waited = driver.machine.synchronize_context(context.id);
    let buffer = lock(&driver.buffers).0.remove(&address);
    drop(buffer);
    Some(waited.map_err(Failure::from))
}

/// Imports the object of a descriptor, which belongs to the driver from then on.
pub(crate) fn take<T>(
    fd: c_int,
    import: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> Result<T, Error>,
) -> Answer<T> {
    let descriptor = share::descriptor(fd).ok_or(OPERATING_SYSTEM)?;
    let imported = import(descriptor.as_fd()).map_err(|error| match error {
        Error::NoAllocation => INVALID_HANDLE,
        error => error.into(),
    })?;
    // SAFETY: the descriptor was open just now. The program gives it to this call, and the imported
    // object does not need it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(imported)
}

pub(crate) fn cuImportExternalMemory(
    call: &Call,
    ext_mem_out: Out<CUexternalMemory>,
    mem_handle_desc: In<CUDA_EXTERNAL_MEMORY_HANDLE_DESC>,
) -> Answer {
    let driver = call.driver()?;
    let context = driver.current()?;
    let (to, requested) = (ext_mem_out.required()?, mem_handle_desc.read()?);
    // The only kind of handle that exists on Linux and is simulated.
    if requested.kind != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
        || requested.flags & !CUDA_EXTERNAL_MEMORY_DEDICATED != 0
        || requested.size == 0
    {
        return Err(INVALID_VALUE);
    }
    let external = take(requested.handle.fd, |descriptor| {
        let id = driver.machine.import_physical(descriptor)?;
        let info = driver.machine.physical(id)?;
        let external = External { context, id, whole: info.size, size: requested.size };
        let on_gpu = info.place == PhysicalPlace::On(external.context.gpu.into());
        if on_gpu && requested.size <= info.size.0 {
            Ok(external)
        } else {
            Err(Error::Invalid("memory of another GPU, or less than is said"))
        }
    })?;
    to.put(CUexternalMemory(driver.externals.add(external)))?;
    Ok(())
}

fn find(driver: &Driver, memory: CUexternalMemory) -> Answer<Arc<External>> {
    driver.externals.get(memory.0).ok_or(INVALID_HANDLE)
}

pub(crate) fn cuDestroyExternalMemory(call: &Call, ext_mem: CUexternalMemory) -> Answer {
    let driver = call.driver()?;
    driver.externals.remove(ext_mem.0).ok_or(INVALID_HANDLE)?;
    Ok(())
}

pub(crate) fn cuExternalMemoryGetMappedBuffer(
    call: &Call,
    dev_ptr: Out<CUdeviceptr>,
    ext_mem: CUexternalMemory,
    buffer_desc: In<CUDA_EXTERNAL_MEMORY_BUFFER_DESC>,
) -> Answer {
    let driver = call.driver()?;
    let (to, requested) = (dev_ptr.required()?, buffer_desc.read()?);
    let memory = find(driver, ext_mem)?;
    memory.end(requested.offset, requested.size)?;
    if requested.flags != 0 {
        return Err(INVALID_VALUE);
    }
    let window = Window::open(driver, &memory)?;
    let address = window.at(requested.offset);
    let context = Arc::clone(&memory.context);
    lock(&driver.buffers)
        .0
        .insert(address, Buffer { context, bytes: requested.size, _window: window });
    to.put(address)?;
    Ok(())
}

/// The array is destroyed by `cuMipmappedArrayDestroy`.
pub(crate) fn cuExternalMemoryGetMappedMipmappedArray(
    call: &Call,
    mipmap: Out<CUmipmappedArray>,
    ext_mem: CUexternalMemory,
    mipmap_desc: In<CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC>,
) -> Answer {
    let driver = call.driver()?;
    let (to, requested) = (mipmap.required()?, mipmap_desc.read()?);
    let memory = find(driver, ext_mem)?;
    let descriptor = requested.array_desc;
    layout::check(&descriptor)?;
    if descriptor.flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) != 0
        || requested.num_levels == 0
        || requested.num_levels > layout::max_levels(&descriptor)
    {
        return Err(INVALID_VALUE);
    }
    let (levels, bytes) = layout::levels(&descriptor, requested.num_levels)?;
    memory.end(requested.offset, bytes)?;
    let window = Window::open(driver, &memory)?;
    let context = Arc::clone(&memory.context);
    let memory = Memory::External(window, requested.offset);
    let array = Array { context, descriptor, levels, memory, handles: Mutex::default() };
    to.put(CUmipmappedArray(driver.arrays.add(array)))?;
    Ok(())
}
