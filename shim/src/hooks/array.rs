//! Arrays: charged before they are made, by the size that the driver reports for one.

use cgpu_abi::driver_index;
use cgpu_abi::types::*;
use cgpu_memory::{ArrayId, Bytes, Reason, Shape};

use super::answer::denied;
use super::memory::{call_retrying, free};
use crate::current::{current, current_device};
use crate::devices::DriverOrdinal;
use crate::driver;
use crate::process;

hooks! { call;
    // 32-bit sizes, up to two dimensions.
    cuArrayCreate(array: *mut CUarray, descriptor: *const CUDA_ARRAY_DESCRIPTOR_v1) => {
        // SAFETY: null, or the program's own record, which the driver would read as well.
        let shape = unsafe { read(descriptor) }
            .map(|of| flat(of.width.into(), of.height.into(), of.format, of.num_channels));
        // SAFETY: read after the driver has succeeded, so it has written there.
        create(shape, call, || ArrayId::Array(unsafe { array.read() }.0))
    };

    // Up to two dimensions.
    cuArrayCreate_v2(array: *mut CUarray, descriptor: *const CUDA_ARRAY_DESCRIPTOR) => {
        // SAFETY: null, or the program's own record, which the driver would read as well.
        let shape = unsafe { read(descriptor) }
            .map(|of| flat(of.width as u64, of.height as u64, of.format, of.num_channels));
        // SAFETY: read after the driver has succeeded, so it has written there.
        create(shape, call, || ArrayId::Array(unsafe { array.read() }.0))
    };
}

/// 32-bit sizes.
pub(crate) unsafe fn cuArray3DCreate(
    array: *mut CUarray,
    descriptor: *const CUDA_ARRAY3D_DESCRIPTOR_v1,
) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuArray3DCreate(array, descriptor) };
    // SAFETY: null, or the program's own record, which the driver would read as well.
    let shape = unsafe { read(descriptor) }.map(|of| Shape {
        depth: of.depth.into(),
        flags: of.flags,
        ..flat(of.width.into(), of.height.into(), of.format, of.num_channels)
    });
    // SAFETY: read after the driver has succeeded, so it has written there.
    create(shape, call, || ArrayId::Array(unsafe { array.read() }.0))
}

hooks! { call;
    // Of any form.
    cuArray3DCreate_v2(array: *mut CUarray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR) => {
        // SAFETY: null, or the program's own record, which the driver would read as well.
        let shape = unsafe { read(descriptor) }.map(|of| shape(&of, 0));
        // SAFETY: read after the driver has succeeded, so it has written there.
        create(shape, call, || ArrayId::Array(unsafe { array.read() }.0))
    };

    // All levels at once.
    cuMipmappedArrayCreate(
        array: *mut CUmipmappedArray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR, levels: c_uint,
    ) => {
        // SAFETY: null, or the program's own record, which the driver would read as well.
        let shape = unsafe { read(descriptor) }.map(|of| shape(&of, levels.max(1)));
        // SAFETY: read after the driver has succeeded, so it has written there.
        create(shape, call, || ArrayId::Mipmapped(unsafe { array.read() }.0))
    };

    // Refunds the array; one that is not accounted still goes to the driver.
    cuArrayDestroy(array: CUarray) => destroy(ArrayId::Array(array.0), call);

    // Its levels are destroyed with it.
    cuMipmappedArrayDestroy(array: CUmipmappedArray) => destroy(ArrayId::Mipmapped(array.0), call);
}

fn destroy(array: ArrayId, call: impl FnOnce() -> CUresult) -> CUresult {
    let leaving = process::tenant().and_then(|tenant| tenant.physical().begin_array_destroy(array));
    let answer = free(array.address().0, call);
    if let (CUresult::SUCCESS, Some(leaving)) = (answer, leaving) {
        leaving.destroyed();
    }
    answer
}

