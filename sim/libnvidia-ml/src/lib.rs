//! The simulated GPU as `libnvidia-ml.so.1`: what NVML tells about the segment that the simulated driver's processes share.
//!
//! Every symbol of the table is exported. A row that says `simulated` calls the function of the same name in one of the modules below;
//! all other rows share an export that answers NOT_SUPPORTED.
//!
//! | module | what it tells |
//! |---|---|
//! | `library` | start and end, errors, versions |
//! | `device` | which GPUs there are, and what they are |
//! | `memory` | their memory |
//! | `processes` | who is on them |
//! | `utilisation` | how busy they are |
//! | `watch` | what happens to them |
//! | `fields` | properties by number |
//! | `board` | clocks, power, temperature, links: plausible figures of the model, not measurements |
//! | `partition` | instances of divided GPUs |
//! | `accounting` | what processes did in their lives |
//! | `limits` | limits that control groups were given |
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
