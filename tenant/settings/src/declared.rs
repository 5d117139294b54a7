//! An environment that tests declare.
#![allow(clippy::expect_used)]

use std::collections::BTreeMap;
use std::ffi::{CStr, OsString};
use std::path::PathBuf;

use crate::Environment;

/// A test's environment.
#[derive(Clone, Debug, Default)]
pub struct Declared {
    /// By name.
    pub variables: BTreeMap<String, OsString>,
    /// [`Environment::run_directory`].
    pub run_directory: PathBuf,
    /// [`Environment::shared_memory_directory`].
    pub shared_memory_directory: PathBuf,
}

impl Declared {
    /// Creates one with these variables, `NAME=value` each.
    ///
    /// # Panics
    /// One of them has no `=`.
    #[must_use]
    pub fn with(variables: &[&str]) -> Self {
        let mut declared = Self::default();
        declared.set(variables);
        declared
    }

    /// Adds variables, `NAME=value` each.
    ///
    /// # Panics
    /// One of them has no `=`.
    pub fn set(&mut self, variables: &[&str]) {
        for variable in variables {
            let (name, value) = variable.split_once('=').expect("NAME=value");
            self.variables.insert(name.to_owned(), value.into());
        }
    }
}

impl Environment for Declared {
    fn variable(&self, name: &CStr) -> Option<OsString> {
        self.variables.get(name.to_str().expect("names are ASCII")).cloned()
    }

    fn user(&self) -> u32 {
        // SAFETY: no obligations; geteuid cannot fail.
        unsafe { libc::geteuid() }
    }

    fn pid_namespace(&self) -> u64 {
        4_026_531_836
    }

    fn process_name(&self) -> Vec<u8> {
        b"a-test".to_vec()
    }

    fn host_name(&self) -> String {
        "012b2edccd7a".to_owned()
    }

    fn run_directory(&self) -> PathBuf {
        self.run_directory.clone()
    }

    fn shared_memory_directory(&self) -> PathBuf {
        self.shared_memory_directory.clone()
    }
}
