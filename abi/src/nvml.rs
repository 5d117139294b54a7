//! Views of NVML's table: the rows, their positions, the types of the functions.

use crate::row::{NvmlRow, views, word};

macro_rules! rows {
    ($($kind:ident $symbol:ident { $since:literal }
        $role:ident $treatment:ident $simulated:ident $reason:literal
        $(($($args:tt)*) $(-> $ret:ty)?)?;)*) => {
        /// Every symbol of NVML, in the order of the table.
        pub static NVML: &[NvmlRow] = &[$(NvmlRow {
            symbol: stringify!($symbol),
            since: $since,
            kind: word!($kind),
            role: crate::Role::$role,
            treatment: crate::Treatment::$treatment,
            simulated: word!($simulated),
            reason: $reason,
        }),*];
    };
}
crate::nvml_table!(rows);
crate::nvml_table!(views, [nvml_types, nvmlReturn_t]);
