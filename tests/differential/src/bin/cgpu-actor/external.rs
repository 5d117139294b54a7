//! Memory of another interface, which the simulated driver offers in an export table of its own
//! (docs/internals/simulator.md).

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use anyhow::{Result, bail, ensure};

use crate::actor::{Actor, NOT_OURS};
use crate::driver::{Api, place};
use crate::records::{ExternalBuffer, ExternalMemory, OPAQUE_DESCRIPTOR};

/// Name of the export table.
const NAME: [u8; 16] = *b"cgpu-sim foreign";

/// The functions of the other interface.
#[repr(C)]
struct Table {
    bytes: usize,
    allocate: unsafe extern "C" fn(i32, u64, *mut u64) -> i32,
    descriptor: unsafe extern "C" fn(u64, *mut RawFd) -> i32,
    free: unsafe extern "C" fn(u64) -> i32,
}

fn table(cuda: &Api) -> Result<&'static Table> {
    let (mut at, mut name) = (std::ptr::null::<Table>(), NAME);
    let code = cuda.call(c"cuGetExportTable", [place(&mut at), place(&mut name)])?;
    ensure!(code == 0 && !at.is_null(), "no other interface: {code}");
    // SAFETY: the simulated driver returns this table for this name. It is a static of the driver,
    // which is never unloaded.
    Ok(unsafe { &*at })
}

impl Actor {
    pub(crate) fn allocate_foreign(&mut self, key: u32, bytes: u64) -> Result<i32> {
        let (table, mut memory) = (table(&self.cuda)?, 0_u64);
        // SAFETY: the function writes to a variable that outlives the call.
        let code = unsafe { (table.allocate)(i32::try_from(self.device)?, bytes, &raw mut memory) };
        if code == 0 {
            self.foreign.insert(key, memory);
        }
        Ok(code)
    }

    pub(crate) fn free_foreign(&mut self, key: u32) -> Result<i32> {
        let Some(memory) = self.foreign.remove(&key) else { return Ok(NOT_OURS) };
        // SAFETY: the function takes any number and checks it.
        Ok(unsafe { (table(&self.cuda)?.free)(memory) })
    }

    pub(crate) fn export_foreign(&self, key: u32) -> Result<i32> {
        let Some(&memory) = self.foreign.get(&key) else { return Ok(NOT_OURS) };
        let mut descriptor: RawFd = -1;
        // SAFETY: the function writes to a variable that outlives the call.
        let code = unsafe { (table(&self.cuda)?.descriptor)(memory, &raw mut descriptor) };
        if code == 0 {
            // SAFETY: the call has opened the descriptor, so it has no other owner.
            let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
            self.line.send(descriptor.as_fd())?;
        }
        Ok(code)
    }

    /// Imports a descriptor from the socket. After success the driver owns the descriptor.
    pub(crate) fn import_external(
        &mut self,
        context: u32,
        external: u32,
        bytes: u64,
    ) -> Result<i32> {
        let descriptor = self.line.receive()?;
        let code = self.enter(context)?;
        if code != 0 {
            return Ok(code);
        }
        let mut from = ExternalMemory {
            kind: OPAQUE_DESCRIPTOR,
            descriptor: descriptor.as_raw_fd(),
            bytes,
            ..ExternalMemory::default()
        };
        let mut handle = 0_usize;
        let code =
            self.cuda.call(c"cuImportExternalMemory", [place(&mut handle), place(&mut from)])?;
        if code == 0 {
            std::mem::forget(descriptor);
            self.externals.insert(external, (context, handle));
        }
        Ok(code)
    }

    pub(crate) fn map_external(&mut self, external: u32, buffer: u32, bytes: u64) -> Result<i32> {
        let Some(&(context, handle)) = self.externals.get(&external) else { return Ok(NOT_OURS) };
        let mut code = self.enter(context)?;
        let (mut wanted, mut address) =
            (ExternalBuffer { bytes, ..ExternalBuffer::default() }, 0_u64);
        if code == 0 {
            let to = [place(&mut address), handle, place(&mut wanted)];
            code = self.cuda.call(c"cuExternalMemoryGetMappedBuffer", to)?;
        }
        if code == 0 {
            self.buffers.insert(buffer, (context, address));
        }
        Ok(code)
    }

    pub(crate) fn free_external(&mut self, buffer: u32) -> Result<i32> {
        let Some(&(context, address)) = self.buffers.get(&buffer) else { return Ok(NOT_OURS) };
        let mut code = self.enter(context)?;
        if code == 0 {
            code = self.cuda.call(c"cuMemFree_v2", [usize::try_from(address)?])?;
        }
        if code == 0 {
            self.buffers.remove(&buffer);
        }
        Ok(code)
    }

    pub(crate) fn end_external(&mut self, external: u32) -> Result<i32> {
        let Some(&(context, handle)) = self.externals.get(&external) else { return Ok(NOT_OURS) };
        match self.enter(context)? {
            0 => {}
            code => bail!("the import's context is gone: {code}"),
        }
        let code = self.cuda.call(c"cuDestroyExternalMemory", [handle])?;
        if code == 0 {
            self.externals.remove(&external);
        }
        Ok(code)
    }
}
