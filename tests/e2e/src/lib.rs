//! End-to-end tests: built files under the real loader, real processes
