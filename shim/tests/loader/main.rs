//! libcgpu.so under the real loader: small C programs, each of which does one thing that programs
//! do to find the driver.
//!
//! The programs say where their pointers lead; every test runs them without and with the shim. The
//! driver is the null driver, and where a test needs an odd one, a few lines of C.

mod bystanders;
mod copies;
mod forks;
mod handles;
mod harness;
mod log;
mod namespaces;
mod routes;
mod sanitizers;
