//! Images of code: what of a GPU's memory one takes, as far as it says so itself.
//!
//! An ELF image (a cubin) lists its sections: those that are to be loaded take memory, but for the
//! ones that describe shared and local memory, of which a GPU has its own. PTX, which is yet to be
//! compiled, declares its variables. Of fat binaries, which are compressed, nothing is known.

mod ptx;

use core::ffi::{CStr, c_void};
use core::slice;

use cgpu_memory::Bytes;

const MAGIC: &[u8] = b"\x7fELF\x02\x01";
/// Of ELF's header: its length, and where it says where the sections' headers are, how long one is,
/// how many, and which has the names.
const HEADER: usize = 64;
const SECTIONS_AT: usize = 40;
const SECTION_SIZE: usize = 58;
const SECTION_COUNT: usize = 60;
const NAMES: usize = 62;
/// Of a section's header: name, flags, place and size.
const NAME: usize = 0;
const FLAGS: usize = 8;
const OFFSET: usize = 24;
const SIZE: usize = 32;
/// It takes memory when the image is loaded.
const ALLOCATED: u64 = 2;
/// GPU memory comes in blocks of so much.
const BLOCK: u64 = 2 << 20;
/// Variables.
const VARIABLES: &[u8] = b".nv.global";
/// Memory that is no GPU's memory.
const ELSEWHERE: [&[u8]; 2] = [b".nv.shared", b".nv.local"];

/// What an image takes, at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// All of it.
    pub(crate) whole: Bytes,
    /// Its variables, which come with it even where its code comes with first launches.
    pub(crate) variables: Bytes,
}

/// What an image in memory takes; nothing, where it does not say.
///
/// # Safety
///
/// `image` is null or an image that the driver may load: as long as it says itself.
pub(crate) unsafe fn size_at(image: *const c_void) -> Size {
    if image.is_null() {
        return Size::default();
    }
    let bytes = |offset: usize, length: usize| {
        let begin = image.cast::<u8>().wrapping_add(offset);
        // SAFETY: the driver reads the same bytes of a valid image; no thread writes to an image
        // that is being loaded.
        Some(unsafe { slice::from_raw_parts(begin, length) })
    };
    // Byte by byte: text may end before.
    let is_elf = (0..MAGIC.len()).all(|at| bytes(at, 1).and_then(<[u8]>::first) == MAGIC.get(at));
    if is_elf {
        elf(bytes).unwrap_or_default()
    } else if bytes(0, 1).and_then(<[u8]>::first).copied().is_some_and(begins_text) {
        // SAFETY: what begins as text is PTX, which ends with a zero.
        text(unsafe { CStr::from_ptr(image.cast()) }.to_bytes())
    } else {
        Size::default()
    }
}

/// What an image of these bytes takes; nothing, where it does not say.
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

/// A directive, a comment or space.
const fn begins_text(byte: u8) -> bool {
    matches!(byte, b'.' | b'/') || byte.is_ascii_whitespace()
}

fn text(text: &[u8]) -> Size {
    let variables = in_blocks(ptx::variables(text)).unwrap_or(Bytes::MAX);
    Size { whole: variables, variables }
}

/// In whole blocks of the GPU's memory; none: more than there can be.
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

    /// An image with sections of these names, flags and sizes.
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
        // SAFETY: the image is whole.
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
    fn ptx_text_tells_its_variables() {
        let size = Size { whole: Bytes::from_mib(2), variables: Bytes::from_mib(2) };
        assert_eq!(size_of(b"// text\n.version 7.0\n.global .b8 table[9];"), size);
        // SAFETY: the text ends with a zero.
        assert_eq!(unsafe { size_at(c".global .b8 table[9];".as_ptr().cast()) }, size);
        // SAFETY: as above.
        assert_eq!(unsafe { size_at(c".ver".as_ptr().cast()) }, Size::default());
        assert_eq!(size_of(b"any byte string .global .b8 x[9];"), Size::default());
        assert_eq!(size_of(b".global .b8 x[18446744073709551615];").whole, Bytes::MAX);
    }
}
