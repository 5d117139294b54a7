//! Streams and stream-ordered memory.

use anyhow::{Result, bail};
use cgpu_differential::command::{Answer, DEFAULT_POOL, InStream, Lane};

use crate::actor::{Actor, NOT_OURS};
use crate::driver::place;
use crate::records::{LEGACY_STREAM, NON_BLOCKING, THREAD_STREAM, UNTIMED};

impl Actor {
    pub(crate) fn stream(&mut self, about: InStream, answer: &mut Answer) -> Result<i32> {
        match about {
            InStream::Create { context, stream, apart } => {
                self.create_stream(context, stream, apart)
            }
            InStream::Destroy { stream } => self.destroy_stream(stream),
            InStream::Allocate { context, lane, key, bytes, pool } => {
                self.allocate_in(context, lane, key, (bytes, pool), answer)
            }
            InStream::Free { context, lane, key } => self.free_in(context, lane, key),
            InStream::FreeLinear { context, lane, key } => self.free_linear_in(context, lane, key),
            InStream::Order { context, before, after } => self.order(context, before, after),
            InStream::Wait { context, lane } => match self.enter(context)? {
                0 => self.cuda.call(c"cuStreamSynchronize", [self.handle_of(lane)?]),
                code => Ok(code),
            },
        }
    }

    fn handle_of(&self, lane: Lane) -> Result<usize> {
        Ok(match lane {
            Lane::None => 0,
            Lane::Legacy => LEGACY_STREAM,
            Lane::Thread => THREAD_STREAM,
            Lane::Made(name) => match self.streams.get(&name) {
                Some(&handle) => handle,
                None => bail!("no stream {name}"),
            },
        })
    }

    fn create_stream(&mut self, context: u32, name: u32, apart: bool) -> Result<i32> {
        let mut code = self.enter(context)?;
        let mut handle = 0_usize;
        if code == 0 {
            let flags = if apart { NON_BLOCKING } else { 0 };
            code = self.cuda.call(c"cuStreamCreate", [place(&mut handle), flags])?;
        }
        if code == 0 {
            self.streams.insert(name, handle);
        }
        Ok(code)
    }

    fn destroy_stream(&mut self, name: u32) -> Result<i32> {
        let code = self.cuda.call(c"cuStreamDestroy_v2", [self.handle_of(Lane::Made(name))?])?;
        if code == 0 {
            self.streams.remove(&name);
        }
        Ok(code)
    }

    fn allocate_in(
        &mut self,
        context: u32,
        lane: Lane,
        key: u32,
        (bytes, pool): (u64, u32),
        answer: &mut Answer,
    ) -> Result<i32> {
        let code = self.enter(context)?;
        if code != 0 {
            return Ok(code);
        }
        self.pooling = true;
        let (to, size, stream) =
            (place(&mut answer.address), usize::try_from(bytes)?, self.handle_of(lane)?);
        let code = match self.pools.get(&pool) {
            Some(&pool) => self.cuda.call(c"cuMemAllocFromPoolAsync", [to, size, pool, stream])?,
            None if pool == DEFAULT_POOL => {
                self.cuda.call(c"cuMemAllocAsync", [to, size, stream])?
            }
            None => NOT_OURS,
        };
        if code == 0 {
            self.pooled.insert(key, answer.address);
        }
        Ok(code)
    }

    fn free_in(&mut self, context: u32, lane: Lane, key: u32) -> Result<i32> {
        let Some(&address) = self.pooled.get(&key) else { return Ok(NOT_OURS) };
        let mut code = self.enter(context)?;
        if code == 0 {
            let stream = self.handle_of(lane)?;
            code = self.cuda.call(c"cuMemFreeAsync", [usize::try_from(address)?, stream])?;
        }
        if code == 0 {
            self.pooled.remove(&key);
        }
        Ok(code)
    }

    /// Frees linear memory and waits until the stream has freed it. For default streams it waits
    /// for the context, because a variant of the call may mean another stream.
    fn free_linear_in(&mut self, context: u32, lane: Lane, key: u32) -> Result<i32> {
        let Some(&(_, address)) = self.allocations.get(&key) else { return Ok(NOT_OURS) };
        let mut code = self.enter(context)?;
        if code == 0 {
            let stream = self.handle_of(lane)?;
            code = self.cuda.call(c"cuMemFreeAsync", [usize::try_from(address)?, stream])?;
        }
        if code == 0 {
            self.allocations.remove(&key);
            let waited = match lane {
                Lane::Made(_) => self.cuda.call(c"cuStreamSynchronize", [self.handle_of(lane)?])?,
                _ => self.cuda.call(c"cuCtxSynchronize", [])?,
            };
            if waited != 0 {
                bail!("what was freed in a stream was waited for: {waited}");
            }
        }
        Ok(code)
    }

    fn order(&self, context: u32, before: Lane, after: Lane) -> Result<i32> {
        let code = self.enter(context)?;
        if code != 0 {
            return Ok(code);
        }
        let (before, after) = (self.handle_of(before)?, self.handle_of(after)?);
        let mut event = 0_usize;
        match self.cuda.call(c"cuEventCreate", [place(&mut event), UNTIMED])? {
            0 => {}
            code => return Ok(code),
        }
        let codes = [
            self.cuda.call(c"cuEventRecord", [event, before])?,
            self.cuda.call(c"cuStreamWaitEvent", [after, event, 0])?,
            self.cuda.call(c"cuEventDestroy_v2", [event])?,
        ];
        Ok(codes.into_iter().find(|code| *code != 0).unwrap_or(0))
    }
}
