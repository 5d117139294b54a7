//! Modules: code loaded into one context. A function is found under any name, whatever the image
//! declares.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use cgpu_abi::types::*;
use cgpu_sim::Bytes;

use crate::answer::{Answer, FILE_NOT_FOUND, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND};
use crate::argument::{In, Out, Received, values};
use crate::call::Call;
use crate::context::Context;
use crate::driver::{Driver, count, lock};
use crate::function::Function;
use crate::host::Kind;
use crate::image::{Image, KernelShape};
use crate::loading;

values!(CUmodule);

#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) context: Arc<Context>,
    pub(crate) image: Arc<Image>,
    /// Functions that the program has requested, by name.
    functions: Mutex<HashMap<String, CUfunction>>,
    /// Address and size of variables, by name.
    globals: Mutex<HashMap<String, (CUdeviceptr, u64)>>,
}

impl Module {
    /// Loads an image into a context. Returns the module's handle.
    pub(crate) fn load(
        driver: &Driver,
        context: Arc<Context>,
        image: Arc<Image>,
    ) -> Answer<CUmodule> {
        if loading::is_eager() {
            for _ in &image.kernels {
                driver.machine.load_code(context.id)?;
            }
        }
        let module =
            Self { context, image, functions: Mutex::default(), globals: Mutex::default() };
        if let Err(error) = module.place_globals(driver) {
            module.free_globals(driver)?;
            return Err(error);
        }
        Ok(CUmodule(driver.modules.add(module)))
    }

    /// Allocates all variables except managed ones, which are allocated when first requested.
    fn place_globals(&self, driver: &Driver) -> Answer {
        for global in self.image.globals.iter().filter(|global| !global.managed) {
            self.global(driver, &global.name)?;
        }
        Ok(())
    }

    fn free_globals(&self, driver: &Driver) -> Answer {
        for (_, (address, _)) in lock(&self.globals).drain() {
            if driver.machine.allocation(address).is_some() {
                driver.machine.free(address)?;
            } else {
                lock(&driver.host).unmap(count(address)?, Kind::Managed)?;
            }
        }
        Ok(())
    }

    /// Unloads the module; its functions and variables are destroyed.
    pub(crate) fn unload(driver: &Driver, handle: CUmodule) -> Answer {
        let module = driver.modules.remove(handle.0).ok_or(INVALID_HANDLE)?;
        for (_, function) in lock(&module.functions).drain() {
            driver.functions.remove(function.0);
        }
        module.free_globals(driver)
    }

    pub(crate) fn function(
        &self,
        driver: &Driver,
        handle: CUmodule,
        name: &str,
    ) -> Answer<CUfunction> {
        if name.is_empty() {
            return Err(NOT_FOUND);
        }
        let mut functions = lock(&self.functions);
        if let Some(function) = functions.get(name) {
            return Ok(*function);
        }
        let declared = self.image.kernels.iter().find(|kernel| kernel.name == name);
        let shape = declared
            .cloned()
            .unwrap_or_else(|| KernelShape { name: name.to_owned(), ..KernelShape::default() });
        let function = Function::new(shape, declared.is_some(), handle, Arc::clone(&self.context));
        if loading::is_eager() {
            function.load(driver)?;
        }
        let function = CUfunction(driver.functions.add(function));
        functions.insert(name.to_owned(), function);
        Ok(function)
    }

    /// Returns the variable with a name. It is allocated if necessary; a managed one in managed
    /// memory.
    pub(crate) fn global(&self, driver: &Driver, name: &str) -> Answer<(CUdeviceptr, u64)> {
        let mut globals = lock(&self.globals);
        if let Some(found) = globals.get(name) {
            return Ok(*found);
        }
        let declared =
            self.image.globals.iter().find(|global| global.name == name).ok_or(NOT_FOUND)?;
        let address = if declared.managed {
            let bytes = count(declared.bytes)?;
            lock(&driver.host).map(bytes, Kind::Managed, CU_MEM_ATTACH_GLOBAL, &self.context)?
                as CUdeviceptr
        } else {
            driver.machine.allocate(self.context.id, Bytes(declared.bytes))?
        };
        globals.insert(name.to_owned(), (address, declared.bytes));
        Ok((address, declared.bytes))
    }
}

