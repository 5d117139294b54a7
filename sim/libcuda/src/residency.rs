//! The present location of managed and pageable memory. All of it is host memory here: resident
//! pages are on the only NUMA node, all others nowhere.

use cgpu_abi::types::*;

use crate::answer::{Answer, INVALID_VALUE};
use crate::argument::Out;
use crate::call::Call;
use crate::driver::{Driver, count, lock};
use crate::host::Kind;

const PAGE: u64 = 4096;

/// Returns which pages of a range are resident, from the page with the first byte.
fn resident(first: u64, bytes: u64) -> Answer<Vec<bool>> {
    let start = first / PAGE * PAGE;
    let length = first + bytes - start;
    let mut pages = vec![0_u8; count(length.div_ceil(PAGE))?];
    let address = core::ptr::without_provenance_mut(count(start)?);
    // SAFETY: queries the kernel about pages by their addresses, without accessing them. It writes
    // one byte for each page, and `pages` has space for them.
    if unsafe { libc::mincore(address, count(length)?, pages.as_mut_ptr()) } == -1 {
        // Not mapped.
        return Err(INVALID_VALUE);
    }
    Ok(pages.into_iter().map(|page| page & 1 != 0).collect())
}

/// Returns whether a range is managed memory, or pageable memory that the driver does not know.
fn is_unified(driver: &Driver, first: u64, bytes: u64) -> Answer<bool> {
    let last = first + bytes - 1;
    if driver.machine.is_device(first) || driver.machine.is_device(last) {
        return Ok(false);
    }
    let host = lock(&driver.host);
    for place in [first, last] {
        if host.find(count(place)?).is_some_and(|range| range.kind != Kind::Managed) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes for each part of a range where most pages of a sample are.
pub(crate) fn cuMemGetLocationInfo(
    call: &Call,
    ptr: CUdeviceptr,
    size: usize,
    summary_granularity: usize,
    sampling_granularity: usize,
    location_out: Out<CUmemLocation>,
) -> Answer {
    let driver = call.driver()?;
    let to = location_out.required()?;
    let (bytes, part) = (size as u64, summary_granularity as u64);
    if ptr == 0 || part == 0 || part > bytes || sampling_granularity > summary_granularity {
        return Err(INVALID_VALUE);
    }
    if ptr.checked_add(bytes).is_none() || !is_unified(driver, ptr, bytes)? {
        return Err(INVALID_VALUE);
    }
    let step = if sampling_granularity == 0 { PAGE } else { sampling_granularity as u64 };
    let pages = resident(ptr, bytes)?;
    let mut locations = Vec::new();
    for start in (0..bytes).step_by(summary_granularity) {
        let page = |at| count((ptr % PAGE + at) / PAGE);
        let sample = (start..bytes.min(start + part)).step_by(count(step)?);
        let sample = sample.map(|at| Ok(pages[page(at)?])).collect::<Answer<Vec<bool>>>()?;
        let resident = 2 * sample.iter().filter(|&&page| page).count() >= sample.len();
        locations.push(CUmemLocation {
            kind: if resident {
                CU_MEM_LOCATION_TYPE_HOST_NUMA
            } else {
                CU_MEM_LOCATION_TYPE_INVALID
            },
            id: 0,
        });
    }
    let capacity = locations.len();
    to.put_all(locations, capacity)?;
    Ok(())
}
