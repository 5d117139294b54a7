//! The shared-memory layout of include/cgpu.h in Rust, regions, slots and shared locks
