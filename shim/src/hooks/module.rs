//! Modules, libraries and a context's limits: memory of the GPU that is allocated implicitly.
//!
//! The size that an image states is charged before the driver's call: all of it if code is loaded
//! with its module, else its variables. What it then takes is measured. A library belongs to no
//! context. With lazy loading, the first look-up in a context loads it there. That is refused if it
//! does not fit, or if the container is already over its limit. Memory beyond the stated size
//! cannot be undone.

use core::cell::Cell;
use core::ffi::{CStr, c_char, c_uint, c_void};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use cgpu_abi::driver_index;
use cgpu_abi::types::*;
use cgpu_memory::{Bytes, Cause, Context, PendingImplicit, Tenant};

use super::memory::call_retrying;
use crate::current::current;
use crate::image::{self, Size};
use crate::process::{self, Accounting};
use crate::{driver, free, gpus};

/// Defines functions that load an image, by name, arguments, and the size that the image states.
macro_rules! loads {
    ($load:ident; $($symbol:ident(
        $handle:ident: $made:ty $(, $arg:ident: $type:ty)* $(,)?
    ) => $size:expr;)*) => {$(
        #[allow(clippy::too_many_arguments, reason = "the driver's own")]
        pub(crate) unsafe fn $symbol($handle: $made $(, $arg: $type)*) -> CUresult {
            // SAFETY: the program's own call, with its handle or one of ours.
            let call = |$handle| unsafe { driver::$symbol($handle $(, $arg)*) };
            // SAFETY: null, or the program's image or file name, which the driver reads, too.
            let size = || unsafe { $size };
            // SAFETY: the handle is the program's: null or writable.
            unsafe { $load($handle, size, call) }
        }
    )*};
}

loads! { load;
    cuModuleLoad(module: *mut CUmodule, file_name: *const c_char) => size_of_file(file_name);
    cuModuleLoadData(module: *mut CUmodule, image: *const c_void) => image::size_at(image);
    cuModuleLoadDataEx(
        module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut CUjit_option,
        values: *mut *mut c_void,
    ) => image::size_at(image);
}

// They belong to no context. With eager loading they are loaded into all existing ones.
loads! { load_library;
    cuLibraryLoadData(
        library: *mut CUlibrary, code: *const c_void, jit_options: *mut CUjit_option,
        jit_values: *mut *mut c_void, jit_count: c_uint, options: *mut CUlibraryOption,
        values: *mut *mut c_void, count: c_uint,
    ) => image::size_at(code);
    cuLibraryLoadFromFile(
        library: *mut CUlibrary, file_name: *const c_char, jit_options: *mut CUjit_option,
        jit_values: *mut *mut c_void, jit_count: c_uint, options: *mut CUlibraryOption,
        values: *mut *mut c_void, count: c_uint,
    ) => size_of_file(file_name);
}

/// Loads one of several images of the same code.
pub(crate) unsafe fn cuModuleLoadFatBinary(
    module: *mut CUmodule,
    fat_cubin: *const c_void,
) -> CUresult {
    // SAFETY: the program's own call, with its handle or one of ours.
    let call = |module| unsafe { driver::cuModuleLoadFatBinary(module, fat_cubin) };
    // SAFETY: the handle is the program's: null or writable.
    unsafe { load(module, Size::default, call) }
}

/// Its code and variables are freed.
pub(crate) unsafe fn cuModuleUnload(module: CUmodule) -> CUresult {
    let tenant = process::tenant();
    let _going = tenant.map(|tenant| tenant.implicit().begin_unload(Cause::Module(module.0)));
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuModuleUnload(module) };
    if let (CUresult::SUCCESS, Some(tenant)) = (answer, tenant) {
        tenant.implicit().module_unloaded(module.0);
    }
    answer
}

/// Its code and variables are freed in all contexts.
pub(crate) unsafe fn cuLibraryUnload(library: CUlibrary) -> CUresult {
    let tenant = process::tenant();
    let _going = tenant.map(|tenant| tenant.implicit().begin_unload(Cause::Library(library.0)));
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuLibraryUnload(library) };
    if let (CUresult::SUCCESS, Some(tenant)) = (answer, tenant) {
        tenant.implicit().library_unloaded(library.0);
    }
    answer
}

hooks! { call;
    // Loads a library into the current context.
    cuLibraryGetModule(module: *mut CUmodule, library: CUlibrary) =>
        lazy_load_library(library, call);

    // Loads a kernel's library and code into the current context.
    cuKernelGetFunction(function: *mut CUfunction, kernel: CUkernel) =>
        lazy_load(kernel.0, library_of(kernel), call);

    cuFuncLoad(function: CUfunction) => lazy_load(function.0, None, call);
}

