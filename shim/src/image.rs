//! Images of code: the GPU memory that one takes, as far as the image tells.
//!
//! An ELF image (a cubin) lists its sections. Those to be loaded take memory, except the
//! descriptions of shared and local memory, which a GPU has anyway. PTX, which is compiled later,
//! declares its variables. Fat binaries are compressed, so nothing is known of them.

mod ptx;

use core::ffi::{CStr, c_void};
use core::slice;

use cgpu_memory::Bytes;

const MAGIC: &[u8] = b"\x7fELF\x02\x01";
/// Offsets in ELF's header: its length; the section headers' offset, size and number; the index of
/// the section of names.
const HEADER: usize = 64;
const SECTIONS_AT: usize = 40;
const SECTION_SIZE: usize = 58;
const SECTION_COUNT: usize = 60;
const NAMES: usize = 62;
/// Offsets in a section's header: name, flags, offset and size.
const NAME: usize = 0;
const FLAGS: usize = 8;
const OFFSET: usize = 24;
const SIZE: usize = 32;
/// A section that takes memory when the image is loaded.
const ALLOCATED: u64 = 2;
/// Granularity of GPU memory.
const BLOCK: u64 = 2 << 20;
/// Prefix of sections with variables.
const VARIABLES: &[u8] = b".nv.global";
/// Prefixes of sections that take no GPU memory.
const ELSEWHERE: [&[u8]; 2] = [b".nv.shared", b".nv.local"];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) whole: Bytes,
    /// Its variables, which are allocated with the image even if its code is loaded at first
    /// launches.
    pub(crate) variables: Bytes,
}

/// Returns the size of an image in memory; zero if it does not tell.
///
/// # Safety
///
/// `image` is null or an image that the driver may load: as long as its own headers say.
pub(crate) unsafe fn size_at(image: *const c_void) -> Size {
    if image.is_null() {
        return Size::default();
    }
    let bytes = |offset: usize, length: usize| {
        let begin = image.cast::<u8>().wrapping_add(offset);
        // SAFETY: the bytes are within the image by its own headers, so the driver reads them, too.
        // No thread writes to an image that is being loaded.
        Some(unsafe { slice::from_raw_parts(begin, length) })
    };
    // Byte by byte, because a text may be shorter.
    let is_elf = (0..MAGIC.len()).all(|at| bytes(at, 1).and_then(<[u8]>::first) == MAGIC.get(at));
    if is_elf {
        elf(bytes).unwrap_or_default()
    } else if bytes(0, 1).and_then(<[u8]>::first).copied().is_some_and(begins_text) {
        // SAFETY: a text is PTX, which the driver's contract requires to be NUL-terminated.
        text(unsafe { CStr::from_ptr(image.cast()) }.to_bytes())
    } else {
        Size::default()
    }
}

/// Returns the size of an image of these bytes; zero if it does not tell.
pub(crate) fn size_of(image: &[u8]) -> Size {
    let bytes = |offset: usize, length: usize| image.get(offset..offset.checked_add(length)?);
    if image.starts_with(MAGIC) {
        elf(bytes).unwrap_or_default()
    } else if image.first().copied().is_some_and(begins_text) {
        text(image)
    } else {
        Size::default()
    }
}

/// Returns whether a byte begins PTX: a directive, a comment or space.
const fn begins_text(byte: u8) -> bool {
    matches!(byte, b'.' | b'/') || byte.is_ascii_whitespace()
}

fn text(text: &[u8]) -> Size {
    let variables = in_blocks(ptx::variables(text)).unwrap_or(Bytes::MAX);
    Size { whole: variables, variables }
}

/// Rounds up to whole blocks of GPU memory; none: more than possible.
fn in_blocks(bytes: u64) -> Option<Bytes> {
    bytes.checked_next_multiple_of(BLOCK).map(Bytes)
}

