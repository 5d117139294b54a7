//! Arguments received from C: raw pointers become types whose methods check for NULL.
//!
//! Shared by the simulated libcuda and NVML.

use core::ffi::{CStr, c_char, c_void};
use core::ptr;

/// A NULL pointer where the function requires a valid one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NullPointer;

/// A type that a C argument is converted to.
pub(crate) trait Received<C> {
    /// # Safety
    ///
    /// A pointer is NULL, or valid for everything that the called function does with it until that
    /// call returns.
    unsafe fn received(argument: C) -> Self;
}

macro_rules! values {
    ($($type:ty),* $(,)?) => {$(
        impl Received<$type> for $type {
            unsafe fn received(argument: $type) -> Self {
                argument
            }
        }
    )*};
}
pub(crate) use values;

values!(f32, i32, u8, u16, u32, u64, usize);

/// A pointer to a value that the function writes, or reads and writes.
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Received<*mut T> for Out<T> {
    unsafe fn received(argument: *mut T) -> Self {
        Self(argument)
    }
}

impl<T> Out<T> {
    #[allow(dead_code, reason = "NVML has no call that leaves an argument of another out")]
    pub(crate) const NONE: Self = Self(ptr::null_mut());

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Returns the address, to be used after the call.
    pub(crate) fn address(self) -> usize {
        self.0.expose_provenance()
    }

    /// Returns a pointer to the value that this one begins with.
    #[allow(dead_code, reason = "only NVML's structs grew at their ends")]
    pub(crate) fn start_as<U>(self) -> Out<U> {
        const { assert!(size_of::<U>() <= size_of::<T>()) };
        Out(self.0.cast())
    }

    /// Returns a pointer that can only be read through.
    #[allow(dead_code, reason = "NVML reads nothing of what it is given to write to")]
    pub(crate) fn as_in(self) -> In<T> {
        In(self.0.cast_const())
    }

    /// Fails on NULL, so that a function can check all pointers before it changes anything.
    pub(crate) fn required(self) -> Result<Self, NullPointer> {
        if self.is_null() { Err(NullPointer) } else { Ok(self) }
    }

    /// Writes the value; fails on NULL.
    pub(crate) fn put(self, value: T) -> Result<(), NullPointer> {
        self.required()?.put_if_not_null(value);
        Ok(())
    }

    /// Writes the value, unless the pointer is NULL.
    pub(crate) fn put_if_not_null(self, value: T) {
        if !self.is_null() {
            // SAFETY: not NULL, so valid for writes by the contract of `received`. It need not be
            // aligned for `T`.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Writes the first `capacity` of the values.
    pub(crate) fn put_all(
        self,
        values: impl IntoIterator<Item = T>,
        capacity: usize,
    ) -> Result<(), NullPointer> {
        if capacity > 0 {
            self.required()?;
        }
        for (index, value) in values.into_iter().take(capacity).enumerate() {
            // SAFETY: the caller provides space for `capacity` values, and `index` is below that.
            let place = unsafe { self.0.add(index) };
            // SAFETY: as above; it need not be aligned.
            unsafe { place.write_unaligned(value) };
        }
        Ok(())
    }
}

impl<T: Copy> Out<T> {
    pub(crate) fn read(self) -> Result<T, NullPointer> {
        In(self.required()?.0.cast_const()).read()
    }

    pub(crate) fn read_all(self, count: usize) -> Result<Vec<T>, NullPointer> {
        In(self.0.cast_const()).read_all(count)
    }
}

impl Out<c_void> {
    pub(crate) fn cast<T>(self) -> Out<T> {
        Out(self.0.cast())
    }
}

impl Out<c_char> {
    /// Writes the text and a NUL, truncated to `length` bytes.
    pub(crate) fn put_text(self, text: &str, length: usize) -> Result<(), NullPointer> {
        self.required()?;
        let Some(capacity) = length.checked_sub(1) else { return Ok(()) };
        let bytes = &text.as_bytes()[..text.len().min(capacity)];
        // SAFETY: `bytes.len()` is below `length`, the size of the caller's buffer. `text` is ours,
        // so the two do not overlap.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), self.0, bytes.len()) };
        // SAFETY: as above, one more byte.
        let end = unsafe { self.0.add(bytes.len()) };
        // SAFETY: as above.
        unsafe { end.write(0) };
        Ok(())
    }
}

/// A pointer to values that the function reads.
#[derive(Debug)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> Received<*const T> for In<T> {
    unsafe fn received(argument: *const T) -> Self {
        Self(argument)
    }
}

impl<T> In<T> {
    /// Returns the address, to be used after the call.
    pub(crate) fn address(self) -> usize {
        self.0.expose_provenance()
    }

