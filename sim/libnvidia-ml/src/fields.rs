//! Fields queried by number. Each field has its own result; fields that are not listed here are not
//! supported.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use cgpu_abi::nvml_types::*;

use crate::answer::{Answer, INVALID_ARGUMENT};
use crate::argument::Out;
use crate::board;
use crate::device::{Gpu, find};

/// Returns the value of a field, as 64 bits of a type.
fn value(gpu: &Gpu, field: c_uint) -> Option<(nvmlValueType_t, c_ulonglong)> {
    let int = |value: c_uint| Some((NVML_VALUE_TYPE_UNSIGNED_INT, value.into()));
    match field {
        // ECC is enabled, now and after the next reset. There were no errors: no retired pages,
        // remapped rows, replays.
        1 | 2 => int(1),
        29..=31 | 92..=95 | 142..=145 => int(0),
        // Memory temperature.
        82 => int(board::degrees(gpu).ok()?),
        // Number of NVLinks.
        91 => int(0),
        // Power: average, instant; limits: minimum, maximum, default, current, requested.
        185 | 186 => int(board::milliwatts(gpu, gpu.machine.utilisation(gpu.index).ok()?.gpu)),
        187 => int(board::limit(gpu) / 2),
        188..=190 | 192 => int(board::limit(gpu)),
        _ => None,
    }
}

pub(crate) fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    values_count: c_int,
    values: Out<nvmlFieldValue_t>,
) -> Answer {
    let gpu = find(device)?;
    let count =
        usize::try_from(values_count).ok().filter(|count| *count > 0).ok_or(INVALID_ARGUMENT)?;
    let mut requested = values.read_all(count)?;
    for field in &mut requested {
        let begun = Instant::now();
        let found = value(&gpu, field.field_id);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        field.timestamp = c_longlong::try_from(now.as_micros()).unwrap_or(c_longlong::MAX);
        field.latency_usec =
            c_longlong::try_from(begun.elapsed().as_micros()).unwrap_or(c_longlong::MAX);
        field.nvml_return =
            if found.is_some() { nvmlReturn_t::SUCCESS } else { nvmlReturn_t::ERROR_NOT_SUPPORTED };
        let (value_type, bits) = found.unwrap_or((NVML_VALUE_TYPE_UNSIGNED_INT, 0));
        (field.value_type, field.value) = (value_type, nvmlValue_t(bits));
    }
    values.put_all(requested, count)?;
    Ok(())
}
