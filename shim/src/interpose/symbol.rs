//! A hooked symbol, and our function for it.

use core::ffi::c_void;
use core::ptr;

use cgpu_abi::{DRIVER as DRIVER_ROWS, NVML as NVML_ROWS};

use crate::entry;
use crate::library::{DRIVER, NVML};

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
            Symbol::Driver(row) => driver_hook(row.into()),
            Symbol::Nvml(row) => {
                entry::NVML_HOOKS.get(usize::from(row)).map_or(ptr::null(), |hook| hook.0)
            }
        }
    }

    /// Our function for it if `found`, which a look-up has given, is the library's own; else
    /// `found`.
    pub(crate) fn exchange(self, found: *const c_void) -> *const c_void {
        let hook = self.hook();
        if found.is_null() || found == hook {
            return found;
        }
        let is_its_own = match self {
            Symbol::Driver(row) => DRIVER.owns(row.into(), found),
            Symbol::Nvml(row) => NVML.owns(row.into(), found),
        };
        if is_its_own { hook } else { found }
    }
}

/// Our function for a row of the driver's table; null: none.
#[inline]
pub(super) fn driver_hook(row: usize) -> *const c_void {
    entry::DRIVER_HOOKS.get(row).map_or(ptr::null(), |hook| hook.0)
}

/// Whether an address is that of one of our functions for the driver's.
pub(super) fn is_driver_hook(address: *const c_void) -> bool {
    entry::DRIVER_HOOKS.iter().any(|hook| hook.0 == address)
}