/// Charges an array of that shape, makes the call, and, if it succeeds, records the array that
/// `made` returns. Without a shape the driver reports the error.
fn create(
    shape: Option<Shape>,
    call: impl Fn() -> CUresult,
    made: impl FnOnce() -> ArrayId,
) -> CUresult {
    let tenant = tenant_or_return!(call());
    let (Some(shape), Some(context)) =
        (shape.filter(|shape| !shape.is_mapped_later()), current(tenant))
    else {
        return call();
    };
    let gpu = context.gpu();
    let size = tenant.arrays().size(gpu, &shape).unwrap_or_else(|| match required(&shape) {
        Some(size) => {
            tenant.arrays().takes(gpu, shape, size);
            size
        }
        None => {
            tenant.count(Reason::ArrayBounded);
            shape.bound()
        }
    });
    let charge = match tenant.charge(gpu, size) {
        Ok(charge) => charge,
        Err(over) => return denied(over),
    };
    let answer = call_retrying(tenant, gpu, call);
    if answer == CUresult::SUCCESS {
        charge.commit(made().address(), Some(context));
    }
    answer
}

/// Returns the size of an array in the current context. It is queried from an array of the same
/// shape whose memory would be mapped later, so that it takes none.
fn required(shape: &Shape) -> Option<Bytes> {
    let answers = [
        driver_index::cuArrayGetMemoryRequirements,
        driver_index::cuMipmappedArrayGetMemoryRequirements,
    ];
    if !answers.into_iter().all(driver::has) {
        return None;
    }
    let DriverOrdinal(device) = current_device().ok()?;
    let twin = CUDA_ARRAY3D_DESCRIPTOR {
        width: usize::try_from(shape.width).ok()?,
        height: usize::try_from(shape.height).ok()?,
        depth: usize::try_from(shape.depth).ok()?,
        format: shape.format,
        num_channels: shape.channels,
        flags: shape.flags | Shape::DEFERRED,
    };
    let needs = if shape.levels == 0 {
        // SAFETY: the handle is writable, the record readable.
        let array =
            driver::get(|array| unsafe { driver::cuArray3DCreate_v2(array, &raw const twin) });
        let array = array.ok()?;
        let needs = driver::get(|needs| {
            // SAFETY: the record is writable, and the array was just created.
            unsafe { driver::cuArrayGetMemoryRequirements(needs, array, device) }
        });
        // SAFETY: the array was created above, and the program does not know it. The result does
        // not matter.
        let _ = unsafe { driver::cuArrayDestroy(array) };
        needs
    } else {
        let array = driver::get(|array| {
            // SAFETY: the handle is writable, the record readable.
            unsafe { driver::cuMipmappedArrayCreate(array, &raw const twin, shape.levels) }
        });
        let array = array.ok()?;
        let needs = driver::get(|needs| {
            // SAFETY: the record is writable, and the array was just created.
            unsafe { driver::cuMipmappedArrayGetMemoryRequirements(needs, array, device) }
        });
        // SAFETY: the array was created above, and the program does not know it. The result does
        // not matter.
        let _ = unsafe { driver::cuMipmappedArrayDestroy(array) };
        needs
    };
    needs.ok().map(|needs: CUDA_ARRAY_MEMORY_REQUIREMENTS| Bytes(needs.size as u64))
}

fn flat(width: u64, height: u64, format: CUarray_format, channels: c_uint) -> Shape {
    Shape { width, height, depth: 0, format, channels, flags: 0, levels: 0 }
}

pub(super) fn shape(of: &CUDA_ARRAY3D_DESCRIPTOR, levels: c_uint) -> Shape {
    Shape {
        depth: of.depth as u64,
        flags: of.flags,
        levels,
        ..flat(of.width as u64, of.height as u64, of.format, of.num_channels)
    }
}

/// Reads a record of the program.
///
/// # Safety
///
/// `record` is null or readable.
unsafe fn read<T: Copy>(record: *const T) -> Option<T> {
    // SAFETY: not null, so readable as the caller guarantees.
    (!record.is_null()).then(|| unsafe { record.read() })
}