    /// Fails on NULL, so that a function can check all pointers before it changes anything.
    pub(crate) fn required(self) -> Result<Self, NullPointer> {
        if self.0.is_null() { Err(NullPointer) } else { Ok(self) }
    }
}

impl<T: Copy> In<T> {
    pub(crate) fn read(self) -> Result<T, NullPointer> {
        self.required()?;
        // SAFETY: not NULL, so valid for reads by the contract of `received`; it need not be
        // aligned.
        Ok(unsafe { self.0.read_unaligned() })
    }

    pub(crate) fn read_all(self, count: usize) -> Result<Vec<T>, NullPointer> {
        if count > 0 {
            self.required()?;
        }
        let at = |index| {
            // SAFETY: the caller provides `count` values, and `index` is below that.
            let place = unsafe { self.0.add(index) };
            // SAFETY: as above; it need not be aligned.
            unsafe { place.read_unaligned() }
        };
        Ok((0..count).map(at).collect())
    }
}

impl In<c_char> {
    /// Reads the text. Bytes that are not UTF-8 are replaced: no name of the driver contains any.
    pub(crate) fn text(self) -> Result<String, NullPointer> {
        self.required()?;
        // SAFETY: not NULL, so a C string by the contract of `received`, which is not modified
        // during the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

impl In<c_void> {
    pub(crate) fn cast<T>(self) -> In<T> {
        In(self.0.cast())
    }

    /// Returns whether the memory begins with these bytes. Stops at the first byte that differs, so
    /// it does not read beyond the end of a shorter text.
    pub(crate) fn begins_with(self, bytes: &[u8]) -> bool {
        bytes.iter().enumerate().all(|(index, byte)| {
            // SAFETY: every byte before this one was read and equals one of `bytes`, none of which
            // is NUL, so the caller's text has not ended yet.
            let place = unsafe { self.0.cast::<u8>().add(index) };
            // SAFETY: as above.
            let found = unsafe { place.read() };
            found == *byte
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_pointers_are_refused() {
        let mut value = 3_u32;
        // SAFETY: the pointer is to a live local.
        let out: Out<u32> = unsafe { Received::received(&raw mut value) };
        assert_eq!(out.read(), Ok(3));
        assert_eq!(out.put(4), Ok(()));
        assert_eq!(value, 4);
        // SAFETY: NULL is allowed.
        let none: Out<u32> = unsafe { Received::received(ptr::null_mut::<u32>()) };
        assert_eq!(none.put(1), Err(NullPointer));
        none.put_if_not_null(1);
    }

    #[test]
    fn texts_are_truncated_to_fit() {
        let mut buffer = [b'x'.cast_signed(); 8];
        // SAFETY: the pointer is to a live local.
        let out: Out<c_char> = unsafe { Received::received(buffer.as_mut_ptr()) };
        out.put_text("abcdef", 4).unwrap();
        assert_eq!(buffer.map(i8::cast_unsigned), *b"abc\0xxxx");
        out.put_text("abcdef", 8).unwrap();
        assert_eq!(buffer.map(i8::cast_unsigned), *b"abcdef\0x");
        out.put_text("ignored", 0).unwrap();
        assert_eq!(buffer.map(i8::cast_unsigned), *b"abcdef\0x");
    }

    #[test]
    fn begins_with_stops_at_first_difference() {
        let begins = |text: &[u8], magic: &[u8]| {
            // SAFETY: a NUL-terminated slice.
            let image: In<c_void> = unsafe { Received::received(text.as_ptr().cast::<c_void>()) };
            image.begins_with(magic)
        };
        assert!(begins(b"\x7fELF...\0", b"\x7fELF"));
        assert!(!begins(b"\x7f\0", b"\x7fELF"));
        assert!(!begins(b"\0", b"\x7fELF"));
    }
}
