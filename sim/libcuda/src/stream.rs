//! Streams, including the default ones.

use core::cell::RefCell;
use std::sync::{Arc, Weak};

use cgpu_abi::types::*;
use cgpu_sim::machine::{GREATEST_PRIORITY, StreamId, StreamKind};

use crate::answer::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use crate::argument::{Out, Received, values};
use crate::call::{self, Call};
use crate::capture::{self, Lane};
use crate::context::Context;
use crate::driver::Driver;
use crate::graph::node::{Body, HostNode};

values!(CUstream, CUhostFn, CUstreamCallback, CUgraph, CUgreenCtx);

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) context: Arc<Context>,
    flags: c_uint,
    priority: c_int,
}

/// A thread's default streams, one per context. They end with the thread.
#[derive(Debug, Default)]
struct OwnStreams(Vec<(Weak<Context>, StreamId)>);

impl OwnStreams {
    fn of(&mut self, driver: &Driver, context: &Arc<Context>) -> Answer<StreamId> {
        // A weak reference keeps the address from being reused, so that no later context is
        // mistaken for this one.
        let is_same = |weak: &Weak<Context>| core::ptr::eq(weak.as_ptr(), Arc::as_ptr(context));
        if let Some((_, stream)) = self.0.iter().find(|(weak, _)| is_same(weak)) {
            return Ok(*stream);
        }
        let stream = driver.machine.create_stream(context.id, StreamKind::Blocking)?;
        self.0.retain(|(weak, _)| weak.strong_count() > 0);
        self.0.push((Arc::downgrade(context), stream));
        Ok(stream)
    }
}

impl Drop for OwnStreams {
    fn drop(&mut self) {
        let Some(driver) = Driver::get() else { return };
        for (weak, stream) in self.0.drain(..) {
            let open = weak.upgrade().and_then(|context| driver.contexts.get(context.handle.0));
            if open.is_some_and(|open| core::ptr::eq(Arc::as_ptr(&open), weak.as_ptr())) {
                capture::forget_stream(driver, stream);
                // Fails if the context ends at the same time; the stream then ends with it.
                let _ = driver.machine.destroy_stream(stream);
            }
        }
    }
}

thread_local! {
    static OWN: RefCell<OwnStreams> = const { RefCell::new(OwnStreams(Vec::new())) };
}

/// Returns the machine's stream and the context of a handle.
pub(crate) fn find(
    driver: &Driver,
    handle: CUstream,
    per_thread: bool,
) -> Answer<(StreamId, Arc<Context>)> {
    let handle = match handle {
        CUstream::NULL if per_thread => CUstream::PER_THREAD,
        CUstream::NULL => CUstream::LEGACY,
        other => other,
    };
    match handle {
        CUstream::LEGACY => {
            let context = driver.current()?;
            Ok((driver.machine.legacy_stream(context.id)?, context))
        }
        CUstream::PER_THREAD => {
            let context = driver.current()?;
            Ok((OWN.with_borrow_mut(|own| own.of(driver, &context))?, context))
        }
        CUstream(made) => {
            let stream = driver.streams.get(made).ok_or(INVALID_HANDLE)?;
            Ok((stream.id, Arc::clone(&stream.context)))
        }
    }
}

/// Returns whether a handle is the legacy default stream.
pub(crate) fn is_legacy(_driver: &Driver, handle: CUstream, per_thread: bool) -> bool {
    handle == CUstream::LEGACY || handle.is_null() && !per_thread
}

/// Returns whether a stream synchronises with the legacy default stream.
pub(crate) fn is_blocking(driver: &Driver, handle: CUstream) -> bool {
    driver.streams.get(handle.0).is_none_or(|stream| stream.flags == CU_STREAM_DEFAULT)
}

pub(crate) fn cuStreamCreateWithPriority(
    call: &Call,
    stream: Out<CUstream>,
    flags: c_uint,
    priority: c_int,
) -> Answer {
    let driver = call.driver()?;
    let context = driver.current()?;
    let stream = stream.required()?;
    stream.put(create(driver, &context, flags, priority)?)?;
    Ok(())
}