pub(crate) fn find(driver: &Driver, module: CUmodule) -> Answer<Arc<Module>> {
    driver.modules.get(module.0).ok_or(INVALID_HANDLE)
}

pub(crate) fn read_file(path: In<c_char>) -> Answer<Image> {
    let bytes = std::fs::read(path.text()?).map_err(|_| FILE_NOT_FOUND)?;
    Ok(Image::parse(&String::from_utf8_lossy(&bytes)))
}

fn load(call: &Call, module: Out<CUmodule>, image: impl FnOnce() -> Answer<Image>) -> Answer {
    let driver = call.driver()?;
    let context = driver.current()?;
    let module = module.required()?;
    module.put(Module::load(driver, context, Arc::new(image()?))?)?;
    Ok(())
}

pub(crate) fn cuModuleLoad(call: &Call, module: Out<CUmodule>, fname: In<c_char>) -> Answer {
    load(call, module, || read_file(fname))
}

pub(crate) fn cuModuleLoadData(call: &Call, module: Out<CUmodule>, image: In<c_void>) -> Answer {
    load(call, module, || Image::read(image))
}
pub(crate) use cuModuleLoadData as cuModuleLoadFatBinary;

/// Ignores the options, because nothing is compiled; logs stay empty.
pub(crate) fn cuModuleLoadDataEx(
    call: &Call,
    module: Out<CUmodule>,
    image: In<c_void>,
    _num_options: c_uint,
    _options: Out<CUjit_option>,
    _option_values: Out<*mut c_void>,
) -> Answer {
    load(call, module, || Image::read(image))
}

pub(crate) fn cuModuleUnload(call: &Call, hmod: CUmodule) -> Answer {
    let driver = call.driver()?;
    let module = find(driver, hmod)?;
    // Its kernels may still be queued.
    driver.machine.synchronize_context(module.context.id)?;
    Module::unload(driver, hmod)
}

pub(crate) fn cuModuleGetFunction(
    call: &Call,
    hfunc: Out<CUfunction>,
    hmod: CUmodule,
    name: In<c_char>,
) -> Answer {
    let driver = call.driver()?;
    let (hfunc, module) = (hfunc.required()?, find(driver, hmod)?);
    hfunc.put(module.function(driver, hmod, &name.text()?)?)?;
    Ok(())
}

pub(crate) fn cuModuleGetFunctionCount(
    call: &Call,
    count: Out<c_uint>,
    module: CUmodule,
) -> Answer {
    let kernels = find(call.driver()?, module)?.image.kernels.len();
    count.put(c_uint::try_from(kernels).map_err(|_| INVALID_VALUE)?)?;
    Ok(())
}

pub(crate) fn cuModuleEnumerateFunctions(
    call: &Call,
    functions: Out<CUfunction>,
    num_functions: c_uint,
    hmod: CUmodule,
) -> Answer {
    let driver = call.driver()?;
    let module = find(driver, hmod)?;
    let all = module.image.kernels.iter().map(|kernel| module.function(driver, hmod, &kernel.name));
    functions.put_all(all.collect::<Answer<Vec<_>>>()?, count(num_functions)?)?;
    Ok(())
}

pub(crate) fn cuModuleGetGlobal_v2(
    call: &Call,
    dptr: Out<CUdeviceptr>,
    bytes: Out<usize>,
    hmod: CUmodule,
    name: In<c_char>,
) -> Answer {
    let driver = call.driver()?;
    let (address, size) = find(driver, hmod)?.global(driver, &name.text()?)?;
    dptr.put_if_not_null(address);
    bytes.put_if_not_null(count(size)?);
    Ok(())
}

/// Always fails: variables have addresses above 32 bits.
pub(crate) fn cuModuleGetGlobal(
    call: &Call,
    _dptr: Out<CUdeviceptr_v1>,
    _bytes: Out<c_uint>,
    hmod: CUmodule,
    name: In<c_char>,
) -> Answer {
    let driver = call.driver()?;
    find(driver, hmod)?.global(driver, &name.text()?)?;
    Err(NOT_FOUND)
}

pub(crate) fn cuModuleGetLoadingMode(call: &Call, mode: Out<CUmoduleLoadingMode>) -> Answer {
    call.driver()?;
    mode.put(loading::mode())?;
    Ok(())
}
