//! Primary contexts: one per GPU, created by the first retain and destroyed by the last release.

use std::sync::Arc;
use std::sync::Mutex;

use cgpu_abi::types::*;
use cgpu_shm::atomic::Ordering;

use crate::answer::{Answer, INVALID_CONTEXT, INVALID_VALUE};
use crate::argument::Out;
use crate::call::Call;
use crate::context::{Context, FLAGS};
use crate::driver::{Driver, lock};
use crate::handle;

#[derive(Debug, Default)]
pub(crate) struct Primary(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The same each time the context is created.
    handle: CUcontext,
    context: Option<Arc<Context>>,
    references: usize,
    /// Flags for its next creation.
    flags: c_uint,
}

impl State {
    fn retain(&mut self, driver: &Driver, gpu: usize) -> Answer<Arc<Context>> {
        if self.handle.is_null() {
            self.handle = CUcontext(handle::fresh());
        }
        let context = match &self.context {
            Some(context) => Arc::clone(context),
            None => Context::open(driver, gpu, self.flags, 3020, Some(self.handle))?,
        };
        self.context = Some(Arc::clone(&context));
        self.references += 1;
        Ok(context)
    }

    fn release(&mut self, driver: &Driver) -> Answer {
        self.references = self.references.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        if self.references == 0 { self.end(driver) } else { Ok(()) }
    }

    fn end(&mut self, driver: &Driver) -> Answer {
        match self.context.take() {
            Some(context) => context.close(driver),
            None => Ok(()),
        }
    }
}

fn state<T>(
    call: &Call,
    dev: CUdevice,
    act: impl FnOnce(&Driver, usize, &mut State) -> Answer<T>,
) -> Answer<T> {
    let driver = call.driver()?;
    let gpu = driver.gpu(dev)?;
    act(driver, gpu, &mut lock(&driver.primaries[gpu].0))
}

pub(crate) fn retain(driver: &Driver, gpu: usize) -> Answer<Arc<Context>> {
    lock(&driver.primaries[gpu].0).retain(driver, gpu)
}

pub(crate) fn release(driver: &Driver, gpu: usize) -> Answer {
    lock(&driver.primaries[gpu].0).release(driver)
}

pub(crate) fn cuDevicePrimaryCtxRetain(call: &Call, pctx: Out<CUcontext>, dev: CUdevice) -> Answer {
    state(call, dev, |driver, gpu, primary| {
        let pctx = pctx.required()?;
        pctx.put(primary.retain(driver, gpu)?.handle)?;
        Ok(())
    })
}

pub(crate) fn cuDevicePrimaryCtxRelease_v2(call: &Call, dev: CUdevice) -> Answer {
    state(call, dev, |driver, _, primary| primary.release(driver))
}
pub(crate) use cuDevicePrimaryCtxRelease_v2 as cuDevicePrimaryCtxRelease;

/// Destroys the context whatever its references, which remain. The next retain creates it again.
pub(crate) fn cuDevicePrimaryCtxReset_v2(call: &Call, dev: CUdevice) -> Answer {
    state(call, dev, |driver, _, primary| primary.end(driver))
}
pub(crate) use cuDevicePrimaryCtxReset_v2 as cuDevicePrimaryCtxReset;

pub(crate) fn cuDevicePrimaryCtxGetState(
    call: &Call,
    dev: CUdevice,
    flags: Out<c_uint>,
    active: Out<c_int>,
) -> Answer {
    state(call, dev, |_, _, primary| {
        let (flags, active) = (flags.required()?, active.required()?);
        flags.put(
            primary
                .context
                .as_ref()
                .map_or(primary.flags, |context| context.flags.load(Ordering::Relaxed)),
        )?;
        active.put(c_int::from(primary.context.is_some()))?;
        Ok(())
    })
}

pub(crate) fn cuDevicePrimaryCtxSetFlags_v2(call: &Call, dev: CUdevice, flags: c_uint) -> Answer {
    if flags & !FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    state(call, dev, |_, _, primary| {
        primary.flags = flags;
        if let Some(context) = &primary.context {
            context.flags.store(flags, Ordering::Relaxed);
        }
        Ok(())
    })
}
pub(crate) use cuDevicePrimaryCtxSetFlags_v2 as cuDevicePrimaryCtxSetFlags;
