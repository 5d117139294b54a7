//! Multicast objects and logical endpoints, of the first GPU.

use std::os::fd::AsRawFd;

use anyhow::{Result, bail};

use crate::actor::{Actor, NOT_OURS};
use crate::driver::place;
use crate::records::{DESCRIPTOR, EndpointProperty, TeamProperty, UNICAST};

/// A multicast object's handle, or an endpoint's number.
#[derive(Clone, Copy)]
pub(crate) enum Object {
    Multicast(usize),
    Endpoint(usize),
}

impl Actor {
    pub(crate) fn create_multicast(&mut self, name: u32, bytes: u64, shared: bool) -> Result<i32> {
        let handle_types = if shared { u64::from(DESCRIPTOR) } else { 0 };
        let mut wanted =
            TeamProperty { devices: 1, size: usize::try_from(bytes)?, handle_types, flags: 0 };
        let mut handle = 0_u64;
        let code =
            self.cuda.call(c"cuMulticastCreate", [place(&mut handle), place(&mut wanted)])?;
        if code == 0 {
            let handle = usize::try_from(handle)?;
            match self.cuda.call(c"cuMulticastAddDevice", [handle, self.device])? {
                0 => _ = self.objects.insert(name, Object::Multicast(handle)),
                code => bail!("cuMulticastAddDevice answered {code}"),
            }
        }
        Ok(code)
    }

    pub(crate) fn create_endpoint(&mut self, name: u32, size: u64) -> Result<i32> {
        let mut number = 0_u32;
        match self.cuda.call(c"cuLogicalEndpointIdReserve", [place(&mut number), 1])? {
            0 => {}
            code => bail!("cuLogicalEndpointIdReserve answered {code}"),
        }
        let mut wanted = EndpointProperty {
            kind: UNICAST,
            device: self.id()?,
            size,
            ..EndpointProperty::default()
        };
        let number = number as usize;
        let code = self.cuda.call(c"cuLogicalEndpointCreate", [number, place(&mut wanted)])?;
        let mut ready = 0_i32;
        let then = match code {
            0 => self.cuda.call(c"cuLogicalEndpointQuery", [number, 1, place(&mut ready)])?,
            _ => self.cuda.call(c"cuLogicalEndpointIdRelease", [number, 1])?,
        };
        if then != 0 || code == 0 && ready == 0 {
            bail!("an endpoint of one GPU is not ready: {then}");
        }
        if code == 0 {
            self.objects.insert(name, Object::Endpoint(number));
        }
        Ok(code)
    }

    pub(crate) fn bind(&self, object: u32, offset: u64, key: u32, bytes: u64) -> Result<i32> {
        let (Some(&object), Some(&memory)) = (self.objects.get(&object), self.handles.get(&key))
        else {
            return Ok(NOT_OURS);
        };
        let (offset, bytes, memory) =
            (usize::try_from(offset)?, usize::try_from(bytes)?, usize::try_from(memory)?);
        match object {
            Object::Multicast(handle) => {
                self.cuda.call(c"cuMulticastBindMem", [handle, offset, memory, 0, bytes, 0])
            }
            Object::Endpoint(number) => self.cuda.call(
                c"cuLogicalEndpointBindMem",
                [number, self.device, offset, memory, 0, bytes, 0],
            ),
        }
    }

    pub(crate) fn unbind(&self, object: u32, offset: u64, bytes: u64) -> Result<i32> {
        let Some(&object) = self.objects.get(&object) else { return Ok(NOT_OURS) };
        let (offset, bytes) = (usize::try_from(offset)?, usize::try_from(bytes)?);
        match object {
            Object::Multicast(handle) => {
                self.cuda.call(c"cuMulticastUnbind", [handle, self.device, offset, bytes])
            }
            Object::Endpoint(number) => {
                self.cuda.call(c"cuLogicalEndpointUnbind", [number, self.device, offset, bytes])
            }
        }
    }

    pub(crate) fn end_object(&mut self, name: u32) -> Result<i32> {
        let Some(&object) = self.objects.get(&name) else { return Ok(NOT_OURS) };
        let code = match object {
            Object::Multicast(handle) => self.cuda.call(c"cuMemRelease", [handle])?,
            Object::Endpoint(number) => {
                let code = self.cuda.call(c"cuLogicalEndpointDestroy", [number])?;
                if code == 0 && self.cuda.call(c"cuLogicalEndpointIdRelease", [number, 1])? != 0 {
                    bail!("a destroyed endpoint's number was not released");
                }
                code
            }
        };
        if code == 0 {
            self.objects.remove(&name);
        }
        Ok(code)
    }

    pub(crate) fn export_object(&self, name: u32) -> Result<i32> {
        match self.objects.get(&name) {
            Some(&Object::Multicast(handle)) => {
                self.export(c"cuMemExportToShareableHandle", handle)
            }
            _ => Ok(NOT_OURS),
        }
    }

    pub(crate) fn import_object(&mut self, name: u32) -> Result<i32> {
        let mut handle = 0_u64;
        // The descriptor is closed when this returns.
        let descriptor = self.line.receive()?;
        let number = usize::try_from(descriptor.as_raw_fd())?;
        let to = [place(&mut handle), number, DESCRIPTOR as usize];
        let code = self.cuda.call(c"cuMemImportFromShareableHandle", to)?;
        if code == 0 {
            self.objects.insert(name, Object::Multicast(usize::try_from(handle)?));
        }
        Ok(code)
    }
}
