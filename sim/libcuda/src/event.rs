//! Events.

use std::sync::Arc;

use cgpu_abi::types::*;
use cgpu_sim::Error;
use cgpu_sim::machine::EventId;

use crate::answer::{
    Answer, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_READY, PEER_ACCESS_UNSUPPORTED,
};
use crate::argument::{Out, Received, values};
use crate::call::Call;
use crate::capture::{self, Lane};
use crate::context::Context;
use crate::driver::Driver;
use crate::graph::node::Body;

values!(CUevent, CUipcEventHandle);

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) id: EventId,
    pub(crate) context: Arc<Context>,
    /// Of an imported event: the name that identifies it while it exists.
    opened: Option<u64>,
}

pub(crate) fn find(driver: &Driver, event: CUevent) -> Answer<Arc<Event>> {
    let event = driver.events.get(event.0).ok_or(INVALID_HANDLE)?;
    // Using an event that its creator has destroyed is undefined in the driver; here it is
    // detected.
    if event.opened.is_some() && driver.machine.event_name(event.id)? != event.opened {
        return Err(INVALID_HANDLE);
    }
    Ok(event)
}

/// Returns an event whose completion the host may query.
fn queryable(driver: &Driver, handle: CUevent) -> Answer<Arc<Event>> {
    let event = find(driver, handle)?;
    capture::refuse_captured(driver, handle)?;
    capture::refuse_unsafe(driver)?;
    Ok(event)
}

pub(crate) fn cuEventCreate(call: &Call, event: Out<CUevent>, flags: c_uint) -> Answer {
    let driver = call.driver()?;
    let context = driver.current()?;
    let event = event.required()?;
    let known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    // An interprocess event has no timing.
    if flags & !known != 0
        || flags & CU_EVENT_INTERPROCESS != 0 && flags & CU_EVENT_DISABLE_TIMING == 0
    {
        return Err(INVALID_VALUE);
    }
    let id = driver.machine.create_event(context.id, flags & CU_EVENT_DISABLE_TIMING == 0)?;
    if flags & CU_EVENT_INTERPROCESS != 0 {
        driver.machine.name_event(id)?;
    }
    event.put(CUevent(driver.events.add(Event { id, context, opened: None })))?;
    Ok(())
}

pub(crate) fn cuEventDestroy_v2(call: &Call, event: CUevent) -> Answer {
    let driver = call.driver()?;
    let removed = driver.events.remove(event.0).ok_or(INVALID_HANDLE)?;
    capture::unmark(driver, event);
    // An imported event outlives its handle here.
    if removed.opened.is_none() {
        driver.machine.destroy_event(removed.id)?;
    }
    Ok(())
}
pub(crate) use cuEventDestroy_v2 as cuEventDestroy;

fn record(call: &Call, handle: CUevent, stream: CUstream, external: bool) -> Answer {
    let driver = call.driver()?;
    let event = find(driver, handle)?;
    let lane = capture::lane(driver, stream, call.per_thread)?;
    let context = match &lane {
        Lane::Gpu(_, context) => context,
        Lane::Graph(recorder) => &recorder.context,
    };
    if event.context.id != context.id {
        return Err(INVALID_HANDLE);
    }
    match lane {
        Lane::Graph(recorder) if external => recorder.add(driver, Body::Record(handle)),
        Lane::Graph(recorder) => recorder.mark(driver, handle),
        Lane::Gpu(stream, _) => {
            capture::unmark(driver, handle);
            driver.machine.record_event(event.id, stream)?;
            Ok(())
        }
    }
}

pub(crate) fn cuEventRecord(call: &Call, event: CUevent, stream: CUstream) -> Answer {
    record(call, event, stream, false)
}
pub(crate) use cuEventRecord as cuEventRecord_ptsz;