/// A larger heap, stack or printf buffer is charged by its growth.
pub(crate) unsafe fn cuCtxSetLimit(limit: CUlimit, value: usize) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuCtxSetLimit(limit, value) };
    let tenant = tenant_or_return!(call());
    let Some(context) = current(tenant) else { return call() };
    let Some(copies) = copies(tenant, context, limit) else { return call() };
    // SAFETY: the variable is writable.
    let former = driver::get(|former| unsafe { driver::cuCtxGetLimit(former, limit) });
    let Ok(former) = former else { return call() };
    let bytes = |each: usize| Bytes((each as u64).saturating_mul(copies));
    // What was allocated with the context is part of its cost, also after the limit is lowered.
    let came = tenant.implicit().came_with(context, Cause::Limit(limit), bytes(former));
    let beyond = |each: usize| bytes(each) - came;
    // It is unknown whether the driver allocates it at once or when a kernel first needs it, so it
    // is charged from here on.
    let Ok(growing) = tenant.implicit().begin(context, beyond(value) - beyond(former), || None)
    else {
        return CUresult::ERROR_OUT_OF_MEMORY;
    };
    let _going = tenant.implicit().begin_unload(Cause::Limit(limit));
    let answer = call_retrying(tenant, context.gpu(), call);
    if answer == CUresult::SUCCESS {
        growing.grown(Cause::Limit(limit), None);
        tenant.implicit().unloaded(
            Cause::Limit(limit),
            Some(context),
            beyond(former) - beyond(value),
        );
    }
    answer
}

/// Returns how many copies of that memory a context has on its GPU; none: it takes none.
fn copies(tenant: &Tenant, context: Context, limit: CUlimit) -> Option<u64> {
    match limit {
        CU_LIMIT_PRINTF_FIFO_SIZE | CU_LIMIT_MALLOC_HEAP_SIZE => Some(1),
        // One stack for each thread that can be resident on the GPU.
        CU_LIMIT_STACK_SIZE => {
            let device = process::devices(tenant).of_gpu(context.gpu())?;
            let attribute =
                |attribute| u64::try_from(gpus::driver_attribute(device, attribute).ok()?).ok();
            let threads = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?;
            Some(threads.saturating_mul(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?))
        }
        _ => None,
    }
}

/// Loads a module into the current context.
///
/// # Safety
///
/// `module` is null or writable.
unsafe fn load(
    module: *mut CUmodule,
    size: impl FnOnce() -> Size,
    call: impl Fn(*mut CUmodule) -> CUresult,
) -> CUresult {
    let tenant = tenant_or_return!(call(module));
    let Some(context) = current(tenant) else { return call(module) };
    let made = Made::default();
    // SAFETY: the driver returned the handle, and the program has not seen it.
    let unload = || unsafe { driver::cuModuleUnload(made.get()) };
    let load = || call(made.target_for(module));
    let cause = || Cause::Module(made.get().0);
    let answer = make(tenant, context, at_once(size()), free::of_current, load, unload, cause);
    // SAFETY: guaranteed by the caller.
    unsafe { made.write_to(module, answer) }
}

/// The driver's handle before the program gets it. If the load is undone and refused, the program's
/// variable stays unchanged.
#[derive(Default)]
struct Made<H>(Cell<H>);

impl<H: Copy> Made<H> {
    /// Returns where the driver is to write: null if the program's pointer is null, which the
    /// driver refuses.
    fn target_for(&self, place: *mut H) -> *mut H {
        if place.is_null() { place } else { self.0.as_ptr() }
    }

    fn get(&self) -> H {
        self.0.get()
    }

    /// Writes the handle for the program if the call has succeeded.
    ///
    /// # Safety
    ///
    /// `place` is null or writable.
    unsafe fn write_to(&self, place: *mut H, answer: CUresult) -> CUresult {
        if answer == CUresult::SUCCESS && !place.is_null() {
            // SAFETY: guaranteed by the caller.
            unsafe { place.write(self.get()) };
        }
        answer
    }
}