pub(crate) fn create(
    driver: &Driver,
    context: &Arc<Context>,
    flags: c_uint,
    priority: c_int,
) -> Answer<CUstream> {
    let kind = match flags {
        CU_STREAM_DEFAULT => StreamKind::Blocking,
        CU_STREAM_NON_BLOCKING => StreamKind::NonBlocking,
        _ => return Err(INVALID_VALUE),
    };
    let priority = priority.clamp(GREATEST_PRIORITY, 0);
    let id = driver.machine.create_stream_with_priority(context.id, kind, priority)?;
    context.assembly.join(driver, id)?;
    let context = Arc::clone(context);
    Ok(CUstream(driver.streams.add(Stream { id, context, flags, priority })))
}

pub(crate) fn cuStreamCreate(call: &Call, stream: Out<CUstream>, flags: c_uint) -> Answer {
    cuStreamCreateWithPriority(call, stream, flags, 0)
}

pub(crate) fn cuStreamDestroy_v2(call: &Call, stream: CUstream) -> Answer {
    let driver = call.driver()?;
    let stream = driver.streams.remove(stream.0).ok_or(INVALID_HANDLE)?;
    capture::forget_stream(driver, stream.id);
    driver.machine.destroy_stream(stream.id)?;
    Ok(())
}
pub(crate) use cuStreamDestroy_v2 as cuStreamDestroy;

pub(crate) fn cuStreamQuery(call: &Call, stream: CUstream) -> Answer {
    let driver = call.driver()?;
    let (stream, _) = driver.stream(stream, call.per_thread)?;
    if driver.machine.is_stream_done(stream)? { Ok(()) } else { Err(NOT_READY) }
}
pub(crate) use cuStreamQuery as cuStreamQuery_ptsz;

pub(crate) fn cuStreamSynchronize(call: &Call, stream: CUstream) -> Answer {
    let driver = call.driver()?;
    let (stream, _) = driver.stream(stream, call.per_thread)?;
    driver.machine.synchronize_stream(stream)?;
    Ok(())
}
pub(crate) use cuStreamSynchronize as cuStreamSynchronize_ptsz;

pub(crate) fn cuStreamWaitEvent(
    call: &Call,
    handle: CUstream,
    event: CUevent,
    flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let lane = capture::lane(driver, handle, call.per_thread)?;
    let id = crate::event::find(driver, event)?.id;
    if flags & !CU_EVENT_WAIT_EXTERNAL != 0 {
        return Err(INVALID_VALUE);
    }
    match lane {
        Lane::Graph(recorder) if flags == CU_EVENT_WAIT_EXTERNAL => {
            recorder.add(driver, Body::Await(event))?
        }
        Lane::Graph(recorder) => recorder.wait(driver, event)?,
        Lane::Gpu(stream, context) => {
            if !capture::join_by(driver, handle, call.per_thread, (stream, &context), event)? {
                driver.machine.wait_event(stream, id)?;
            }
        }
    }
    Ok(())
}
pub(crate) use cuStreamWaitEvent as cuStreamWaitEvent_ptsz;

pub(crate) fn cuLaunchHostFunc(
    call: &Call,
    stream: CUstream,
    function: CUhostFn,
    user_data: Out<c_void>,
) -> Answer {
    let driver = call.driver()?;
    let node = HostNode::new(function, user_data.address())?;
    match capture::lane(driver, stream, call.per_thread)? {
        Lane::Graph(recorder) => recorder.add(driver, Body::Host(node)),
        Lane::Gpu(stream, _) => {
            driver.machine.host_function(stream, node.once())?;
            Ok(())
        }
    }
}
pub(crate) use cuLaunchHostFunc as cuLaunchHostFunc_ptsz;

