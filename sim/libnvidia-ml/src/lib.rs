//! The simulated GPU as `libnvidia-ml.so.1`: NVML's view of the segment that the simulated driver's
//! processes share.
//!
//! Every symbol of the table is exported. A row marked `simulated` calls the function of the same
//! name in one of the modules below; all other rows share an export that answers NOT_SUPPORTED.
//!
//! | module | contents |
//! |---|---|
//! | `library` | initialisation, errors, versions |
//! | `device` | the GPUs and their properties |
//! | `memory` | their memory |
//! | `processes` | processes on them |
//! | `utilisation` | their utilisation |
//! | `watch` | their events |
//! | `fields` | properties by number |
//! | `board` | clocks, power, temperature, links: plausible figures of the model, not measurements |
//! | `partition` | MIG instances |
//! | `accounting` | statistics of processes |
//! | `limits` | limits of control groups |
#![allow(non_snake_case, reason = "the vendor's own functions")]

mod accounting;
mod answer;
#[allow(dead_code, reason = "NVML needs less of it than the driver")]
#[path = "../../libcuda/src/argument.rs"]
mod argument;
mod board;
mod device;
mod exports;
mod fields;
mod library;
mod limits;
mod memory;
mod partition;
mod permission;
mod processes;
mod utilisation;
#[path = "../../libcuda/src/version.rs"]
mod version;
mod watch;
