//! `cuGetProcAddress`: which of our functions stands for the pointer that the driver has handed
//! out.
//!
//! The pointer decides, not the name and version that were asked: a driver answers a version newer
//! than itself with the newest function it has, whose arguments may be others than those of our
//! newest hook.
//!
//! | the driver's answer | ours |
//! |---|---|
//! | null | null |
//! | the address of a hooked symbol, or a hook | the hook |
//! | the address of another exported symbol | the same |
//! | something else, under a name of the table | judged by the symbol of the greatest version that is not above the one asked: refused if it takes memory, else passed, and counted either way |
//!
//! On the drivers measured (535, 550) the last row never happened, and no two symbols had one
//! address. Where two hooked symbols do, the name and version that were asked choose between them.

use core::ffi::{CStr, c_void};

use cgpu_abi::driver::{DefaultStream, proc_address};
use cgpu_abi::{DRIVER as ROWS, Role, Row};
use cgpu_memory::Reason;

use super::symbol::{driver_hook, is_driver_hook};
use crate::library::{DRIVER, DRIVER_SYMBOLS, Table};
use crate::process;

/// What was asked of `cuGetProcAddress`.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    /// The name, without version and flavour.
    pub(crate) name: &'a CStr,
    /// As 12040 for 12.4.
    pub(crate) version: u32,
    /// Which default stream.
    pub(crate) stream: DefaultStream,
}

/// What the program gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// This pointer.
    To(*const c_void),
    /// Nothing: it would take memory that is not accounted.
    Refused,
}

/// What the program gets for the pointer `found`.
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

/// The hooked row that `found` belongs to; `None`: it is no exported address.
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
    let asked =
        expected(request).and_then(|row| ROWS.iter().position(|other| other.symbol == row.symbol));
    let same = table.exported(found)?.find(|row| Some(*row) == asked);
    Some(same.or(Some(first)))
}

#[cold]
fn unexported(found: *const c_void, request: Request<'_>) -> Route {
    // A driver that looks its functions up as others do has found ours.
    if is_driver_hook(found) {
        return Route::To(found);
    }
    match expected(request) {
        Some(row) if matches!(row.role, Role::Allocates | Role::Managed | Role::Context) => {
            process::count(Reason::UnexportedRefused);
            Route::Refused
        }
        _ => {
            process::count(Reason::UnexportedPassed);
            Route::To(found)
        }
    }
}

fn expected(request: Request<'_>) -> Option<&'static Row> {
    proc_address(request.name.to_str().ok()?, request.version, request.stream)
}
