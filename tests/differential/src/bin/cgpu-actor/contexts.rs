//! Contexts.

use std::ffi::CStr;

use anyhow::{Result, bail};
use cgpu_differential::command::{Answer, PRIMARY};

use crate::actor::{Actor, NOT_OURS};
use crate::driver::place;

impl Actor {
    /// Makes a context current.
    pub(crate) fn enter(&self, context: u32) -> Result<i32> {
        match self.contexts.get(&context) {
            Some(&handle) => self.cuda.call(c"cuCtxSetCurrent", [handle]),
            None => Ok(NOT_OURS),
        }
    }

    pub(crate) fn create_context(&mut self, context: u32) -> Result<i32> {
        let mut handle = 0_usize;
        let to = place(&mut handle);
        let code = match self.cuda.names.variant(4) {
            0 => self.cuda.call(c"cuCtxCreate_v2", [to, 0, self.device])?,
            1 => self.cuda.call(c"cuCtxCreate", [to, 0, self.device])?,
            // Without affinities, and without parameters.
            2 => self.cuda.call(c"cuCtxCreate_v3", [to, 0, 0, 0, self.device])?,
            _ => self.cuda.call(c"cuCtxCreate_v4", [to, 0, 0, self.device])?,
        };
        if code == 0 {
            self.contexts.insert(context, handle);
        }
        Ok(code)
    }

    pub(crate) fn destroy_context(&mut self, context: u32) -> Result<i32> {
        let Some(&handle) = self.contexts.get(&context) else { return Ok(NOT_OURS) };
        let code = self.cuda.call(c"cuCtxDestroy_v2", [handle])?;
        if code == 0 {
            self.contexts.remove(&context);
        }
        Ok(code)
    }

    /// Adds a use of a context.
    pub(crate) fn attach(&self, context: u32) -> Result<i32> {
        let mut handle = 0_usize;
        let mut code = self.enter(context)?;
        if code == 0 {
            code = self.cuda.call(c"cuCtxAttach", [place(&mut handle), 0])?;
        }
        if code == 0 && self.contexts.get(&context) != Some(&handle) {
            bail!("cuCtxAttach answered with another context");
        }
        Ok(code)
    }

    /// Removes a use of a context. The harness knows which one is the last.
    pub(crate) fn detach(&self, context: u32) -> Result<i32> {
        match self.contexts.get(&context) {
            Some(&handle) => self.cuda.call(c"cuCtxDetach", [handle]),
            None => Ok(NOT_OURS),
        }
    }

    pub(crate) fn retain_primary(&mut self, answer: &mut Answer) -> Result<i32> {
        let mut handle = 0_usize;
        let code =
            self.cuda.call(c"cuDevicePrimaryCtxRetain", [place(&mut handle), self.device])?;
        if code == 0 {
            self.contexts.insert(PRIMARY, handle);
        }
        answer.active = self.is_active()?;
        Ok(code)
    }

    /// Releases or resets the primary context.
    pub(crate) fn end_primary(&mut self, how: &CStr, answer: &mut Answer) -> Result<i32> {
        let code = self.cuda.call(how, [self.device])?;
        answer.active = self.is_active()?;
        Ok(code)
    }

    /// Returns whether the primary context is active.
    pub(crate) fn is_active(&self) -> Result<bool> {
        let (mut flags, mut active) = (0_u32, 0_i32);
        let to = [self.device, place(&mut flags), place(&mut active)];
        match self.cuda.call(c"cuDevicePrimaryCtxGetState", to)? {
            0 => Ok(active != 0),
            code => bail!("cuDevicePrimaryCtxGetState answered {code}"),
        }
    }

    pub(crate) fn synchronise(&self, context: u32) -> Result<i32> {
        match self.enter(context)? {
            0 => self.cuda.call(c"cuStreamSynchronize", [0]),
            code => Ok(code),
        }
    }
}
