//! Code, which is loaded onto the GPU at its first use.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

use anyhow::Result;
use cgpu_differential::command::{CodeStep, Loader};

use crate::actor::{Actor, NOT_OURS};
use crate::driver::place;
use crate::implicit::image;

/// Modules and libraries of an actor.
#[derive(Default)]
pub(crate) struct Loaded {
    modules: BTreeMap<u32, usize>,
    libraries: BTreeMap<u32, usize>,
}

impl Actor {
    pub(crate) fn code_step(&mut self, step: &CodeStep) -> Result<i32> {
        let context = match *step {
            CodeStep::Load { context, .. }
            | CodeStep::Unload { context, .. }
            | CodeStep::Launch { context, .. }
            | CodeStep::Ready { context, .. }
            | CodeStep::Fetch { context, .. }
            | CodeStep::LaunchKernel { context, .. }
            | CodeStep::ReadyKernel { context, .. } => Some(context),
            CodeStep::LoadLibrary { .. } | CodeStep::UnloadLibrary { .. } => None,
        };
        let code = context.map_or(Ok(0), |context| self.enter(context))?;
        if code != 0 {
            return Ok(code);
        }
        let (modules, libraries) = (&self.loaded.modules, &self.loaded.libraries);
        let of = |handles: &BTreeMap<u32, usize>, name: u32| handles.get(&name).copied();
        match *step {
            CodeStep::Load { module, bytes, loader, .. } => self.load_code(module, bytes, loader),
            CodeStep::Unload { module, .. } => match self.loaded.modules.remove(&module) {
                Some(module) => self.cuda.call(c"cuModuleUnload", [module]),
                None => Ok(NOT_OURS),
            },
            CodeStep::Launch { module, function, count, .. } => {
                let Some(module) = of(modules, module) else { return Ok(NOT_OURS) };
                for function in function..function + count {
                    let code =
                        self.with(c"cuModuleGetFunction", module, function, |it| self.run(it))?;
                    if code != 0 {
                        return Ok(code);
                    }
                }
                Ok(0)
            }
            CodeStep::Ready { module, function, .. } => match of(modules, module) {
                Some(module) => self.with(c"cuModuleGetFunction", module, function, |function| {
                    self.cuda.call(c"cuFuncLoad", [function])
                }),
                None => Ok(NOT_OURS),
            },
            CodeStep::LoadLibrary { library, bytes } => {
                let image = image(bytes)?;
                let (mut handle, image) = (0_usize, image.as_ptr().expose_provenance());
                let code = self
                    .cuda
                    .call(c"cuLibraryLoadData", [place(&mut handle), image, 0, 0, 0, 0, 0, 0])?;
                if code == 0 {
                    self.loaded.libraries.insert(library, handle);
                }
                Ok(code)
            }
            CodeStep::UnloadLibrary { library } => match self.loaded.libraries.remove(&library) {
                Some(library) => self.cuda.call(c"cuLibraryUnload", [library]),
                None => Ok(NOT_OURS),
            },
            CodeStep::Fetch { library, function, .. } => match of(libraries, library) {
                Some(library) => self.with(c"cuLibraryGetKernel", library, function, |kernel| {
                    let mut function = 0_usize;
                    self.cuda.call(c"cuKernelGetFunction", [place(&mut function), kernel])
                }),
                None => Ok(NOT_OURS),
            },
            CodeStep::LaunchKernel { library, function, .. } => match of(libraries, library) {
                Some(library) => {
                    self.with(c"cuLibraryGetKernel", library, function, |kernel| self.run(kernel))
                }
                None => Ok(NOT_OURS),
            },
            CodeStep::ReadyKernel { library, function, .. } => match of(libraries, library) {
                Some(library) => self.with(c"cuLibraryGetKernel", library, function, |kernel| {
                    let mut function = 0_usize;
                    match self.cuda.call(c"cuKernelGetFunction", [place(&mut function), kernel])? {
                        0 => self.cuda.call(c"cuFuncLoad", [function]),
                        code => Ok(code),
                    }
                }),
                None => Ok(NOT_OURS),
            },
        }
    }

    fn load_code(&mut self, name: u32, bytes: u64, loader: Loader) -> Result<i32> {
        let image = image(bytes)?;
        let (mut module, image) = (0_usize, image.as_ptr().expose_provenance());
        let code = match loader {
            Loader::Data => self.cuda.call(c"cuModuleLoadData", [place(&mut module), image])?,
            Loader::DataEx => {
                self.cuda.call(c"cuModuleLoadDataEx", [place(&mut module), image, 0, 0, 0])?
            }
            Loader::FatBinary => {
                self.cuda.call(c"cuModuleLoadFatBinary", [place(&mut module), image])?
            }
        };
        if code == 0 {
            self.loaded.modules.insert(name, module);
        }
        Ok(code)
    }

    /// Acts on the function or kernel of a number.
    fn with(
        &self,
        getter: &CStr,
        of: usize,
        function: u32,
        act: impl FnOnce(usize) -> Result<i32>,
    ) -> Result<i32> {
        let (mut found, name) = (0_usize, CString::new(format!("code_{function}"))?);
        match self.cuda.call(getter, [place(&mut found), of, name.as_ptr().expose_provenance()])? {
            0 => act(found),
            code => Ok(code),
        }
    }

    /// Launches one thread of a function or kernel.
    fn run(&self, function: usize) -> Result<i32> {
        type Launch = unsafe extern "C" fn(
            usize,
            u32,
            u32,
            u32,
            u32,
            u32,
            u32,
            u32,
            usize,
            usize,
            usize,
        ) -> i32;
        // SAFETY: this is the type of cuLaunchKernel: a function, grid and block, shared memory, a
        // stream, and two lists that may be null.
        let launch = unsafe { self.cuda.symbol::<Launch>(c"cuLaunchKernel") }?;
        // SAFETY: the handle comes from the driver, the function takes no parameters, and the
        // stream is the current context's default one.
        Ok(unsafe { launch(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) })
    }
}
