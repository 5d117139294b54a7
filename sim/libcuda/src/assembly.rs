//! Events of whole contexts: recorded after the work of all their streams, or waited for by all of
//! them.
//!
//! Each context has two hidden streams for this. On one, records wait for the other streams. The
//! other holds the waits that streams created later have to join. Per-thread default streams take
//! no part.

use std::sync::{Arc, OnceLock};

use cgpu_abi::types::*;
use cgpu_sim::machine::{StreamId, StreamKind};

use crate::answer::{Answer, INVALID_HANDLE, STREAM_CAPTURE_UNSUPPORTED};
use crate::call::Call;
use crate::capture;
use crate::context::Context;
use crate::driver::Driver;
use crate::{event, green};

#[derive(Debug, Default)]
pub(crate) struct Assembly {
    records: OnceLock<StreamId>,
    waits: OnceLock<StreamId>,
}

fn hidden(driver: &Driver, context: &Context, place: &OnceLock<StreamId>) -> Answer<StreamId> {
    if let Some(stream) = place.get() {
        return Ok(*stream);
    }
    let made = driver.machine.create_stream(context.id, StreamKind::NonBlocking)?;
    let stored = *place.get_or_init(|| made);
    if stored != made {
        // Another thread was first.
        driver.machine.destroy_stream(made)?;
    }
    Ok(stored)
}

impl Assembly {
    /// Destroys the hidden streams of a green context.
    pub(crate) fn close(&self, driver: &Driver) {
        for stream in [&self.records, &self.waits].into_iter().filter_map(OnceLock::get) {
            // Fails if the primary context was destroyed before, with its streams.
            let _ = driver.machine.destroy_stream(*stream);
        }
    }

    /// Makes a new stream wait for what the context waits for.
    pub(crate) fn join(&self, driver: &Driver, stream: StreamId) -> Answer {
        if let Some(waits) = self.waits.get() {
            driver.machine.wait_ticket(stream, driver.machine.tail(*waits)?)?;
        }
        Ok(())
    }
}

/// Returns a context's streams. Fails if any is capturing, and invalidates those captures.
fn streams(driver: &Driver, context: &Context) -> Answer<Vec<StreamId>> {
    let found = driver.streams.all(|stream| stream.context.number == context.number);
    let mut streams = Vec::new();
    let mut refused = Ok(());
    for (handle, stream) in found {
        match capture::refuse(driver, CUstream(handle), false) {
            Ok(_) => streams.push(stream.id),
            Err(_) => refused = Err(STREAM_CAPTURE_UNSUPPORTED),
        }
    }
    refused?;
    // A green context shares the primary context's default stream.
    if context.multiprocessors.is_none() {
        streams.push(driver.machine.legacy_stream(context.id)?);
    }
    Ok(streams)
}

fn record(driver: &Driver, context: &Context, handle: CUevent) -> Answer {
    let event = event::find(driver, handle)?;
    if event.context.id != context.id {
        return Err(INVALID_HANDLE);
    }
    let streams = streams(driver, context)?;
    capture::unmark(driver, handle);
    let gathering = hidden(driver, context, &context.assembly.records)?;
    for stream in streams {
        driver.machine.wait_ticket(gathering, driver.machine.tail(stream)?)?;
    }
    driver.machine.record_event(event.id, gathering)?;
    Ok(())
}

fn wait(driver: &Driver, context: &Context, handle: CUevent) -> Answer {
    let event = event::find(driver, handle)?;
    capture::refuse_captured(driver, handle).map_err(|_| STREAM_CAPTURE_UNSUPPORTED)?;
    let mut streams = streams(driver, context)?;
    streams.push(hidden(driver, context, &context.assembly.waits)?);
    for stream in streams {
        driver.machine.wait_event(stream, event.id)?;
    }
    Ok(())
}

fn green_view(driver: &Driver, green: CUgreenCtx) -> Answer<Arc<Context>> {
    Ok(Arc::clone(&green::find(driver, green)?.context))
}

pub(crate) fn cuCtxRecordEvent(call: &Call, context: CUcontext, event: CUevent) -> Answer {
    let driver = call.driver()?;
    record(driver, &*driver.context(context)?, event)
}

pub(crate) fn cuCtxWaitEvent(call: &Call, context: CUcontext, event: CUevent) -> Answer {
    let driver = call.driver()?;
    wait(driver, &*driver.context(context)?, event)
}

pub(crate) fn cuGreenCtxRecordEvent(call: &Call, green: CUgreenCtx, event: CUevent) -> Answer {
    let driver = call.driver()?;
    record(driver, &*green_view(driver, green)?, event)
}

pub(crate) fn cuGreenCtxWaitEvent(call: &Call, green: CUgreenCtx, event: CUevent) -> Answer {
    let driver = call.driver()?;
    wait(driver, &*green_view(driver, green)?, event)
}
