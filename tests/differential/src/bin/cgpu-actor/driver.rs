//! The driver and NVML, found as most programs do: by dlopen and dlsym.

use std::ffi::CStr;

use anyhow::{Context, Result};
use libloading::os::unix::{Library, RTLD_NOW, Symbol};

use crate::names::Names;

/// A library, and calls of its functions by name.
pub(crate) struct Api {
    library: Library,
    /// What else the functions are called.
    pub(crate) names: Names,
}

impl Api {
    /// Opens it.
    pub(crate) fn open(name: &str) -> Result<Self> {
        // SAFETY: loading the driver runs its initialisers; this is what every client of it does.
        let library = unsafe { Library::open(Some(name), RTLD_NOW) };
        Ok(Self { library: library.with_context(|| name.to_owned())?, names: Names::given() })
    }

    /// Calls a function whose parameters are all integers or pointers, by one of its names.
    pub(crate) fn call<const N: usize>(&self, name: &CStr, arguments: [usize; N]) -> Result<i32> {
        self.call_by(self.names.for_name(name), arguments)
    }

    /// The same by this very name.
    pub(crate) fn call_by<const N: usize>(
        &self,
        name: &CStr,
        arguments: [usize; N],
    ) -> Result<i32> {
        type Any =
            unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize) -> i32;
        const { assert!(N <= 8, "as many as Any has") };
        // SAFETY: the callers name functions with at most eight parameters, each an integer or a pointer: on the machines that we run on each
        // goes into a register or a word of the caller's stack, and the callee does not look at more than it has.
        let function: Symbol<Any> = unsafe { self.symbol(name) }?;
        let mut padded = [0; 8];
        for (place, argument) in padded.iter_mut().zip(arguments) {
            *place = argument;
        }
        let [one, two, three, four, five, six, seven, eight] = padded;
        // SAFETY: pointers among the arguments are to places of the caller that live on, of the type that the function writes.
        Ok(unsafe { function(one, two, three, four, five, six, seven, eight) })
    }

    /// A function, for calls that are not of that kind.
    ///
    /// # Safety
    /// `F` must be the type of the function.
    pub(crate) unsafe fn symbol<F>(&self, name: &CStr) -> Result<Symbol<F>> {
        // SAFETY: the caller's obligation.
        let found = unsafe { self.library.get(name.to_bytes_with_nul()) };
        found.with_context(|| format!("{} is not in the driver", name.to_string_lossy()))
    }
}

/// Where an answer goes.
pub(crate) fn place<T>(place: &mut T) -> usize {
    std::ptr::from_mut(place).expose_provenance()
}
