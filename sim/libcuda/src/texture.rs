//! Texture and surface objects. They describe memory and take none; simulated kernels do not read
//! through them.

use std::sync::Arc;

use cgpu_abi::types::*;

use crate::answer::{Answer, INVALID_HANDLE, INVALID_VALUE};
use crate::argument::{In, Out};
use crate::array;
use crate::call::Call;
use crate::context::Context;
use crate::driver::{Driver, count};

#[derive(Debug)]
pub(crate) struct View {
    pub(crate) context: Arc<Context>,
    resource: CUDA_RESOURCE_DESC,
    /// How a texture is read.
    texture: Option<CUDA_TEXTURE_DESC>,
    /// The part of the resource that is visible, if the program selected one.
    part: Option<CUDA_RESOURCE_VIEW_DESC>,
}

/// Checks that the resource exists. Returns the flags of an array.
fn check(driver: &Driver, resource: &CUDA_RESOURCE_DESC) -> Answer<c_uint> {
    let first = resource.resource[0];
    match resource.kind {
        CU_RESOURCE_TYPE_ARRAY | CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => {
            Ok(array::find(driver, CUarray(count(first)?))?.descriptor.flags)
        }
        CU_RESOURCE_TYPE_LINEAR | CU_RESOURCE_TYPE_PITCH2D if driver.machine.is_device(first) => {
            Ok(0)
        }
        _ => Err(INVALID_VALUE),
    }
}

fn find(call: &Call, object: c_ulonglong) -> Answer<Arc<View>> {
    call.driver()?.views.get(count(object)?).ok_or(INVALID_HANDLE)
}

fn destroy(call: &Call, object: c_ulonglong) -> Answer {
    call.driver()?.views.remove(count(object)?).map(|_| ()).ok_or(INVALID_HANDLE)
}

pub(crate) fn cuTexObjectCreate(
    call: &Call,
    tex_object: Out<CUtexObject>,
    res_desc: In<CUDA_RESOURCE_DESC>,
    tex_desc: In<CUDA_TEXTURE_DESC>,
    res_view_desc: In<CUDA_RESOURCE_VIEW_DESC>,
) -> Answer {
    let driver = call.driver()?;
    let to = tex_object.required()?;
    let context = driver.current()?;
    let (resource, texture) = (res_desc.read()?, tex_desc.read()?);
    check(driver, &resource)?;
    // NULL selects all of it.
    let part = res_view_desc.read().ok();
    to.put(
        driver.views.add(View { context, resource, texture: Some(texture), part }) as CUtexObject
    )?;
    Ok(())
}

pub(crate) fn cuTexObjectDestroy(call: &Call, tex_object: CUtexObject) -> Answer {
    destroy(call, tex_object)
}

pub(crate) fn cuTexObjectGetResourceDesc(
    call: &Call,
    res_desc: Out<CUDA_RESOURCE_DESC>,
    tex_object: CUtexObject,
) -> Answer {
    res_desc.put(find(call, tex_object)?.resource)?;
    Ok(())
}

pub(crate) fn cuTexObjectGetTextureDesc(
    call: &Call,
    tex_desc: Out<CUDA_TEXTURE_DESC>,
    tex_object: CUtexObject,
) -> Answer {
    tex_desc.put(find(call, tex_object)?.texture.ok_or(INVALID_VALUE)?)?;
    Ok(())
}

pub(crate) fn cuTexObjectGetResourceViewDesc(
    call: &Call,
    res_view_desc: Out<CUDA_RESOURCE_VIEW_DESC>,
    tex_object: CUtexObject,
) -> Answer {
    res_view_desc.put(find(call, tex_object)?.part.ok_or(INVALID_VALUE)?)?;
    Ok(())
}

/// Fails unless the array was created for surfaces.
pub(crate) fn cuSurfObjectCreate(
    call: &Call,
    surf_object: Out<CUsurfObject>,
    res_desc: In<CUDA_RESOURCE_DESC>,
) -> Answer {
    let driver = call.driver()?;
    let to = surf_object.required()?;
    let context = driver.current()?;
    let resource = res_desc.read()?;
    let flags = check(driver, &resource)?;
    if resource.kind != CU_RESOURCE_TYPE_ARRAY || flags & CUDA_ARRAY3D_SURFACE_LDST == 0 {
        return Err(INVALID_VALUE);
    }
    let view = View { context, resource, texture: None, part: None };
    to.put(driver.views.add(view) as CUsurfObject)?;
    Ok(())
}

pub(crate) fn cuSurfObjectDestroy(call: &Call, surf_object: CUsurfObject) -> Answer {
    destroy(call, surf_object)
}

pub(crate) fn cuSurfObjectGetResourceDesc(
    call: &Call,
    res_desc: Out<CUDA_RESOURCE_DESC>,
    surf_object: CUsurfObject,
) -> Answer {
    res_desc.put(find(call, surf_object)?.resource)?;
    Ok(())
}
