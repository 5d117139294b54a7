//! What happens, asked of built files under the real loader. Runs in parallel.
//!
//! Tests are named for what went wrong elsewhere, or would.

mod contended;
mod control;
mod death;
mod defects;
mod deploy;
mod doctor;
mod documents;
mod escape;
mod exchange;
mod gpus;
mod graphs;
mod idle;
mod implicit;
mod input;
mod instructions;
mod journal;
mod kit;
mod library;
mod live;
mod log;
mod lookups;
mod memory;
mod mig;
mod nvml;
mod physical;
mod pools;
mod race;
mod recorded;
mod region;
mod run;
mod same;
mod service;
mod surroundings;
mod terminal;
mod tree;
mod view;
mod watcher;
