//! `cuGetProcAddress`: which hook replaces the pointer that the driver has returned.
//!
//! The pointer decides, not the requested name and version: for a version newer than itself a
//! driver returns its newest function, whose arguments may differ from those of our newest hook.
//!
//! | the driver's answer | the program gets |
//! |---|---|
//! | null | null |
//! | the address of a hooked symbol, or a hook | the hook |
//! | the address of another exported symbol | the same |
//! | anything else | refused or passed, and counted |
//!
//! The last row is decided by the symbol of the greatest version that is not above the requested
//! one, or else by the name: it is refused if that takes memory. Exported functions that take
//! memory and that the table lacks are counted when the driver is initialised
//! ([`hooks`](crate::hooks)).
//!
//! On the drivers measured (535, 550) the last row never occurred, and no two symbols had the same
//! address. If two hooked symbols do, the requested name and version choose between them.

use core::ffi::{CStr, c_void};

use cgpu_abi::driver::{DefaultStream, proc_address, takes_memory_by_name};
use cgpu_abi::{DRIVER as ROWS, Role, Row};
use cgpu_memory::Reason;

use super::symbol::{driver_hook, is_driver_hook};
use crate::library::{DRIVER, DRIVER_SYMBOLS, Table};
use crate::process;

#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) name: &'a CStr,
    /// For example 12040 for 12.4.
    pub(crate) version: u32,
    pub(crate) stream: DefaultStream,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    To(*const c_void),
    /// Nothing: the function would take memory that is not accounted.
    Refused,
}

/// Returns what the program gets for the pointer `found`.
pub(crate) fn route(found: *const c_void, request: Request<'_>) -> Route {
    if found.is_null() {
        return Route::To(found);
    }
    match hook(DRIVER.table(), found, request) {
        Some(Some(row)) => Route::To(driver_hook(row)),
        Some(None) => Route::To(found),
        None => unexported(found, request),
    }
}

/// Returns the hooked row of `found`; `None`: it is no exported address.
fn hook(
    table: &Table<DRIVER_SYMBOLS>,
    found: *const c_void,
    request: Request<'_>,
) -> Option<Option<usize>> {
    let mut rows = table.exported(found)?;
    let Some(first) = rows.next() else {
        return Some(None);
    };
    if rows.next().is_none() {
        return Some(Some(first));
    }
    let requested =
        expected(request).and_then(|row| ROWS.iter().position(|other| other.symbol == row.symbol));
    let same = table.exported(found)?.find(|row| Some(*row) == requested);
    Some(same.or(Some(first)))
}

#[cold]
fn unexported(found: *const c_void, request: Request<'_>) -> Route {
    // A driver that looks up its own functions in the usual way has found ours.
    if is_driver_hook(found) {
        return Route::To(found);
    }
    let takes_memory = match expected(request) {
        Some(row) => matches!(row.role, Role::Allocates | Role::Managed | Role::Context),
        None => request.name.to_str().is_ok_and(takes_memory_by_name),
    };
    if takes_memory {
        process::count(Reason::UnexportedRefused);
        return Route::Refused;
    }
    process::count(Reason::UnexportedPassed);
    Route::To(found)
}

fn expected(request: Request<'_>) -> Option<&'static Row> {
    proc_address(request.name.to_str().ok()?, request.version, request.stream)
}
