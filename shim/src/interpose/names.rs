//! The hooked names: a perfect hash over the names of both tables, computed at compile time.
//!
//! The hash uses a name's length and its first, second and last eight bytes; only a match is
//! compared. Nearly all names of the driver begin with the same two letters, and some programs look
//! up hundreds of them.

use core::ffi::CStr;

use cgpu_abi::{DRIVER, Kind, NVML};

use super::symbol::Symbol;

/// Slots of the table. With more slots, a multiplier without collisions is found sooner, and fewer
/// comparisons fail.
const SLOTS: usize = 8192;

pub(super) fn find(name: &CStr) -> Option<Symbol> {
    let name = name.to_bytes();
    let symbol = TABLE.slots.get(slot(name, TABLE.multiplier)).copied().flatten()?;
    (symbol.name().as_bytes() == name).then_some(symbol)
}

struct Table {
    multiplier: u64,
    slots: [Option<Symbol>; SLOTS],
}

static TABLE: Table = table();

const fn table() -> Table {
    // Tries odd multipliers until one maps no two names to the same slot.
    let mut multiplier: u64 = 0x9e37_79b9_7f4a_7c15;
    loop {
        if let Some(slots) = fill(multiplier) {
            return Table { multiplier, slots };
        }
        multiplier =
            multiplier.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814e) | 1;
    }
}

#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler, which checks it")]
const fn fill(multiplier: u64) -> Option<[Option<Symbol>; SLOTS]> {
    let mut slots = [None; SLOTS];
    let mut row = 0;
    while row < DRIVER.len() {
        if matches!(DRIVER[row].kind, Kind::Hook)
            && !put(&mut slots, Symbol::driver(row), multiplier)
        {
            return None;
        }
        row += 1;
    }
    row = 0;
    while row < NVML.len() {
        if matches!(NVML[row].kind, Kind::Hook) && !put(&mut slots, Symbol::nvml(row), multiplier) {
            return None;
        }
        row += 1;
    }
    Some(slots)
}

#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler, which checks it")]
const fn put(slots: &mut [Option<Symbol>; SLOTS], symbol: Symbol, multiplier: u64) -> bool {
    let place = slot(symbol.name().as_bytes(), multiplier);
    if slots[place].is_some() {
        return false;
    }
    slots[place] = Some(symbol);
    true
}

/// Returns the slot of a name: the highest bits of a product depend on all bits of its factors.
#[allow(clippy::cast_possible_truncation, reason = "the shift leaves the bits of a slot")]
const fn slot(name: &[u8], multiplier: u64) -> usize {
    let (first, last) = match (name.first_chunk(), name.last_chunk()) {
        (Some(first), Some(last)) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
        // Only `cuInit` is as short as this.
        _ => match (name.first_chunk(), name.last_chunk()) {
            (Some(first), Some(last)) => {
                (u32::from_le_bytes(*first) as u64, u32::from_le_bytes(*last) as u64)
            }
            _ => (0, 0),
        },
    };
    // Pairs such as export and import differ only here.
    let second = match name.split_at_checked(size_of::<u64>()) {
        Some((_, rest)) => match rest.first_chunk() {
            Some(second) => u64::from_le_bytes(*second),
            None => 0,
        },
        None => 0,
    };
    // The rotations are no multiples of a byte: a byte that is in both the second and the last
    // eight bytes must not cancel itself out.
    let key = first ^ second.rotate_left(13) ^ last.rotate_left(31) ^ ((name.len() as u64) << 7);
    (key.wrapping_mul(multiplier) >> (u64::BITS - SLOTS.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn every_hooked_name_is_found_and_no_other() {
        let driver = DRIVER
            .iter()
            .enumerate()
            .map(|(row, entry)| (entry.symbol, entry.kind, Symbol::driver(row)));
        let nvml = NVML
            .iter()
            .enumerate()
            .map(|(row, entry)| (entry.symbol, entry.kind, Symbol::nvml(row)));
        for (name, kind, symbol) in driver.chain(nvml) {
            let found = find(&CString::new(name).unwrap());
            assert_eq!(found, (kind == Kind::Hook).then_some(symbol), "{name}");
        }
    }

    #[test]
    fn similar_names_are_not_hooked() {
        for name in [
            c"",
            c"cu",
            c"nv",
            c"cuIni",
            c"cuInit_",
            c"cuInit2",
            c"cuMemAlloc_v3",
            c"nvmlDeviceGetMemoryInfo_v9",
            c"CuInit",
        ] {
            assert_eq!(find(name), None, "{name:?}");
        }
    }
}
