//! A hooked symbol and its hook.

use core::ffi::c_void;
use core::ptr;

use cgpu_abi::{DRIVER as DRIVER_ROWS, NVML as NVML_ROWS};

use crate::entry;
use crate::library::{DRIVER, NVML};

/// A hooked symbol: a library and a row of its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Symbol {
    Driver(u16),
    Nvml(u16),
}

#[allow(clippy::cast_possible_truncation, reason = "the tables have some hundred rows")]
impl Symbol {
    pub(crate) const fn driver(row: usize) -> Symbol {
        Symbol::Driver(row as u16)
    }

    pub(crate) const fn nvml(row: usize) -> Symbol {
        Symbol::Nvml(row as u16)
    }
}

impl Symbol {
    #[allow(clippy::indexing_slicing, reason = "symbols are made from rows of the tables")]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Symbol::Driver(row) => DRIVER_ROWS[row as usize].symbol,
            Symbol::Nvml(row) => NVML_ROWS[row as usize].symbol,
        }
    }

    pub(crate) fn is_defined(self) -> bool {
        match self {
            Symbol::Driver(row) => DRIVER.defines(row.into()),
            Symbol::Nvml(row) => NVML.defines(row.into()),
        }
    }

    pub(crate) fn hook(self) -> *const c_void {
        match self {
            Symbol::Driver(row) => driver_hook(row.into()),
            Symbol::Nvml(row) => {
                entry::NVML_HOOKS.get(usize::from(row)).map_or(ptr::null(), |hook| hook.0)
            }
        }
    }

    /// Returns the hook if `found`, the result of a look-up, is the library's own function; else
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

/// Returns the hook of a row of the driver's table; null: none.
#[inline]
pub(super) fn driver_hook(row: usize) -> *const c_void {
    entry::DRIVER_HOOKS.get(row).map_or(ptr::null(), |hook| hook.0)
}

pub(super) fn is_driver_hook(address: *const c_void) -> bool {
    entry::DRIVER_HOOKS.iter().any(|hook| hook.0 == address)
}
