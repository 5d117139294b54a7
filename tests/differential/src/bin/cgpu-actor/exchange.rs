//! Memory exchanged between processes, by handle and by descriptor.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use anyhow::Result;
use cgpu_differential::command::{Answer, HandleBytes};

use crate::actor::{Actor, NOT_OURS};
use crate::driver::place;
use crate::records::{DESCRIPTOR, LAZY_PEER_ACCESS};

impl Actor {
    pub(crate) fn export_memory(&self, key: u32, answer: &mut Answer) -> Result<i32> {
        let Some(&(context, address)) = self.allocations.get(&key) else { return Ok(NOT_OURS) };
        match self.enter(context)? {
            0 => {
                let to = [place(&mut answer.handle), usize::try_from(address)?];
                self.cuda.call(c"cuIpcGetMemHandle", to)
            }
            code => Ok(code),
        }
    }

    pub(crate) fn open(
        &mut self,
        context: u32,
        open: u32,
        handle: HandleBytes,
        answer: &mut Answer,
    ) -> Result<i32> {
        /// `CUipcMemHandle`, which is passed by value.
        #[repr(C)]
        struct Handle(HandleBytes);
        type Function = unsafe extern "C" fn(*mut u64, Handle, u32) -> i32;

        let code = self.enter(context)?;
        if code != 0 {
            return Ok(code);
        }
        let name = self.cuda.names.for_name(c"cuIpcOpenMemHandle_v2");
        // SAFETY: this is the function's type in cuda.h.
        let function = unsafe { self.cuda.symbol::<Function>(name) }?;
        // SAFETY: the address is written to a field that outlives the call.
        let code = unsafe { function(&raw mut answer.address, Handle(handle), LAZY_PEER_ACCESS) };
        if code == 0 {
            self.opened.insert(open, (context, answer.address));
        }
        Ok(code)
    }

    pub(crate) fn close(&mut self, open: u32) -> Result<i32> {
        let Some(&(context, address)) = self.opened.get(&open) else { return Ok(NOT_OURS) };
        let mut code = self.enter(context)?;
        if code == 0 {
            code = self.cuda.call(c"cuIpcCloseMemHandle", [usize::try_from(address)?])?;
        }
        if code == 0 {
            self.opened.remove(&open);
        }
        Ok(code)
    }

    pub(crate) fn export_physical(&self, key: u32) -> Result<i32> {
        let Some(&handle) = self.handles.get(&key) else { return Ok(NOT_OURS) };
        self.export(c"cuMemExportToShareableHandle", usize::try_from(handle)?)
    }

    pub(crate) fn import_physical(&mut self, key: u32) -> Result<i32> {
        let mut handle = 0_u64;
        // The descriptor is closed when this returns.
        let descriptor = self.line.receive()?;
        let number = usize::try_from(descriptor.as_raw_fd())?;
        let to = [place(&mut handle), number, DESCRIPTOR as usize];
        let code = self.cuda.call(c"cuMemImportFromShareableHandle", to)?;
        if code == 0 {
            self.handles.insert(key, handle);
        }
        Ok(code)
    }

    pub(crate) fn export_pool(&self, pool: u32) -> Result<i32> {
        let Some(&handle) = self.pools.get(&pool) else { return Ok(NOT_OURS) };
        self.export(c"cuMemPoolExportToShareableHandle", handle)
    }

    pub(crate) fn import_pool(&mut self, pool: u32) -> Result<i32> {
        let mut handle = 0_usize;
        let descriptor = self.line.receive()?;
        let number = usize::try_from(descriptor.as_raw_fd())?;
        let to = [place(&mut handle), number, DESCRIPTOR as usize, 0];
        let code = self.cuda.call(c"cuMemPoolImportFromShareableHandle", to)?;
        if code == 0 {
            self.imported.insert(pool, handle);
        }
        Ok(code)
    }

    pub(crate) fn export_pointer(&self, key: u32, answer: &mut Answer) -> Result<i32> {
        let Some(&address) = self.pooled.get(&key) else { return Ok(NOT_OURS) };
        self.cuda
            .call(c"cuMemPoolExportPointer", [place(&mut answer.handle), usize::try_from(address)?])
    }

    pub(crate) fn import_pointer(
        &mut self,
        pool: u32,
        open: u32,
        mut handle: HandleBytes,
    ) -> Result<i32> {
        let Some(&pool) = self.imported.get(&pool) else { return Ok(NOT_OURS) };
        let mut address = 0_u64;
        let to = [place(&mut address), pool, place(&mut handle)];
        let code = self.cuda.call(c"cuMemPoolImportPointer", to)?;
        if code == 0 {
            self.opened_pooled.insert(open, address);
        }
        Ok(code)
    }

    pub(crate) fn close_pooled(&mut self, context: u32, open: u32) -> Result<i32> {
        let Some(&address) = self.opened_pooled.get(&open) else { return Ok(NOT_OURS) };
        let mut code = self.enter(context)?;
        if code == 0 {
            code = self.cuda.call(c"cuMemFreeAsync", [usize::try_from(address)?, 0])?;
        }
        if code == 0 {
            self.opened_pooled.remove(&open);
        }
        Ok(code)
    }

    /// Exports an object and sends the descriptor over the socket.
    pub(crate) fn export(&self, how: &CStr, what: usize) -> Result<i32> {
        let mut descriptor: RawFd = -1;
        let kind = DESCRIPTOR as usize;
        let code = self.cuda.call(how, [place(&mut descriptor), what, kind, 0])?;
        if code == 0 {
            // SAFETY: the driver has opened the descriptor for this call, so it has no other owner.
            let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
            self.line.send(descriptor.as_fd())?;
        }
        Ok(code)
    }
}