/// Ignores the mode of waiting: one thread calls all host functions, in stream order.
pub(crate) fn cuLaunchHostFunc_v2(
    call: &Call,
    stream: CUstream,
    function: CUhostFn,
    user_data: Out<c_void>,
    _sync_mode: c_uint,
) -> Answer {
    cuLaunchHostFunc(call, stream, function, user_data)
}
pub(crate) use cuLaunchHostFunc_v2 as cuLaunchHostFunc_v2_ptsz;

pub(crate) fn cuStreamAddCallback(
    call: &Call,
    handle: CUstream,
    callback: CUstreamCallback,
    user_data: Out<c_void>,
    flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let (stream, _) = driver.stream(handle, call.per_thread)?;
    let callback = callback.filter(|_| flags == 0).ok_or(INVALID_VALUE)?;
    let data = user_data.address();
    let run = move || {
        // SAFETY: the program passes callback and data to be called together, once, when the stream
        // reaches them.
        unsafe {
            callback(handle, CUresult::SUCCESS, core::ptr::with_exposed_provenance_mut(data))
        };
    };
    driver.machine.host_function(stream, Box::new(move || call::host_function(run)))?;
    Ok(())
}
pub(crate) use cuStreamAddCallback as cuStreamAddCallback_ptsz;

pub(crate) fn cuStreamGetCtx(call: &Call, stream: CUstream, pctx: Out<CUcontext>) -> Answer {
    let driver = call.driver()?;
    let (_, context) = find(driver, stream, call.per_thread)?;
    pctx.put(context.handle)?;
    Ok(())
}
pub(crate) use cuStreamGetCtx as cuStreamGetCtx_ptsz;

pub(crate) fn cuStreamGetCtx_v2(
    call: &Call,
    stream: CUstream,
    ctx: Out<CUcontext>,
    green_ctx: Out<CUgreenCtx>,
) -> Answer {
    cuStreamGetCtx(call, stream, ctx)?;
    green_ctx.put_if_not_null(CUgreenCtx::NULL);
    Ok(())
}
pub(crate) use cuStreamGetCtx_v2 as cuStreamGetCtx_v2_ptsz;

pub(crate) fn cuStreamGetDevice(call: &Call, stream: CUstream, device: Out<CUdevice>) -> Answer {
    let driver = call.driver()?;
    let (_, context) = find(driver, stream, call.per_thread)?;
    device.put(context.device())?;
    Ok(())
}
pub(crate) use cuStreamGetDevice as cuStreamGetDevice_ptsz;

pub(crate) fn cuStreamGetFlags(call: &Call, stream: CUstream, flags: Out<c_uint>) -> Answer {
    let driver = call.driver()?;
    find(driver, stream, call.per_thread)?;
    flags.put(driver.streams.get(stream.0).map_or(CU_STREAM_DEFAULT, |stream| stream.flags))?;
    Ok(())
}
pub(crate) use cuStreamGetFlags as cuStreamGetFlags_ptsz;

/// Returns a unique id: handles are unique, and the numbers after a context's are for its default
/// streams.
pub(crate) fn cuStreamGetId(call: &Call, handle: CUstream, stream_id: Out<c_ulonglong>) -> Answer {
    let driver = call.driver()?;
    let (_, context) = find(driver, handle, call.per_thread)?;
    let own = handle == CUstream::PER_THREAD || handle.is_null() && call.per_thread;
    stream_id.put(match handle {
        CUstream::NULL | CUstream::LEGACY | CUstream::PER_THREAD => {
            context.number + 1 + u64::from(own)
        }
        CUstream(made) => made as u64,
    })?;
    Ok(())
}
pub(crate) use cuStreamGetId as cuStreamGetId_ptsz;

pub(crate) fn cuStreamGetPriority(call: &Call, stream: CUstream, priority: Out<c_int>) -> Answer {
    let driver = call.driver()?;
    find(driver, stream, call.per_thread)?;
    priority.put(driver.streams.get(stream.0).map_or(0, |stream| stream.priority))?;
    Ok(())
}
pub(crate) use cuStreamGetPriority as cuStreamGetPriority_ptsz;
