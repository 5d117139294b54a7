//! Events.

use std::sync::Arc;

use cgpu_abi::types::*;
use cgpu_sim::machine::EventId;

use crate::answer::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use crate::argument::{Out, Received, values};
use crate::call::Call;
use crate::capture::{self, Lane};
use crate::context::Context;
use crate::driver::Driver;
use crate::graph::node::Body;

values!(CUevent);

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) id: EventId,
    pub(crate) context: Arc<Context>,
}

fn find(driver: &Driver, event: CUevent) -> Answer<Arc<Event>> {
    driver.events.get(event.0).ok_or(INVALID_HANDLE)
}

/// An event of which the host may ask whether the card has come by.
fn askable(driver: &Driver, handle: CUevent) -> Answer<Arc<Event>> {
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
    // An event for several processes has no times.
    if flags & !known != 0 || flags & CU_EVENT_INTERPROCESS != 0 && flags & CU_EVENT_DISABLE_TIMING == 0 {
        return Err(INVALID_VALUE);
    }
    let id = driver.machine.create_event(context.id, flags & CU_EVENT_DISABLE_TIMING == 0)?;
    event.put(CUevent(driver.events.add(Event { id, context })))?;
    Ok(())
}

pub(crate) fn cuEventDestroy_v2(call: &Call, event: CUevent) -> Answer {
    let driver = call.driver()?;
    let gone = driver.events.remove(event.0).ok_or(INVALID_HANDLE)?;
    capture::unmark(driver, event);
    driver.machine.destroy_event(gone.id)?;
    Ok(())
}
pub(crate) use cuEventDestroy_v2 as cuEventDestroy;

fn record(call: &Call, handle: CUevent, stream: CUstream, external: bool) -> Answer {
    let driver = call.driver()?;
    let event = find(driver, handle)?;
    let lane = capture::lane(driver, stream, call.per_thread)?;
    let context = match &lane {
        Lane::Card(_, context) => context,
        Lane::Graph(recorder) => &recorder.context,
    };
    if event.context.id != context.id {
        return Err(INVALID_HANDLE);
    }
    match lane {
        Lane::Graph(recorder) if external => recorder.add(driver, Body::Record(handle)),
        Lane::Graph(recorder) => recorder.mark(driver, handle),
        Lane::Card(stream, _) => {
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

pub(crate) fn cuEventRecordWithFlags(call: &Call, event: CUevent, stream: CUstream, flags: c_uint) -> Answer {
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
    let id = askable(driver, event)?.id;
    if driver.machine.is_event_done(id)? { Ok(()) } else { Err(NOT_READY) }
}

pub(crate) fn cuEventSynchronize(call: &Call, event: CUevent) -> Answer {
    let driver = call.driver()?;
    driver.machine.synchronize_event(askable(driver, event)?.id)?;
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
