//! The CUDA driver and NVML ABI: one table of functions, types, results.
//!
//! # The table
//!
//! [`driver_table!`] and [`nvml_table!`] have one row for every symbol of the drivers of CUDA 11.7
//! to 13.5. The shim's exports and routing, its pointers to the real functions, the simulated
//! driver and `docs/support.md` are generated from them.
//!
//! ```text
//! kind symbol { name, flavour, version, since } role treatment simulated "reason"
//!     (arguments) -> answer;
//! ```
//!
//! | part | meaning |
//! |---|---|
//! | kind | `hook`, `call` or `pass`: [`Kind`]. A `pass` row ends after its reason |
//! | symbol | the exported name |
//! | name | the name under which `cuGetProcAddress` knows the symbol |
//! | flavour | `legacy`, `ptsz`, `ptds` or `none`: [`Flavour`] |
//! | version | first version for which `cuGetProcAddress` returns it, as 12040; 0: never |
//! | since | the first header that has it, as 1204; 0: none |
//! | role, treatment | [`Role`], [`Treatment`] |
//! | simulated | `simulated`, or `stub` if the simulated driver only returns NOT_SUPPORTED |
//! | reason | why it has this treatment |
//! | arguments | of a `hook` or `call`; `()` also for a refused function that is not simulated |
//! | answer | if omitted: `CUresult`, in NVML's table `nvmlReturn_t` |
//!
//! NVML's rows have only `{ since }`.
//!
//! # Writing a callback
//!
//! A table macro takes the name of a macro and invokes it once with all rows. A bracketed argument
//! after the name is passed before the rows, brackets included. Types resolve where the callback
//! uses them:
//!
//! ```
//! #![allow(non_camel_case_types, non_snake_case)]
//! use cgpu_abi::types::*;
//!
//! /// A table of pointers to the real driver's functions.
//! macro_rules! pointers {
//!     ([$table:ident] $($kind:ident $symbol:ident
//!         { $name:literal, $flavour:ident, $version:literal, $since:literal }
//!         $role:ident $treatment:ident $simulated:ident $reason:literal
//!         $(($($arg:ident: $type:ty),*) $(-> $ret:ty)?)?;)*) => {
//!         #[derive(Default)]
//!         struct $table {
//!             $($symbol: pointers!(@field $kind $symbol),)*
//!         }
//!     };
//!     (@field pass $symbol:ident) => { () };
//!     (@field $kind:ident $symbol:ident) => { Option<cgpu_abi::driver::fns::$symbol> };
//! }
//! cgpu_abi::driver_table!(pointers, [RealDriver]);
//!
//! let real = RealDriver::default();
//! assert!(real.cuMemAlloc_v2.is_none());
//! ```
//!
//! A callback that treats rows by kind handles them one at a time, as `pointers!(@field …)` does.
//! `$kind`, `$treatment` and `$simulated` are identifiers, so an inner rule can match them
//! literally.
//!
//! # Adding or changing a row
//!
//! - Symbols of a new driver go into `data/*.tsv` first, from its header and its exports. The build
//!   then fails and names the first symbol without a row, or the first row without a symbol.
//! - The row goes into its group, under the comment that names the group. Choose the role by what
//!   the function does, not by its name, then the treatment. A function that can take a GPU's
//!   memory is charged, refused or at least counted; only others may pass. The reason is a clause
//!   that a user can read on its own.
//! - Give the arguments if the shim hooks or calls the function, or the simulator implements it;
//!   the kind is then not `pass`. Types are those of [`types`] and [`nvml_types`], under the
//!   vendor's names. The test `header` compares the row with an installed header
//!   (`CUDA_HEADER_DIR=… cargo test -p cgpu-abi --test header`).
//! - `BLESS=1 cargo test -p cgpu-abi --test support` writes `docs/support.md`; read the difference.
//!
//! To simulate one more function, change `stub` into `simulated` and give its arguments.
#![allow(non_camel_case_types, reason = "the vendor's own names")]

mod completeness;
mod constants;
mod copy_types;
pub mod driver;
mod driver_table;
mod external_types;
mod graph_types;
mod memory_types;
pub mod nvml;
mod nvml_constants;
mod nvml_table;
pub mod nvml_types;
mod results;
mod row;
pub mod types;

pub use driver::{DRIVER, index as driver_index};
pub use nvml::{NVML, index as nvml_index};
pub use row::{Flavour, Kind, NvmlRow, Role, Row, Treatment};
