//! Semaphores of other interfaces: imported by a file descriptor, signalled and waited for by
//! streams and graphs.

use std::sync::Arc;

use cgpu_abi::types::*;
use cgpu_sim::machine::{SemaphoreId, StreamId, Work};

use crate::answer::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::argument::{In, Out, Received, values};
use crate::call::Call;
use crate::capture::{self, Lane};
use crate::context::Context;
use crate::driver::{Driver, count};
use crate::external::take;
use crate::graph::node::{Body, SemaphoresNode};

values!(CUexternalSemaphore);

/// An imported semaphore. It is released on drop.
#[derive(Debug)]
pub(crate) struct Semaphore {
    context: Arc<Context>,
    pub(crate) id: SemaphoreId,
}

impl Semaphore {
    pub(crate) fn is_in(&self, context: &Context) -> bool {
        self.context.id == context.id
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        if let Some(driver) = Driver::get() {
            // Cannot fail: the import owns it.
            let _ = driver.machine.close_semaphore(self.id);
        }
    }
}

pub(crate) fn cuImportExternalSemaphore(
    call: &Call,
    ext_sem_out: Out<CUexternalSemaphore>,
    sem_handle_desc: In<CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC>,
) -> Answer {
    let driver = call.driver()?;
    let context = driver.current()?;
    let (to, requested) = (ext_sem_out.required()?, sem_handle_desc.read()?);
    let counts = match requested.kind {
        CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD => false,
        CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD => true,
        // Kinds of other systems, and kinds that no simulated GPU has.
        CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_WIN32
            ..=CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_WIN32 => {
            return Err(NOT_SUPPORTED);
        }
        _ => return Err(INVALID_VALUE),
    };
    if requested.flags != 0 {
        return Err(INVALID_VALUE);
    }
    let id = take(requested.handle.fd, |descriptor| {
        driver.machine.import_semaphore(descriptor, counts)
    })?;
    to.put(CUexternalSemaphore(driver.semaphores.add(Semaphore { context, id })))?;
    Ok(())
}

pub(crate) fn cuDestroyExternalSemaphore(call: &Call, ext_sem: CUexternalSemaphore) -> Answer {
    let driver = call.driver()?;
    driver.semaphores.remove(ext_sem.0).ok_or(INVALID_HANDLE)?;
    Ok(())
}

/// Returns the machine's work for one operation, resolving the semaphore now.
pub(crate) fn work(
    driver: &Driver,
    signals: bool,
    semaphore: CUexternalSemaphore,
    value: u64,
) -> Answer<Work> {
    let id = driver.semaphores.get(semaphore.0).ok_or(INVALID_HANDLE)?.id;
    Ok(if signals { Work::Signal(id, value) } else { Work::Acquire(id, value) })
}

fn perform(driver: &Driver, stream: StreamId, work: &Work) -> Answer {
    match *work {
        Work::Signal(semaphore, value) => {
            driver.machine.signal_semaphore(stream, semaphore, value)?
        }
        Work::Acquire(semaphore, value) => {
            driver.machine.await_semaphore(stream, semaphore, value)?
        }
        _ => return Err(INVALID_VALUE),
    };
    Ok(())
}

/// Parameters of a signal or a wait.
pub(crate) trait Params: Copy {
    /// Returns the value for a timeline semaphore, and the flags.
    fn value_and_flags(&self) -> (u64, c_uint);
}

impl Params for CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS {
    fn value_and_flags(&self) -> (u64, c_uint) {
        (self.fence_value, self.flags)
    }
}

impl Params for CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS {
    fn value_and_flags(&self) -> (u64, c_uint) {
        (self.fence_value, self.flags)
    }
}

pub(crate) fn received<P: Params>(
    driver: &Driver,
    semaphores: In<CUexternalSemaphore>,
    params: In<P>,
    number: c_uint,
) -> Answer<(Vec<CUexternalSemaphore>, Vec<P>)> {
    let number = count(number)?;
    let (semaphores, params) = (semaphores.read_all(number)?, params.read_all(number)?);
    if semaphores.iter().any(|semaphore| driver.semaphores.get(semaphore.0).is_none()) {
        return Err(INVALID_HANDLE);
    }
    // All flags are for kinds of semaphores that are not simulated.
    if params.iter().any(|params| params.value_and_flags().1 != 0) {
        return Err(INVALID_VALUE);
    }
    Ok((semaphores, params))
}

/// Enqueues operations, or adds them to a capture.
fn put<P: Params>(
    call: &Call,
    stream: CUstream,
    (semaphores, params, number): (In<CUexternalSemaphore>, In<P>, c_uint),
    signals: bool,
    node: impl FnOnce(SemaphoresNode<P>) -> Body,
) -> Answer {
    let driver = call.driver()?;
    let lane = capture::lane(driver, stream, call.per_thread)?;
    let (semaphores, params) = received(driver, semaphores, params, number)?;
    match lane {
        Lane::Gpu(stream, _) => {
            semaphores.into_iter().zip(params).try_for_each(|(semaphore, params)| {
                perform(
                    driver,
                    stream,
                    &work(driver, signals, semaphore, params.value_and_flags().0)?,
                )
            })
        }
        Lane::Graph(recorder) => {
            let context = Arc::clone(&recorder.context);
            let node = node(SemaphoresNode {
                semaphores: semaphores.into(),
                params: params.into(),
                context,
            });
            recorder.add(driver, node)
        }
    }
}

pub(crate) fn cuSignalExternalSemaphoresAsync(
    call: &Call,
    ext_sem_array: In<CUexternalSemaphore>,
    params_array: In<CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS>,
    num_ext_sems: c_uint,
    stream: CUstream,
) -> Answer {
    put(call, stream, (ext_sem_array, params_array, num_ext_sems), true, Body::Signal)
}
pub(crate) use cuSignalExternalSemaphoresAsync as cuSignalExternalSemaphoresAsync_ptsz;

pub(crate) fn cuWaitExternalSemaphoresAsync(
    call: &Call,
    ext_sem_array: In<CUexternalSemaphore>,
    params_array: In<CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS>,
    num_ext_sems: c_uint,
    stream: CUstream,
) -> Answer {
    put(call, stream, (ext_sem_array, params_array, num_ext_sems), false, Body::Acquire)
}
pub(crate) use cuWaitExternalSemaphoresAsync as cuWaitExternalSemaphoresAsync_ptsz;
