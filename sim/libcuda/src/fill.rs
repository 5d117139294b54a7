//! Fills. Calls never wait for them: the stream orders what follows.

use core::ptr;
use std::sync::Arc;

use cgpu_abi::types::*;
use cgpu_sim::machine::{Fill, Work};

use crate::answer::{Answer, INVALID_VALUE};
use crate::call::Call;
use crate::capture::{self, Lane};
use crate::driver::{Driver, count, lock};
use crate::graph::node::{Body, FillNode};
use crate::range::{self, Side};

/// Fills `rows` of `elements` of `size` bytes, or adds the fill to a capture.
fn fill(call: &Call, stream: CUstream, fill: Fill) -> Answer {
    let driver = call.driver()?;
    let lane = capture::lane(driver, stream, call.per_thread)?;
    if fill.elements == 0 || fill.rows == 0 {
        return Ok(());
    }
    if !fill.to.is_multiple_of(fill.size) || fill.rows > 1 && fill.pitch < fill.elements * fill.size
    {
        return Err(INVALID_VALUE);
    }
    match (lane, work(driver, fill)?) {
        (Lane::Graph(recorder), _) => {
            let context = Arc::clone(&recorder.context);
            recorder.add(driver, Body::Fill(FillNode { fill, context }))?;
        }
        (Lane::Gpu(stream, _), Work::Fill(fill)) => drop(driver.machine.fill(stream, fill)?),
        (Lane::Gpu(stream, _), Work::Call(call)) => {
            driver.machine.host_function(stream, Box::new(move || call()))?;
        }
        (Lane::Gpu(..), _) => {}
    }
    Ok(())
}

/// Returns the machine's work for a fill, resolving its address now.
pub(crate) fn work(driver: &Driver, fill: Fill) -> Answer<Work> {
    let place = range::resolve(driver, fill.to)?;
    match place.side {
        Side::Device => Ok(Work::Fill(Fill { to: place.address, ..fill })),
        Side::Pinned => {
            let rows = host_rows(driver, fill)?;
            Ok(Work::Call(Arc::new(move || rows.iter().for_each(Row::fill))))
        }
        Side::Pageable => Err(INVALID_VALUE),
    }
}

struct Row {
    first: usize,
    bytes: usize,
    pattern: [u8; 4],
    size: usize,
}

impl Row {
    fn fill(&self) {
        for index in 0..self.bytes {
            let byte = ptr::with_exposed_provenance_mut::<u8>(self.first + index);
            // SAFETY: within memory that was checked to be pinned or managed when the fill was
            // enqueued; the program must not free it before the fill is done. Volatile, because
            // other threads may read the memory meanwhile.
            unsafe { byte.write_volatile(self.pattern[index % self.size]) };
        }
    }
}

fn host_rows(driver: &Driver, fill: Fill) -> Answer<Vec<Row>> {
    let host = lock(&driver.host);
    let (size, bytes) = (count(fill.size)?, count(fill.elements * fill.size)?);
    let row = |index| {
        let first = count(fill.to + index * fill.pitch)?;
        let inside = host.holds(first, bytes);
        inside
            .then_some(Row { first, bytes, pattern: fill.value.to_le_bytes(), size })
            .ok_or(INVALID_VALUE)
    };
    (0..fill.rows).map(row).collect()
}

/// Defines the four functions of one element type.
macro_rules! fills {
    ($($type:ident: $line:ident = $line_ptds:ident, $line_async:ident = $line_ptsz:ident,
        $rows:ident = $rows_ptds:ident, $rows_async:ident = $rows_ptsz:ident;)*) => {$(
        pub(crate) fn $line_async(
            call: &Call,
            dst_device: CUdeviceptr,
            value: $type,
            n: usize,
            stream: CUstream,
        ) -> Answer {
            let (value, size) = (u32::from(value), size_of::<$type>() as u64);
            let elements = n as u64;
            fill(call, stream, Fill { to: dst_device, value, size, elements, rows: 1, pitch: 0 })
        }
        pub(crate) use $line_async as $line_ptsz;

        pub(crate) fn $line(
            call: &Call,
            dst_device: CUdeviceptr,
            value: $type,
            n: usize,
        ) -> Answer {
            $line_async(call, dst_device, value, n, CUstream::NULL)
        }
        pub(crate) use $line as $line_ptds;

        pub(crate) fn $rows_async(
            call: &Call,
            dst_device: CUdeviceptr,
            dst_pitch: usize,
            value: $type,
            width: usize,
            height: usize,
            stream: CUstream,
        ) -> Answer {
            let (value, size) = (u32::from(value), size_of::<$type>() as u64);
            let (elements, rows, pitch) = (width as u64, height as u64, dst_pitch as u64);
            fill(call, stream, Fill { to: dst_device, value, size, elements, rows, pitch })
        }
        pub(crate) use $rows_async as $rows_ptsz;

        pub(crate) fn $rows(
            call: &Call,
            dst_device: CUdeviceptr,
            dst_pitch: usize,
            value: $type,
            width: usize,
            height: usize,
        ) -> Answer {
            $rows_async(call, dst_device, dst_pitch, value, width, height, CUstream::NULL)
        }
        pub(crate) use $rows as $rows_ptds;
    )*};
}

fills! {
    u8: cuMemsetD8_v2 = cuMemsetD8_v2_ptds, cuMemsetD8Async = cuMemsetD8Async_ptsz,
        cuMemsetD2D8_v2 = cuMemsetD2D8_v2_ptds, cuMemsetD2D8Async = cuMemsetD2D8Async_ptsz;
    u16: cuMemsetD16_v2 = cuMemsetD16_v2_ptds, cuMemsetD16Async = cuMemsetD16Async_ptsz,
        cuMemsetD2D16_v2 = cuMemsetD2D16_v2_ptds, cuMemsetD2D16Async = cuMemsetD2D16Async_ptsz;
    u32: cuMemsetD32_v2 = cuMemsetD32_v2_ptds, cuMemsetD32Async = cuMemsetD32Async_ptsz,
        cuMemsetD2D32_v2 = cuMemsetD2D32_v2_ptds, cuMemsetD2D32Async = cuMemsetD2D32Async_ptsz;
}