pub(crate) fn cuEventRecordWithFlags(
    call: &Call,
    event: CUevent,
    stream: CUstream,
    flags: c_uint,
) -> Answer {
    if flags & !CU_EVENT_RECORD_EXTERNAL != 0 {
        return Err(INVALID_VALUE);
    }
    record(call, event, stream, flags == CU_EVENT_RECORD_EXTERNAL)
}
pub(crate) use cuEventRecordWithFlags as cuEventRecordWithFlags_ptsz;

pub(crate) fn cuEventQuery(call: &Call, event: CUevent) -> Answer {
    if event.is_null() {
        return Err(INVALID_HANDLE);
    }
    let driver = call.driver()?;
    let id = queryable(driver, event)?.id;
    if driver.machine.is_event_done(id)? { Ok(()) } else { Err(NOT_READY) }
}

pub(crate) fn cuEventSynchronize(call: &Call, event: CUevent) -> Answer {
    let driver = call.driver()?;
    driver.machine.synchronize_event(queryable(driver, event)?.id)?;
    Ok(())
}

pub(crate) fn cuEventElapsedTime(
    call: &Call,
    milliseconds: Out<f32>,
    start: CUevent,
    end: CUevent,
) -> Answer {
    let driver = call.driver()?;
    let milliseconds = milliseconds.required()?;
    capture::refuse_captured(driver, start)?;
    capture::refuse_captured(driver, end)?;
    let (start, end) = (find(driver, start)?, find(driver, end)?);
    if start.context.id != end.context.id {
        return Err(INVALID_HANDLE);
    }
    let elapsed = driver.machine.elapsed(start.id, end.id)?.ok_or(NOT_READY)?;
    milliseconds.put(cgpu_sim::machine::milliseconds(elapsed))?;
    Ok(())
}
pub(crate) use cuEventElapsedTime as cuEventElapsedTime_v2;

/// First eight bytes of an event's IPC handle.
const MAGIC: [u8; 8] = *b"cgpusimE";

/// Fails unless the event was created with CU_EVENT_INTERPROCESS.
pub(crate) fn cuIpcGetEventHandle(
    call: &Call,
    handle: Out<CUipcEventHandle>,
    event: CUevent,
) -> Answer {
    let driver = call.driver()?;
    let (handle, event) = (handle.required()?, find(driver, event)?);
    let name = driver
        .machine
        .event_name(event.id)?
        .filter(|_| event.opened.is_none())
        .ok_or(INVALID_HANDLE)?;
    let mut bytes = [0; 64];
    for (place, part) in
        bytes.chunks_exact_mut(8).zip([MAGIC, event.id.get().to_le_bytes(), name.to_le_bytes()])
    {
        place.copy_from_slice(&part);
    }
    handle.put(CUipcEventHandle { reserved: bytes.map(u8::cast_signed) })?;
    Ok(())
}

/// Imports an event of another process into the current context. A process cannot import its own.
pub(crate) fn cuIpcOpenEventHandle(
    call: &Call,
    event: Out<CUevent>,
    handle: CUipcEventHandle,
) -> Answer {
    let driver = call.driver()?;
    let (event, context) = (event.required()?, driver.current()?);
    let bytes = handle.reserved.map(i8::cast_unsigned);
    let part = |number: usize| {
        let mut part = [0; 8];
        part.copy_from_slice(&bytes[8 * number..8 * number + 8]);
        part
    };
    if part(0) != MAGIC {
        return Err(INVALID_VALUE);
    }
    let name = u64::from_le_bytes(part(2));
    let (id, gpu) = match driver.machine.open_event(u64::from_le_bytes(part(1)), name) {
        Err(Error::NoEvent) => return Err(INVALID_HANDLE),
        Err(Error::Invalid(_)) => return Err(INVALID_CONTEXT),
        opened => opened?,
    };
    if gpu != context.gpu {
        return Err(PEER_ACCESS_UNSUPPORTED);
    }
    event.put(CUevent(driver.events.add(Event { id, context, opened: Some(name) })))?;
    Ok(())
}
