//! libcgpu.so under the real loader: small C programs that find the driver in the ways real
//! programs do.
//!
//! The programs print where their pointers lead; every test runs them without and with the shim.
//! The driver is the null driver, or a few lines of C where a test needs an unusual one.

mod bystanders;
mod copies;
mod forks;
mod handles;
mod harness;
mod log;
mod namespaces;
mod routes;
mod sanitizers;
