//! Reads and writes of bytes and words by effects, in host and device memory.

use cgpu_shm::atomic::{AtomicU32, AtomicU64, Ordering};

use super::work::{Fill, Pitched, WaitCondition, Width};
use crate::error::Error;
use crate::memory::{Accounting, Memory};
use crate::words::index;

pub(super) fn is_met(condition: WaitCondition, width: Width, word: u64, value: u64) -> bool {
    // The high halves of 32-bit words are zero on both sides; shifted up, the same tests hold.
    let shift = match width {
        Width::Four => 32,
        Width::Eight => 0,
    };
    let (word, value) = (word << shift, value << shift);
    match condition {
        WaitCondition::AtLeast => word.wrapping_sub(value).cast_signed() >= 0,
        WaitCondition::Equal => word == value,
        WaitCondition::And => word & value != 0,
        WaitCondition::Nor => !(word | value) >> shift != 0,
    }
}

pub(super) fn move_bytes(
    accounting: &impl Accounting,
    memory: &mut Memory,
    copy: &Pitched,
) -> Result<(), Error> {
    for slice in 0..copy.slices {
        for row in 0..copy.rows {
            let to = copy.to + slice * copy.to_pitch.1 + row * copy.to_pitch.0;
            let from = copy.from + slice * copy.from_pitch.1 + row * copy.from_pitch.0;
            memory.gather(accounting, from, copy.width)?;
            let source = memory.bytes(from, copy.width, false)?;
            let target = memory.bytes(to, copy.width, true)?;
            // SAFETY: device ranges were checked to lie in live allocations when the copy was
            // enqueued, and their bytes stay mapped until the machine is dropped. Host ranges are
            // valid by the contract of `Machine::copy`. `copy` allows overlap.
            unsafe { core::ptr::copy(source, target, index(copy.width)) };
            memory.spread(accounting, to, copy.width)?;
        }
    }
    Ok(())
}

pub(super) fn fill_bytes(
    accounting: &impl Accounting,
    memory: &mut Memory,
    fill: &Fill,
) -> Result<(), Error> {
    let size = index(fill.size);
    let element = &fill.value.to_le_bytes()[..size];
    let width = fill.elements * fill.size;
    for row in 0..fill.rows {
        let start = fill.to + row * fill.pitch;
        if element.iter().all(|&byte| byte == 0) {
            memory.clear(start, width)?;
            memory.spread(accounting, start, width)?;
            continue;
        }
        let to = memory.bytes(start, width, true)?;
        // SAFETY: the range was checked to lie in a live allocation when the fill was enqueued; its
        // bytes stay mapped until the machine is dropped. Every other access to them holds the
        // memory's lock, which we hold.
        let row = unsafe { core::slice::from_raw_parts_mut(to, index(width)) };
        repeat(row, element);
        memory.spread(accounting, start, width)?;
    }
    Ok(())
}

/// Fills a row with copies of an element, doubling the filled part each time: a bytewise loop over
/// a megabyte takes ten milliseconds in unoptimized code.
fn repeat(row: &mut [u8], element: &[u8]) {
    let mut filled = element.len().min(row.len());
    row[..filled].copy_from_slice(&element[..filled]);
    while filled < row.len() {
        let more = filled.min(row.len() - filled);
        row.copy_within(..more, filled);
        filled += more;
    }
}

pub(super) fn write_word(
    accounting: &impl Accounting,
    memory: &mut Memory,
    (address, width): (u64, Width),
    value: u64,
) -> Result<(), Error> {
    let to = memory.bytes(address, width.bytes(), true)?;
    match width {
        Width::Four => {
            // SAFETY: aligned (checked when it was enqueued) and writable by the contract of
            // `Machine::write_value`. The program polls it, so both sides must access it
            // atomically; a volatile read in C is atomic on every target that we know.
            let word = unsafe { AtomicU32::from_ptr(to.cast()) };
            // A 32-bit write takes the low half.
            #[allow(clippy::cast_possible_truncation)]
            word.store(value as u32, Ordering::Release);
        }
        Width::Eight => {
            // SAFETY: as above.
            let word = unsafe { AtomicU64::from_ptr(to.cast()) };
            word.store(value, Ordering::Release);
        }
    }
    memory.spread(accounting, address, width.bytes())
}

pub(super) fn read_word(
    accounting: &impl Accounting,
    memory: &mut Memory,
    (address, width): (u64, Width),
) -> Result<u64, Error> {
    memory.gather(accounting, address, width.bytes())?;
    let from = memory.bytes(address, width.bytes(), false)?;
    Ok(match width {
        Width::Four => {
            // SAFETY: aligned (checked when it was enqueued) and readable by the contract of
            // `Machine::wait_value`; both sides access it atomically.
            let word = unsafe { AtomicU32::from_ptr(from.cast()) };
            u64::from(word.load(Ordering::Acquire))
        }
        Width::Eight => {
            // SAFETY: as above.
            let word = unsafe { AtomicU64::from_ptr(from.cast()) };
            word.load(Ordering::Acquire)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_conditions_match_the_driver() {
        use WaitCondition::{And, AtLeast, Equal, Nor};
        for (condition, width, word, value, met) in [
            (AtLeast, Width::Four, 5, 5, true),
            (AtLeast, Width::Four, 4, 5, false),
            (AtLeast, Width::Four, 0x0000_0001, 0xffff_fff0, true),
            (AtLeast, Width::Eight, 0x0000_0001, 0xffff_fff0, false),
            (Equal, Width::Four, 7, 7, true),
            (Equal, Width::Eight, 7, 8, false),
            (And, Width::Four, 0b110, 0b010, true),
            (And, Width::Four, 0b100, 0b010, false),
            (Nor, Width::Four, 0xffff_0000, 0x0000_ffff, false),
            (Nor, Width::Four, 0xffff_0000, 0x0000_fffe, true),
            (Nor, Width::Eight, u64::MAX, 0, false),
        ] {
            assert_eq!(
                is_met(condition, width, word, value),
                met,
                "{condition:?} {width:?} {word:x} {value:x}"
            );
        }
    }

    #[test]
    fn row_of_any_length_is_filled_with_whole_elements() {
        for (elements, element) in
            [(1, &[7_u8][..]), (5, &[1, 2]), (13, &[1, 2, 3, 4]), (64, &[9, 8])]
        {
            let mut row = vec![0; elements * element.len()];
            repeat(&mut row, element);
            assert_eq!(row, element.repeat(elements));
        }
        repeat(&mut [], &[1]);
    }
}
