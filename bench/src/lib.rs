//! Benchmarks: the figures of the specification
