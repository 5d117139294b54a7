//! Views of the CUDA driver's table: the rows, their positions, the types of the functions.

use crate::row::{Flavour, Row, views, word};

macro_rules! rows {
    ($($kind:ident $symbol:ident { $name:literal, $flavour:ident, $version:literal, $since:literal }
        $role:ident $treatment:ident $simulated:ident $reason:literal
        $(($($args:tt)*) $(-> $ret:ty)?)?;)*) => {
        /// Every symbol of the CUDA driver, in the order of the table.
        pub static DRIVER: &[Row] = &[$(Row {
            symbol: stringify!($symbol),
            name: $name,
            flavour: word!($flavour),
            version: $version,
            since: $since,
            kind: word!($kind),
            role: crate::Role::$role,
            treatment: crate::Treatment::$treatment,
            simulated: word!($simulated),
            reason: $reason,
        }),*];
    };
}
crate::driver_table!(rows);
crate::driver_table!(views, [types, CUresult]);

/// The default stream that a caller of `cuGetProcAddress` requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DefaultStream {
    /// The stream that all threads share.
    Legacy,
    /// The calling thread's own.
    PerThread,
}

/// Result of `cuGetProcAddress` for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The symbol at this position of the table.
    Symbol(usize),
    /// There is no such name. A symbol with a suffix (`cuMemAlloc_v2`) is not a name.
    NotFound,
    /// There is one, but all its functions, or those for the thread's own stream, are newer than
    /// the caller.
    VersionTooLow,
}

/// Returns what a driver of version `driver` gives for `name` to a caller of `version` (both as
/// 12040 for 12.4): the newest function of the name that is not newer than the caller. If the name
/// has functions for the thread's own stream, a caller that requests that stream gets only those;
/// else the name is the same for both. As measured on the drivers 535 and 550.
#[must_use]
pub fn look_up(name: &str, version: u32, stream: DefaultStream, driver: u32) -> Lookup {
    let known = || {
        let rows = DRIVER
            .iter()
            .enumerate()
            .filter(|(_, row)| row.name == name && row.flavour != Flavour::None);
        rows.filter(|(_, row)| row.is_exported_by(driver))
    };
    let per_thread = |row: &Row| row.flavour != Flavour::Legacy;
    let wanted = stream == DefaultStream::PerThread && known().any(|(_, row)| per_thread(row));
    let family = || known().filter(|(_, row)| per_thread(row) == wanted);
    match family().filter(|(_, row)| row.version <= version).max_by_key(|(_, row)| row.version) {
        Some((position, _)) => Lookup::Symbol(position),
        None if family().next().is_some() => Lookup::VersionTooLow,
        None => Lookup::NotFound,
    }
}

/// Returns the symbol of `name` at `version` in the newest driver.
///
/// The installed driver may return another one: this identifies a function of that name that is not
/// an exported symbol.
#[must_use]
pub fn proc_address(name: &str, version: u32, stream: DefaultStream) -> Option<&'static Row> {
    match look_up(name, version, stream, u32::MAX) {
        Lookup::Symbol(position) => Some(&DRIVER[position]),
        Lookup::NotFound | Lookup::VersionTooLow => None,
    }
}

/// Returns whether a function takes GPU memory, by its name alone: for names that the table lacks.
/// A later version of a function (`cuMemAlloc_v3`) does what the earlier ones do.
#[must_use]
pub fn takes_memory_by_name(name: &str) -> bool {
    const NOUNS: [&str; 4] = ["Mem", "Array", "Ctx", "Pool"];

    let base = base(name);
    let mut versions = DRIVER.iter().filter(|row| row.name == base).peekable();
    if versions.peek().is_some() {
        return versions.any(Row::takes_memory);
    }
    let is_creation = base.contains("Create") && NOUNS.iter().any(|noun| base.contains(noun));
    base.starts_with("cu") && (is_creation || base.contains("Alloc"))
}

/// Returns a symbol's name without its stream's flavour and its version.
fn base(symbol: &str) -> &str {
    let name = symbol.strip_suffix("_ptsz").or_else(|| symbol.strip_suffix("_ptds"));
    let name = name.unwrap_or(symbol);
    match name.rsplit_once("_v") {
        Some((base, version)) if version.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a later driver would name them.
    #[test]
    fn later_versions_take_memory_if_the_earlier_ones_do() {
        for row in DRIVER.iter().filter(|row| row.flavour == Flavour::Legacy) {
            let versions = || DRIVER.iter().filter(|other| other.name == row.name);
            for later in [format!("{}_v9", row.name), format!("{}_v10_ptsz", row.name)] {
                let expected = versions().any(Row::takes_memory);
                assert_eq!(takes_memory_by_name(&later), expected, "{later}");
            }
        }
        let takes = ["cuMemAlloc_v3", "cuMemCreate_v2", "cuCtxCreate_v5", "cuGraphAddNode_v4"];
        assert!(takes.iter().all(|name| takes_memory_by_name(name)));
        let takes_none = ["cuMemHostAlloc_v2", "cuCtxGetId_v2", "cuMemAddressReserve_v2"];
        assert!(!takes_none.iter().any(|name| takes_memory_by_name(name)));
    }

    #[test]
    fn new_names_take_memory_if_they_say_so() {
        for name in ["cuMemAllocSomewhere", "cuArray4DCreate", "cuMemPoolCreateFrom_v2"] {
            assert!(takes_memory_by_name(name), "{name}");
        }
        for name in ["cuBrandNew", "cuMemGetSomething", "cuStreamCreateNew", "malloc", ""] {
            assert!(!takes_memory_by_name(name), "{name}");
        }
    }
}
