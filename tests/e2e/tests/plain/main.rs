//! What happens, asked of built files under the real loader. Runs in parallel.
//!
//! Tests are named for what went wrong elsewhere, or would.

mod control;
mod death;
mod documents;
mod input;
mod library;
mod lookups;
mod memory;
mod race;
mod region;
mod run;
