//! IPC handles of memory: numbers by which other processes open an allocation.

use cgpu_abi::types::*;
use cgpu_sim::Bytes;
use cgpu_sim::machine::Offer;

use crate::answer::{Answer, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE};
use crate::argument::{Out, Received, values};
use crate::call::Call;

values!(CUipcMemHandle);

/// The only flag, which is mandatory.
const LAZY_ENABLE_PEER_ACCESS: c_uint = 1;

/// First eight bytes of a memory handle.
const MAGIC: u64 = u64::from_be_bytes(*b"cgpusimM");

/// Packs an offer into 64 bytes that only this driver can read.
pub(crate) fn pack(magic: u64, pool: u64, offer: &Offer) -> [u8; 64] {
    let words = [magic, pool, offer.export, offer.serial, offer.offset, offer.size.0, 0, 0];
    let mut bytes = [0; 64];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Unpacks the pool and the offer that [`pack`] packed; `None` for other bytes.
pub(crate) fn unpack(magic: u64, bytes: &[u8; 64]) -> Option<(u64, Offer)> {
    let mut words = bytes.chunks_exact(8).map(|bytes| {
        let mut word = [0; 8];
        word.copy_from_slice(bytes);
        u64::from_le_bytes(word)
    });
    let mut next = || words.next();
    let (found, pool) = (next()?, next()?);
    let offer = Offer { export: next()?, serial: next()?, offset: next()?, size: Bytes(next()?) };
    (found == magic).then_some((pool, offer))
}

/// Accepts any address within an allocation of a context.
pub(crate) fn cuIpcGetMemHandle(
    call: &Call,
    handle: Out<CUipcMemHandle>,
    dptr: CUdeviceptr,
) -> Answer {
    let driver = call.driver()?;
    let handle = handle.required()?;
    driver.current()?;
    let offer = driver.machine.offer_memory(dptr)?;
    handle.put(CUipcMemHandle { reserved: pack(MAGIC, 0, &offer).map(u8::cast_signed) })?;
    Ok(())
}

/// Opens another process's allocation in the current context; opening it again counts. A process
/// cannot open its own.
pub(crate) fn cuIpcOpenMemHandle_v2(
    call: &Call,
    pdptr: Out<CUdeviceptr>,
    handle: CUipcMemHandle,
    flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let pdptr = pdptr.required()?;
    let context = driver.current()?;
    if flags != LAZY_ENABLE_PEER_ACCESS {
        return Err(INVALID_VALUE);
    }
    let (_, offer) =
        unpack(MAGIC, &handle.reserved.map(i8::cast_unsigned)).ok_or(INVALID_HANDLE)?;
    pdptr.put(driver.machine.open_memory(context.id, &offer)?)?;
    Ok(())
}
pub(crate) use cuIpcOpenMemHandle_v2 as cuIpcOpenMemHandle;

pub(crate) fn cuIpcCloseMemHandle(call: &Call, dptr: CUdeviceptr) -> Answer {
    let driver = call.driver()?;
    driver.current().map_err(|_| INVALID_CONTEXT)?;
    driver.machine.close_memory(dptr)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_handles_unpack_and_others_are_refused() {
        let offer = Offer { export: 3, serial: 1 << 40, offset: 4096, size: Bytes(77) };
        let bytes = pack(MAGIC, 5, &offer);
        assert_eq!(unpack(MAGIC, &bytes), Some((5, offer)));
        assert_eq!(unpack(MAGIC + 1, &bytes), None);
        assert_eq!(unpack(MAGIC, &[0; 64]), None);
    }
}
