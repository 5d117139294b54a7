//! The linker. Its result declares everything that its inputs declare, and is always PTX.

use core::fmt::Write as _;
use core::ptr;
use std::sync::{Arc, Mutex};

use cgpu_abi::types::*;

use crate::answer::{Answer, FILE_NOT_FOUND, INVALID_HANDLE, INVALID_VALUE};
use crate::argument::{In, Out, Received, values};
use crate::call::Call;
use crate::driver::{Driver, lock};

values!(CUlinkState);

#[derive(Debug, Default)]
pub(crate) struct Linker {
    /// The result so far; complete and NUL-terminated after `cuLinkComplete`. The program may read
    /// it until the linker is destroyed.
    text: Mutex<Vec<u8>>,
}

fn find(driver: &Driver, state: CUlinkState) -> Answer<Arc<Linker>> {
    driver.linkers.get(state.0).ok_or(INVALID_HANDLE)
}

impl Linker {
    fn add(&self, bytes: &[u8], name: &str) -> Answer {
        let mut text = lock(&self.text);
        if text.last() == Some(&0) {
            return Err(INVALID_VALUE);
        }
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let mut head = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(head, "\n// {} bytes of {}", bytes.len(), name.replace(['\n', '\0'], " "));
        text.extend(head.as_bytes());
        // Binary input is opaque; only text has declarations to keep.
        if bytes[..end].is_ascii() {
            text.extend(&bytes[..end]);
        }
        Ok(())
    }
}

pub(crate) fn cuLinkCreate_v2(
    call: &Call,
    _num_options: c_uint,
    _options: Out<CUjit_option>,
    _option_values: Out<*mut c_void>,
    state_out: Out<CUlinkState>,
) -> Answer {
    let driver = call.driver()?;
    driver.current()?;
    let state_out = state_out.required()?;
    state_out.put(CUlinkState(driver.linkers.add(Linker::default())))?;
    Ok(())
}
pub(crate) use cuLinkCreate_v2 as cuLinkCreate;

pub(crate) fn cuLinkAddData_v2(
    call: &Call,
    state: CUlinkState,
    _kind: CUjitInputType,
    data: Out<c_void>,
    size: usize,
    name: In<c_char>,
    _num_options: c_uint,
    _options: Out<CUjit_option>,
    _option_values: Out<*mut c_void>,
) -> Answer {
    let linker = find(call.driver()?, state)?;
    linker.add(&data.cast::<u8>().read_all(size)?, &name.text().unwrap_or_default())
}
pub(crate) use cuLinkAddData_v2 as cuLinkAddData;

pub(crate) fn cuLinkAddFile_v2(
    call: &Call,
    state: CUlinkState,
    _kind: CUjitInputType,
    path: In<c_char>,
    _num_options: c_uint,
    _options: Out<CUjit_option>,
    _option_values: Out<*mut c_void>,
) -> Answer {
    let linker = find(call.driver()?, state)?;
    let path = path.text()?;
    linker.add(&std::fs::read(&path).map_err(|_| FILE_NOT_FOUND)?, &path)
}
pub(crate) use cuLinkAddFile_v2 as cuLinkAddFile;

pub(crate) fn cuLinkComplete(
    call: &Call,
    state: CUlinkState,
    cubin_out: Out<*mut c_void>,
    size_out: Out<usize>,
) -> Answer {
    let linker = find(call.driver()?, state)?;
    let cubin_out = cubin_out.required()?;
    let mut text = lock(&linker.text);
    if text.last() != Some(&0) {
        text.push(0);
    }
    cubin_out.put(ptr::from_mut(text.as_mut_slice()).cast())?;
    size_out.put_if_not_null(text.len());
    Ok(())
}

pub(crate) fn cuLinkDestroy(call: &Call, state: CUlinkState) -> Answer {
    call.driver()?.linkers.remove(state.0).map(|_| ()).ok_or(INVALID_HANDLE)
}
