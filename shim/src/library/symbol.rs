//! A hooked symbol, and our function for it.

use core::ffi::c_void;

use cgpu_abi::{DRIVER as DRIVER_ROWS, NVML as NVML_ROWS};

use super::{DRIVER, NVML};

/// A hooked symbol: a library and a row of its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Symbol {
    /// Of the driver.
    Driver(u16),
    /// Of NVML.
    Nvml(u16),
}

#[allow(clippy::cast_possible_truncation, reason = "the tables have some hundred rows")]
impl Symbol {
    /// The driver's symbol of this row.
    pub(crate) const fn driver(row: usize) -> Symbol {
        Symbol::Driver(row as u16)
    }

    /// NVML's symbol of this row.
    pub(crate) const fn nvml(row: usize) -> Symbol {
        Symbol::Nvml(row as u16)
    }
}

impl Symbol {
    /// The exported name.
    #[allow(clippy::indexing_slicing, reason = "symbols are made from rows of the tables")]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Symbol::Driver(row) => DRIVER_ROWS[row as usize].symbol,
            Symbol::Nvml(row) => NVML_ROWS[row as usize].symbol,
        }
    }

    /// Whether the library is open and defines this symbol.
    pub(crate) fn is_defined(self) -> bool {
        match self {
            Symbol::Driver(row) => DRIVER.defines(row.into()),
            Symbol::Nvml(row) => NVML.defines(row.into()),
        }
    }

    /// Our function for it.
    pub(crate) fn hook(self) -> *const c_void {
        match self {
            Symbol::Driver(row) => DRIVER.hook(row.into()),
            Symbol::Nvml(row) => NVML.hook(row.into()),
        }
    }

    /// Our function for it if `found`, which a look-up has given, is the library's own; else `found`.
    pub(crate) fn exchange(self, found: *const c_void) -> *const c_void {
        match self {
            Symbol::Driver(row) => DRIVER.exchange(row.into(), found),
            Symbol::Nvml(row) => NVML.exchange(row.into(), found),
        }
    }
}

/// The address of one of our functions; null where the row has none.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Hook(pub(crate) *const c_void);

// SAFETY: the address of a function is a number that never changes.
unsafe impl Sync for Hook {}
