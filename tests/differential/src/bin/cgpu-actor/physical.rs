//! Physical memory: handles and mappings.

use anyhow::{Result, bail};
use cgpu_differential::command::{Answer, Place};

use crate::actor::{Actor, NOT_OURS};
use crate::driver::place;
use crate::records::{DESCRIPTOR, DEVICE, DOMAIN, HOST, Location, PINNED, Property};

impl Actor {
    /// Returns the driver's description of a place.
    pub(crate) fn location(&self, on: Place) -> Result<Location> {
        let (kind, id) = match on {
            Place::Gpu => (DEVICE, self.id()?),
            Place::Host => (HOST, 0),
            // The lowest byte is the device.
            Place::Domain(domain) => (DOMAIN, i32::from(domain) << 8 | self.id()?),
        };
        Ok(Location { kind, id })
    }

    pub(crate) fn create_physical(
        &mut self,
        context: u32,
        key: u32,
        bytes: u64,
        on: Place,
        (shared, tiles): (bool, bool),
    ) -> Result<i32> {
        let mut code = self.enter(context)?;
        let Location { kind: location, id } = self.location(on)?;
        let handle_types = if shared { DESCRIPTOR } else { 0 };
        let flags = [0, 0, u8::from(tiles), 0, 0, 0, 0, 0];
        let mut property =
            Property { kind: PINNED, handle_types, location, id, flags, ..Property::default() };
        let mut handle = 0_u64;
        if code == 0 {
            let (size, property) = (usize::try_from(bytes)?, place(&mut property));
            code = self.cuda.call(c"cuMemCreate", [place(&mut handle), size, property, 0])?;
        }
        if code == 0 {
            self.handles.insert(key, handle);
        }
        Ok(code)
    }

    pub(crate) fn map(
        &mut self,
        key: u32,
        map: u32,
        bytes: u64,
        answer: &mut Answer,
    ) -> Result<i32> {
        let Some(&handle) = self.handles.get(&key) else { return Ok(NOT_OURS) };
        let size = usize::try_from(bytes)?;
        let address = place(&mut answer.address);
        let mut code = self.cuda.call(c"cuMemAddressReserve", [address, size, 0, 0, 0])?;
        if code == 0 {
            let (at, handle) = (usize::try_from(answer.address)?, usize::try_from(handle)?);
            code = self.cuda.call(c"cuMemMap", [at, size, 0, handle, 0])?;
        }
        if code == 0 {
            self.maps.insert(map, (answer.address, bytes));
        }
        Ok(code)
    }

    pub(crate) fn unmap(&mut self, map: u32) -> Result<i32> {
        let Some(&(address, bytes)) = self.maps.get(&map) else { return Ok(NOT_OURS) };
        let (at, size) = (usize::try_from(address)?, usize::try_from(bytes)?);
        let code = self.cuda.call(c"cuMemUnmap", [at, size])?;
        if code == 0 {
            self.maps.remove(&map);
            let code = self.cuda.call(c"cuMemAddressFree", [at, size])?;
            if code != 0 {
                bail!("cuMemAddressFree answered {code}");
            }
        }
        Ok(code)
    }

    pub(crate) fn release(&mut self, key: u32) -> Result<i32> {
        let Some(&handle) = self.handles.get(&key) else { return Ok(NOT_OURS) };
        let code = self.cuda.call(c"cuMemRelease", [usize::try_from(handle)?])?;
        if code == 0 {
            self.handles.remove(&key);
        }
        Ok(code)
    }

    pub(crate) fn retain(&mut self, map: u32, key: u32) -> Result<i32> {
        let Some(&(address, _)) = self.maps.get(&map) else { return Ok(NOT_OURS) };
        let mut handle = 0_u64;
        let to = [place(&mut handle), usize::try_from(address)?];
        let code = self.cuda.call(c"cuMemRetainAllocationHandle", to)?;
        if code == 0 {
            self.handles.insert(key, handle);
        }
        Ok(code)
    }
}
