//! Limits of contexts, modules and libraries.

use std::ffi::CString;

use anyhow::{Result, bail};
use cgpu_differential::command::{Answer, Limit};

use crate::actor::{Actor, NOT_OURS};
use crate::driver::place;
use crate::records::{
    HEAP_LIMIT, MULTIPROCESSOR_COUNT, MULTIPROCESSOR_THREADS, PRINTF_LIMIT, STACK_LIMIT,
};

impl Actor {
    pub(crate) fn set_limit(
        &self,
        context: u32,
        limit: Limit,
        value: u64,
        answer: &mut Answer,
    ) -> Result<i32> {
        let code = self.enter(context)?;
        if code != 0 {
            return Ok(code);
        }
        let (number, copies) = match limit {
            Limit::Stack => {
                let threads = self.attribute(MULTIPROCESSOR_THREADS)?;
                (STACK_LIMIT, threads * self.attribute(MULTIPROCESSOR_COUNT)?)
            }
            Limit::Printf => (PRINTF_LIMIT, 1),
            Limit::Heap => (HEAP_LIMIT, 1),
        };
        answer.needed = copies;
        let mut former = 0_usize;
        match self.cuda.call(c"cuCtxGetLimit", [place(&mut former), number])? {
            0 => answer.former = former as u64,
            code => bail!("cuCtxGetLimit answered {code}"),
        }
        self.cuda.call(c"cuCtxSetLimit", [number, usize::try_from(value)?])
    }

    fn attribute(&self, attribute: usize) -> Result<u64> {
        let mut value = 0_i32;
        match self
            .cuda
            .call(c"cuDeviceGetAttribute", [place(&mut value), attribute, self.device])?
        {
            0 => Ok(u64::try_from(value)?),
            code => bail!("cuDeviceGetAttribute answered {code}"),
        }
    }

    pub(crate) fn load_module(&mut self, context: u32, module: u32, bytes: u64) -> Result<i32> {
        let image = image(bytes)?;
        let mut code = self.enter(context)?;
        let mut handle = 0_usize;
        if code == 0 {
            let image = image.as_ptr().expose_provenance();
            code = self.cuda.call(c"cuModuleLoadData", [place(&mut handle), image])?;
        }
        if code == 0 {
            self.modules.insert(module, handle);
        }
        Ok(code)
    }

    pub(crate) fn unload_module(&mut self, context: u32, module: u32) -> Result<i32> {
        let Some(handle) = self.modules.remove(&module) else { return Ok(NOT_OURS) };
        match self.enter(context)? {
            0 => self.cuda.call(c"cuModuleUnload", [handle]),
            code => Ok(code),
        }
    }

    pub(crate) fn load_library(&mut self, library: u32, bytes: u64) -> Result<i32> {
        let image = image(bytes)?;
        let (mut handle, image) = (0_usize, image.as_ptr().expose_provenance());
        let code =
            self.cuda.call(c"cuLibraryLoadData", [place(&mut handle), image, 0, 0, 0, 0, 0, 0])?;
        if code == 0 {
            self.libraries.insert(library, handle);
        }
        Ok(code)
    }

    pub(crate) fn use_library(&self, context: u32, library: u32, variable: bool) -> Result<i32> {
        let Some(&handle) = self.libraries.get(&library) else { return Ok(NOT_OURS) };
        let code = self.enter(context)?;
        if code != 0 {
            return Ok(code);
        }
        let mut found = 0_usize;
        if variable {
            let name = c"table".as_ptr().expose_provenance();
            self.cuda.call(c"cuLibraryGetGlobal", [place(&mut found), 0, handle, name])
        } else {
            self.cuda.call(c"cuLibraryGetModule", [place(&mut found), handle])
        }
    }

    pub(crate) fn unload_library(&mut self, library: u32) -> Result<i32> {
        let Some(handle) = self.libraries.remove(&library) else { return Ok(NOT_OURS) };
        self.cuda.call(c"cuLibraryUnload", [handle])
    }
}

/// Returns an image with a variable `table` of `bytes` bytes.
pub(crate) fn image(bytes: u64) -> Result<CString> {
    Ok(CString::new(format!(
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 table[{bytes}];\n"
    ))?)
}
