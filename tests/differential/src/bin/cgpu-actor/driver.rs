//! The driver and NVML, found by dlopen and dlsym as in most programs.

use std::ffi::CStr;

use anyhow::{Context, Result};
use libloading::os::unix::{Library, RTLD_NOW, Symbol};

use crate::names::Names;

/// A library whose functions are called by name.
pub(crate) struct Api {
    library: Library,
    /// Other names of the functions.
    pub(crate) names: Names,
}

impl Api {
    /// Opens a library.
    pub(crate) fn open(name: &str) -> Result<Self> {
        // SAFETY: loading the library runs its initialisers, as in every client of it. They have no
        // preconditions.
        let library = unsafe { Library::open(Some(name), RTLD_NOW) };
        Ok(Self {
            library: library.with_context(|| name.to_owned())?,
            names: Names::from_environment(),
        })
    }

    /// Calls a function whose parameters are all integers or pointers, by one of its names.
    pub(crate) fn call<const N: usize>(&self, name: &CStr, arguments: [usize; N]) -> Result<i32> {
        self.call_by(self.names.for_name(name), arguments)
    }

    /// Calls it by exactly this name.
    pub(crate) fn call_by<const N: usize>(
        &self,
        name: &CStr,
        arguments: [usize; N],
    ) -> Result<i32> {
        type Any =
            unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize) -> i32;
        const { assert!(N <= 8, "as many as Any has") };
        // SAFETY: callers name functions with at most eight parameters, each an integer or a
        // pointer. In the calling convention of x86-64 and aarch64 each takes one register or one
        // stack word, and a callee ignores those beyond its own parameters.
        let function: Symbol<Any> = unsafe { self.symbol(name) }?;
        let mut padded = [0; 8];
        for (place, argument) in padded.iter_mut().zip(arguments) {
            *place = argument;
        }
        let [one, two, three, four, five, six, seven, eight] = padded;
        // SAFETY: pointers among the arguments are to variables of the caller that outlive the call
        // and have the type that the function accesses.
        Ok(unsafe { function(one, two, three, four, five, six, seven, eight) })
    }

    /// Finds a function for calls with other parameters.
    ///
    /// # Safety
    /// `F` must be the type of the function.
    pub(crate) unsafe fn symbol<F>(&self, name: &CStr) -> Result<Symbol<F>> {
        // SAFETY: the caller's obligation.
        let found = unsafe { self.library.get(name.to_bytes_with_nul()) };
        found.with_context(|| format!("{} is not in the driver", name.to_string_lossy()))
    }
}

/// Returns the address of a variable for an argument.
pub(crate) fn place<T>(place: &mut T) -> usize {
    std::ptr::from_mut(place).expose_provenance()
}
