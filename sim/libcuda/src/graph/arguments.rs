//! A kernel node's arguments, copied when the node is created: the program's own may be gone at the
//! launch.

use core::ffi::c_void;
use core::ptr;

use crate::answer::{Answer, INVALID_VALUE};
use crate::argument::{In, Out, Received};
use crate::function::Function;

/// `CU_LAUNCH_PARAM_END`: ends a list of extra options.
const END: usize = 0;
/// `CU_LAUNCH_PARAM_BUFFER_POINTER`: precedes the address of a buffer with all arguments.
const BUFFER: usize = 1;
/// `CU_LAUNCH_PARAM_BUFFER_SIZE`: precedes the address of that buffer's size.
const SIZE: usize = 2;

/// The values, and pointers to them in the driver's format.
#[derive(Debug)]
pub(crate) struct Arguments {
    /// Read only through the pointers that a node's parameters return: kernels move no data.
    _values: Vec<Box<[u8]>>,
    _size: Box<usize>,
    parameters: Box<[usize]>,
    extra: Box<[usize]>,
}

impl Arguments {
    /// Copies the arguments of a launch; `None` if their sizes are unknown.
    pub(crate) fn taken(
        function: &Function,
        parameters: Out<*mut c_void>,
        extra: Out<*mut c_void>,
    ) -> Answer<Option<Self>> {
        if !extra.is_null() {
            return Self::taken_from_buffer(extra).map(Some);
        }
        let Some(shapes) = function.parameters() else { return Ok(None) };
        if parameters.is_null() {
            // NULL is valid for a kernel without parameters; a real driver would read from NULL for
            // others.
            return if shapes.is_empty() { Ok(None) } else { Err(INVALID_VALUE) };
        }
        let pointers = parameters.read_all(shapes.len())?;
        let value = |(&pointer, &(_, size)): (&*mut c_void, &(usize, usize))| bytes(pointer, size);
        let values: Vec<Box<[u8]>> =
            pointers.iter().zip(shapes).map(value).collect::<Answer<_>>()?;
        let parameters = values.iter().map(|value| value.as_ptr().expose_provenance()).collect();
        Ok(Some(Self { _values: values, _size: Box::default(), parameters, extra: Box::default() }))
    }

    fn taken_from_buffer(extra: Out<*mut c_void>) -> Answer<Self> {
        let (mut buffer, mut size) = (ptr::null_mut(), 0);
        for pair in 0.. {
            let [option, value] = pair_of(extra, pair)?;
            match option.expose_provenance() {
                END => break,
                BUFFER => buffer = value,
                SIZE => {
                    // SAFETY: the option's value is the address of a size, as the driver documents.
                    size = unsafe { In::<usize>::received(value.cast_const().cast()) }.read()?;
                }
                _ => return Err(INVALID_VALUE),
            }
        }
        let buffer = bytes(buffer, size)?;
        let size = Box::new(size);
        let extra = [
            BUFFER,
            buffer.as_ptr().expose_provenance(),
            SIZE,
            ptr::from_ref(&*size).expose_provenance(),
            END,
        ];
        Ok(Self {
            _values: vec![buffer],
            _size: size,
            parameters: Box::default(),
            extra: Box::new(extra),
        })
    }

    /// Returns the list of arguments; NULL if they were given as a buffer.
    pub(crate) fn parameters(&self) -> *mut *mut c_void {
        list(&self.parameters)
    }

    /// Returns the list of extra options; NULL if there were none.
    pub(crate) fn extra(&self) -> *mut *mut c_void {
        list(&self.extra)
    }
}

fn list(addresses: &[usize]) -> *mut *mut c_void {
    if addresses.is_empty() { ptr::null_mut() } else { addresses.as_ptr().cast_mut().cast() }
}

/// Returns an option and its value; the option alone if it ends the list.
fn pair_of(extra: Out<*mut c_void>, pair: usize) -> Answer<[*mut c_void; 2]> {
    let all = extra.read_all(2 * pair + 1)?;
    let option = all[2 * pair];
    if option.expose_provenance() == END {
        return Ok([option, ptr::null_mut()]);
    }
    let value = extra.read_all(2 * pair + 2)?[2 * pair + 1];
    Ok([option, value])
}

fn bytes(from: *mut c_void, size: usize) -> Answer<Box<[u8]>> {
    // SAFETY: an argument that the program passed with the launch; it has the size that the kernel
    // declares.
    let value: In<u8> = unsafe { In::received(from.cast_const().cast()) };
    Ok(value.read_all(size)?.into())
}
