//! Libraries: code that belongs to no context. A library's kernel becomes a function of a context
//! when it is used there.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex};

use cgpu_abi::types::*;

use crate::answer::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND};
use crate::argument::{In, Out, Received, values};
use crate::call::Call;
use crate::driver::{Driver, count, lock};
use crate::function;
use crate::image::{Image, KernelShape};
use crate::loading;
use crate::module::{self, Module};

values!(CUlibrary, CUkernel);

#[derive(Debug)]
pub(crate) struct Library {
    image: Arc<Image>,
    /// Kernels that the program has requested, by name.
    kernels: Mutex<HashMap<String, CUkernel>>,
    /// Its modules in the contexts where it was used.
    modules: Mutex<HashMap<CUcontext, CUmodule>>,
}

impl Library {
    /// Returns its module in the current context.
    fn module(&self, driver: &Driver) -> Answer<CUmodule> {
        let context = driver.current()?;
        let mut modules = lock(&self.modules);
        if let Some(module) =
            modules.get(&context.handle).filter(|module| driver.modules.get(module.0).is_some())
        {
            return Ok(*module);
        }
        let handle = context.handle;
        let module = Module::load(driver, context, Arc::clone(&self.image))?;
        modules.insert(handle, module);
        Ok(module)
    }
}

#[derive(Debug)]
pub(crate) struct Kernel {
    name: CString,
    shape: KernelShape,
    declared: bool,
    library: CUlibrary,
}

fn find(driver: &Driver, library: CUlibrary) -> Answer<Arc<Library>> {
    driver.libraries.get(library.0).ok_or(INVALID_HANDLE)
}

fn find_kernel(driver: &Driver, kernel: CUkernel) -> Answer<Arc<Kernel>> {
    driver.kernels.get(kernel.0).ok_or(INVALID_HANDLE)
}

/// Returns a kernel's function in the current context.
pub(crate) fn function_of(driver: &Driver, kernel: CUkernel) -> Answer<CUfunction> {
    let kernel = find_kernel(driver, kernel)?;
    let module = find(driver, kernel.library)?.module(driver)?;
    module::find(driver, module)?.function(driver, module, &kernel.shape.name)
}

fn load(call: &Call, library: Out<CUlibrary>, image: impl FnOnce() -> Answer<Image>) -> Answer {
    let driver = call.driver()?;
    let library = library.required()?;
    let image = Arc::new(image()?);
    let loaded = Library { image, kernels: Mutex::default(), modules: Mutex::default() };
    if loading::is_eager() && driver.current().is_ok() {
        loaded.module(driver)?;
    }
    library.put(CUlibrary(driver.libraries.add(loaded)))?;
    Ok(())
}

pub(crate) fn cuLibraryLoadData(
    call: &Call,
    library: Out<CUlibrary>,
    code: In<c_void>,
    _jit_options: Out<CUjit_option>,
    _jit_options_values: Out<*mut c_void>,
    _num_jit_options: c_uint,
    _library_options: Out<CUlibraryOption>,
    _library_option_values: Out<*mut c_void>,
    _num_library_options: c_uint,
) -> Answer {
    load(call, library, || Image::read(code))
}

pub(crate) fn cuLibraryLoadFromFile(
    call: &Call,
    library: Out<CUlibrary>,
    file_name: In<c_char>,
    _jit_options: Out<CUjit_option>,
    _jit_options_values: Out<*mut c_void>,
    _num_jit_options: c_uint,
    _library_options: Out<CUlibraryOption>,
    _library_option_values: Out<*mut c_void>,
    _num_library_options: c_uint,
) -> Answer {
    load(call, library, || module::read_file(file_name))
}

pub(crate) fn cuLibraryUnload(call: &Call, library: CUlibrary) -> Answer {
    let driver = call.driver()?;
    let removed = driver.libraries.remove(library.0).ok_or(INVALID_HANDLE)?;
    for (_, kernel) in lock(&removed.kernels).drain() {
        driver.kernels.remove(kernel.0);
    }
    for (_, module) in lock(&removed.modules).drain() {
        // Missing if its context was destroyed.
        if let Some(loaded) = driver.modules.get(module.0) {
            driver.machine.synchronize_context(loaded.context.id)?;
            Module::unload(driver, module)?;
        }
    }
    Ok(())
}

fn kernel(driver: &Driver, handle: CUlibrary, name: &str) -> Answer<CUkernel> {
    let library = find(driver, handle)?;
    if name.is_empty() {
        return Err(NOT_FOUND);
    }
    let mut kernels = lock(&library.kernels);
    if let Some(kernel) = kernels.get(name) {
        return Ok(*kernel);
    }
    let declared = library.image.kernels.iter().find(|kernel| kernel.name == name);
    let kernel = Kernel {
        // A name that came from C contains no NUL.
        name: CString::new(name).unwrap_or_default(),
        shape: declared
            .cloned()
            .unwrap_or_else(|| KernelShape { name: name.to_owned(), ..KernelShape::default() }),
        declared: declared.is_some(),
        library: handle,
    };
    let kernel = CUkernel(driver.kernels.add(kernel));
    kernels.insert(name.to_owned(), kernel);
    Ok(kernel)
}

pub(crate) fn cuLibraryGetKernel(
    call: &Call,
    to: Out<CUkernel>,
    library: CUlibrary,
    name: In<c_char>,
) -> Answer {
    to.required()?;
    to.put(kernel(call.driver()?, library, &name.text()?)?)?;
    Ok(())
}