/// Creates something with implicit memory of a context; `free` reads the free memory of its GPU. If
/// it exceeds the limit, it is undone. If something else has taken that memory, it is created
/// again.
pub(super) fn make(
    tenant: &Tenant,
    context: Context,
    known: Bytes,
    free: impl Fn() -> Option<Bytes>,
    call: impl Fn() -> CUresult,
    undo: impl FnOnce() -> CUresult,
    cause: impl FnOnce() -> Cause,
) -> CUresult {
    let Ok(growing) = tenant.implicit().begin(context, known, &free) else {
        return CUresult::ERROR_OUT_OF_MEMORY;
    };
    let mut answer = call_retrying(tenant, context.gpu(), &call);
    let mut growth = growing.growth(&free);
    if answer == CUresult::SUCCESS && growing.exceeds(growth) {
        let before = free();
        if undo() == CUresult::SUCCESS {
            if PendingImplicit::was_returned(growth, before, free()) {
                growing.denied();
                return CUresult::ERROR_OUT_OF_MEMORY;
            }
            answer = call_retrying(tenant, context.gpu(), &call);
            growth = None;
        }
    }
    if answer == CUresult::SUCCESS {
        growing.grown(cause(), growth);
    }
    answer
}

/// Loads a library: into the current context, or to be loaded there later.
///
/// # Safety
///
/// `library` is null or writable.
unsafe fn load_library(
    library: *mut CUlibrary,
    size: impl FnOnce() -> Size,
    call: impl Fn(*mut CUlibrary) -> CUresult,
) -> CUresult {
    let tenant = tenant_or_return!(call(library));
    let (size, made) = (size(), Made::default());
    let context = current(tenant).filter(|_| is_eager());
    let load = || call(made.target_for(library));
    let answer = match context {
        Some(context) => {
            // SAFETY: the driver returned the handle, and the program has not seen it.
            let unload = || unsafe { driver::cuLibraryUnload(made.get()) };
            let cause = || Cause::Library(made.get().0);
            make(tenant, context, at_once(size), free::of_current, load, unload, cause)
        }
        None => load(),
    };
    if answer == CUresult::SUCCESS {
        tenant.implicit().library_loaded(made.get().0, size.variables, context);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { made.write_to(library, answer) }
}

/// Makes a call that may load a library into the current context.
pub(super) fn lazy_load_library(library: CUlibrary, call: impl Fn() -> CUresult) -> CUresult {
    lazy_load(library.0, Some(library), call)
}

/// Makes a call that may load `what`, a handle of the driver, and its library into the current
/// context. That cannot be undone: an excess over the limit is shown, and no more is loaded.
fn lazy_load(what: usize, library: Option<CUlibrary>, call: impl Fn() -> CUresult) -> CUresult {
    // If the start was refused, no context exists.
    let Accounting::On(tenant) = process::accounting() else { return call() };
    let Some(context) = current(tenant) else { return call() };
    let free = free::of_current;
    let growing =
        match tenant.implicit().begin_load(context, what, library.map(|library| library.0), free) {
            Ok(Some(growing)) => growing,
            Ok(None) => return call(),
            Err(_) => return CUresult::ERROR_OUT_OF_MEMORY,
        };
    let answer = call_retrying(tenant, context.gpu(), call);
    if answer == CUresult::SUCCESS {
        growing.loaded(free);
    }
    answer
}

fn library_of(kernel: CUkernel) -> Option<CUlibrary> {
    if !driver::has(driver_index::cuKernelGetLibrary) {
        return None;
    }
    // SAFETY: the variable is writable.
    driver::get(|library| unsafe { driver::cuKernelGetLibrary(library, kernel) }).ok()
}

/// Returns what an image is certain to take when it is loaded into a context.
fn at_once(size: Size) -> Bytes {
    if is_eager() { size.whole } else { size.variables }
}

/// Returns whether code is loaded with its module. Drivers without the query always do so.
fn is_eager() -> bool {
    let mut mode = CU_MODULE_EAGER_LOADING;
    if driver::has(driver_index::cuModuleGetLoadingMode) {
        // SAFETY: the mode is writable. If the call fails, it stays unchanged.
        let _ = unsafe { driver::cuModuleGetLoadingMode(&raw mut mode) };
    }
    mode == CU_MODULE_EAGER_LOADING
}

/// Returns the size of the image in a file.
///
/// # Safety
///
/// `name` is null or a string.
unsafe fn size_of_file(name: *const c_char) -> Size {
    if name.is_null() {
        return Size::default();
    }
    // SAFETY: guaranteed by the caller.
    let name = unsafe { CStr::from_ptr(name) };
    let image = fs::read(OsStr::from_bytes(name.to_bytes()));
    image.map(|image| image::size_of(&image)).unwrap_or_default()
}
