//! Views of the CUDA driver's table: the rows, their positions, the types of the functions.

use crate::row::{Flavour, Row, views, word};

macro_rules! rows {
    ($($kind:ident $symbol:ident { $name:literal, $flavour:ident, $version:literal, $since:literal }
        $role:ident $treatment:ident $played:ident $reason:literal $(($($args:tt)*) $(-> $ret:ty)?)?;)*) => {
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
            played: word!($played),
            reason: $reason,
        }),*];
    };
}
crate::driver_table!(rows);
crate::driver_table!(views, [types, CUresult]);

/// Which default stream the caller of `cuGetProcAddress` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DefaultStream {
    /// The stream that all threads share.
    Legacy,
    /// The calling thread's own.
    PerThread,
}

/// The symbol that stands under `name` at `version`: the greatest tabled version not above it. A name that has no
/// function for the thread's own stream has the same for both.
///
/// This is not what a driver hands out (ask the driver), but what a function must be that carries the name and is no
/// exported symbol.
#[must_use]
pub fn proc_address(name: &str, version: u32, stream: DefaultStream) -> Option<&'static Row> {
    let fits = |row: &&Row| match row.flavour {
        Flavour::Legacy => true,
        Flavour::PerThreadStream | Flavour::PerThreadDefault => stream == DefaultStream::PerThread,
        Flavour::None => false,
    };
    DRIVER
        .iter()
        .filter(|row| row.name == name && row.version <= version)
        .filter(fits)
        .max_by_key(|row| (row.version, row.flavour != Flavour::Legacy))
}