pub(crate) fn cuLibraryGetKernelCount(call: &Call, count: Out<c_uint>, lib: CUlibrary) -> Answer {
    let kernels = find(call.driver()?, lib)?.image.kernels.len();
    count.put(c_uint::try_from(kernels).map_err(|_| INVALID_VALUE)?)?;
    Ok(())
}

pub(crate) fn cuLibraryEnumerateKernels(
    call: &Call,
    kernels: Out<CUkernel>,
    num_kernels: c_uint,
    lib: CUlibrary,
) -> Answer {
    let driver = call.driver()?;
    let library = find(driver, lib)?;
    let all = library.image.kernels.iter().map(|shape| kernel(driver, lib, &shape.name));
    kernels.put_all(all.collect::<Answer<Vec<_>>>()?, count(num_kernels)?)?;
    Ok(())
}

pub(crate) fn cuLibraryGetModule(call: &Call, module: Out<CUmodule>, library: CUlibrary) -> Answer {
    let driver = call.driver()?;
    module.put(find(driver, library)?.module(driver)?)?;
    Ok(())
}

pub(crate) fn cuLibraryGetGlobal(
    call: &Call,
    dptr: Out<CUdeviceptr>,
    bytes: Out<usize>,
    library: CUlibrary,
    name: In<c_char>,
) -> Answer {
    let driver = call.driver()?;
    let module = find(driver, library)?.module(driver)?;
    module::cuModuleGetGlobal_v2(call, dptr, bytes, module, name)
}

/// Finds managed variables only.
pub(crate) fn cuLibraryGetManaged(
    call: &Call,
    dptr: Out<CUdeviceptr>,
    bytes: Out<usize>,
    library: CUlibrary,
    name: In<c_char>,
) -> Answer {
    let found = find(call.driver()?, library)?;
    let text = name.text()?;
    let managed = found.image.globals.iter().any(|global| global.managed && global.name == text);
    if managed { cuLibraryGetGlobal(call, dptr, bytes, library, name) } else { Err(NOT_FOUND) }
}

/// Always fails: no simulated GPU has function pointers that are valid on both host and GPU.
pub(crate) fn cuLibraryGetUnifiedFunction(
    call: &Call,
    _fptr: Out<*mut c_void>,
    library: CUlibrary,
    _symbol: In<c_char>,
) -> Answer {
    find(call.driver()?, library)?;
    Err(NOT_FOUND)
}

pub(crate) fn cuKernelGetFunction(
    call: &Call,
    function: Out<CUfunction>,
    kernel: CUkernel,
) -> Answer {
    function.put(function_of(call.driver()?, kernel)?)?;
    Ok(())
}

pub(crate) fn cuKernelGetLibrary(call: &Call, lib: Out<CUlibrary>, kernel: CUkernel) -> Answer {
    lib.put(find_kernel(call.driver()?, kernel)?.library)?;
    Ok(())
}

/// The text is valid as long as the library.
pub(crate) fn cuKernelGetName(call: &Call, name: Out<*const c_char>, hfunc: CUkernel) -> Answer {
    name.put(find_kernel(call.driver()?, hfunc)?.name.as_ptr())?;
    Ok(())
}

pub(crate) fn cuKernelGetParamCount(
    call: &Call,
    kernel: CUkernel,
    param_count: Out<usize>,
) -> Answer {
    let kernel = find_kernel(call.driver()?, kernel)?;
    if !kernel.declared {
        return Err(INVALID_VALUE);
    }
    param_count.put(kernel.shape.parameters.len())?;
    Ok(())
}

pub(crate) fn cuKernelGetParamInfo(
    call: &Call,
    kernel: CUkernel,
    param_index: usize,
    param_offset: Out<usize>,
    param_size: Out<usize>,
) -> Answer {
    let kernel = find_kernel(call.driver()?, kernel)?;
    let (offset, size) = *kernel.shape.parameters.get(param_index).ok_or(INVALID_VALUE)?;
    param_offset.put(offset)?;
    param_size.put_if_not_null(size);
    Ok(())
}

pub(crate) fn cuKernelGetAttribute(
    call: &Call,
    pi: Out<c_int>,
    attrib: CUfunction_attribute,
    kernel: CUkernel,
    dev: CUdevice,
) -> Answer {
    let driver = call.driver()?;
    find_kernel(driver, kernel)?;
    let capability = driver.spec(dev)?.model.capability;
    pi.put(function::default_attribute(attrib, capability).ok_or(INVALID_VALUE)?)?;
    Ok(())
}

/// Accepts every value and ignores it.
pub(crate) fn cuKernelSetAttribute(
    call: &Call,
    attrib: CUfunction_attribute,
    _val: c_int,
    kernel: CUkernel,
    dev: CUdevice,
) -> Answer {
    let driver = call.driver()?;
    find_kernel(driver, kernel)?;
    let capability = driver.spec(dev)?.model.capability;
    function::default_attribute(attrib, capability).map(|_| ()).ok_or(INVALID_VALUE)
}

pub(crate) fn cuKernelSetCacheConfig(
    call: &Call,
    kernel: CUkernel,
    _config: CUfunc_cache,
    dev: CUdevice,
) -> Answer {
    let driver = call.driver()?;
    find_kernel(driver, kernel)?;
    driver.gpu(dev)?;
    Ok(())
}