fn elf<'a>(bytes: impl Fn(usize, usize) -> Option<&'a [u8]>) -> Option<Size> {
    let header = bytes(0, HEADER)?;
    let (at, each) = (long(header, SECTIONS_AT)?, short(header, SECTION_SIZE)?);
    let section = |number: usize| bytes(number.checked_mul(each)?.checked_add(at)?, each);
    let names = long(section(short(header, NAMES)?)?, OFFSET)?;
    let (mut whole, mut variables) = (0_u64, 0_u64);
    for number in 0..short(header, SECTION_COUNT)? {
        let section = section(number)?;
        let name = names.checked_add(usize::try_from(word(section, NAME)?).ok()?)?;
        let is = |prefix: &&[u8]| {
            (0..prefix.len())
                .all(|at| bytes(name + at, 1).and_then(<[u8]>::first) == prefix.get(at))
        };
        if quad(section, FLAGS)? & ALLOCATED != 0 && !ELSEWHERE.iter().any(is) {
            let size = quad(section, SIZE)?;
            whole = whole.checked_add(size)?;
            variables += if is(&VARIABLES) { size } else { 0 };
        }
    }
    Some(Size { whole: in_blocks(whole)?, variables: in_blocks(variables)? })
}

fn quad(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn short(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?).into())
}

fn long(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(quad(bytes, at)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(sections: &[(&str, u64, u64)]) -> Vec<u8> {
        let mut image = vec![0; HEADER];
        image[..MAGIC.len()].copy_from_slice(MAGIC);
        let mut names = Vec::new();
        let mut headers = Vec::new();
        for (name, flags, size) in sections {
            let mut header = [0; 64];
            header[NAME..NAME + 4]
                .copy_from_slice(&u32::try_from(names.len()).unwrap().to_le_bytes());
            header[FLAGS..FLAGS + 8].copy_from_slice(&flags.to_le_bytes());
            header[OFFSET..OFFSET + 8].copy_from_slice(&(HEADER as u64).to_le_bytes());
            header[SIZE..SIZE + 8].copy_from_slice(&size.to_le_bytes());
            headers.extend(header);
            names.extend(name.bytes().chain([0]));
        }
        image.extend(&names);
        let at = image.len() as u64;
        image[SECTIONS_AT..SECTIONS_AT + 8].copy_from_slice(&at.to_le_bytes());
        image[SECTION_SIZE..SECTION_SIZE + 2].copy_from_slice(&64_u16.to_le_bytes());
        let count = u16::try_from(sections.len()).unwrap();
        image[SECTION_COUNT..SECTION_COUNT + 2].copy_from_slice(&count.to_le_bytes());
        image.extend(headers);
        image
    }

    #[test]
    fn loaded_segments_are_counted_in_blocks() {
        let sections = [
            (".text.kernel", 6, 100_000),
            (".nv.global.init", 3, 1 << 20),
            (".nv.global", 3, 4 << 20),
            (".nv.shared.kernel", 3, 48 << 10),
            (".nv.info", 0, 1 << 30),
        ];
        let image = image(&sections);
        let size = Size { whole: Bytes::from_mib(6), variables: Bytes::from_mib(6) };
        assert_eq!(size_of(&image), size);
        // SAFETY: the image is complete.
        assert_eq!(unsafe { size_at(image.as_ptr().cast()) }, size);
    }

    #[test]
    fn truncated_elf_has_no_size() {
        let whole = image(&[(".text", 6, 1)]);
        for end in 0..whole.len() {
            assert_eq!(size_of(&whole[..end]), Size::default(), "{end}");
        }
        assert_eq!(size_of(b"P\xed\x55\xba"), Size::default());
        // SAFETY: null is allowed.
        assert_eq!(unsafe { size_at(core::ptr::null()) }, Size::default());
        assert_eq!(size_of(&image(&[(".text", 6, u64::MAX), (".data", 6, 2)])), Size::default());
    }

    #[test]
    fn ptx_text_has_the_size_of_its_variables() {
        let size = Size { whole: Bytes::from_mib(2), variables: Bytes::from_mib(2) };
        assert_eq!(size_of(b"// text\n.version 7.0\n.global .b8 table[9];"), size);
        // SAFETY: the text is NUL-terminated.
        assert_eq!(unsafe { size_at(c".global .b8 table[9];".as_ptr().cast()) }, size);
        // SAFETY: the text is NUL-terminated.
        assert_eq!(unsafe { size_at(c".ver".as_ptr().cast()) }, Size::default());
        assert_eq!(size_of(b"any byte string .global .b8 x[9];"), Size::default());
        assert_eq!(size_of(b".global .b8 x[18446744073709551615];").whole, Bytes::MAX);
    }
}
