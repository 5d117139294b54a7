//! Code, which is loaded onto the GPU at its first use.

use anyhow::{Context, Result, ensure};

use super::Run;
use crate::command::CodeStep;
use crate::model::{Code, Library, Module};

impl Run<'_> {
    pub(super) fn judge_code(&mut self, index: usize, step: &CodeStep, code: i32) -> Result<()> {
        match *step {
            CodeStep::Load { context, module, bytes, .. } => {
                if self.takes(bytes, code)? {
                    let made = Module { context, bytes, ..Module::default() };
                    self.code(index).modules.insert(module, made);
                }
            }
            CodeStep::Unload { module, .. } => {
                ensure!(code == 0, "the module was not unloaded");
                self.code(index).modules.remove(&module);
            }
            CodeStep::Launch { context, module, function, count } => {
                ensure!(code == 0, "a first launch was refused although the GPU has memory");
                let code = self.code(index);
                let its = code.modules.get_mut(&module).context("the module")?;
                let fresh =
                    (function..function + count).filter(|function| its.loaded.insert(*function));
                for _ in 0..fresh.count() {
                    code.load(context, false);
                }
            }
            CodeStep::Ready { context, module, function } => {
                let its = self.code(index).modules.get(&module).context("the module")?;
                let is_requested = its.requested.contains(&function);
                self.granted_if_under(is_requested, code)?;
                let accounting = self.code(index);
                let its = accounting.modules.get_mut(&module).context("the module")?;
                if code == 0 {
                    its.requested.insert(function);
                }
                if code == 0 && its.loaded.insert(function) {
                    accounting.load(context, true);
                }
            }
            CodeStep::LoadLibrary { library, bytes } => {
                ensure!(code == 0, "a library, which takes nothing, was not loaded");
                let made = Library { bytes, ..Library::default() };
                self.code(index).libraries.insert(library, made);
            }
            CodeStep::UnloadLibrary { library } => {
                ensure!(code == 0, "the library was not unloaded");
                self.code(index).libraries.remove(&library);
            }
            CodeStep::Fetch { context, library, function } => {
                let its = self.library(index, library)?;
                let (bytes, is_known) = (its.bytes, its.contexts.get(&context) == Some(&true));
                let is_fetched = its.fetched.contains(&(context, function));
                if is_known || is_fetched {
                    self.granted_if_under(is_fetched, code)?;
                } else {
                    // A library that was loaded by a launch is charged from now on.
                    self.takes(bytes, code)?;
                }
                if code == 0 {
                    let its = self.library(index, library)?;
                    its.contexts.insert(context, true);
                    its.fetched.insert((context, function));
                }
            }
            CodeStep::LaunchKernel { context, library, function } => {
                ensure!(code == 0, "a first launch was refused although the GPU has memory");
                let its = self.library(index, library)?;
                its.contexts.entry(context).or_insert(false);
                if its.loaded.insert((context, function)) {
                    self.code(index).load(context, false);
                }
            }
            CodeStep::ReadyKernel { context, library, function } => {
                let its = self.library(index, library)?;
                let is_requested = its.requested.contains(&(context, function));
                self.granted_if_under(is_requested, code)?;
                let its = self.library(index, library)?;
                if code == 0 {
                    its.requested.insert((context, function));
                }
                if code == 0 && its.loaded.insert((context, function)) {
                    self.code(index).load(context, true);
                }
            }
        }
        Ok(())
    }

    /// Compares a look-up that loads code of unknown size: it is granted unless the container is
    /// over its limit. A repeated look-up is always granted.
    fn granted_if_under(&mut self, is_there: bool, code: i32) -> Result<()> {
        let is_over = self.model.total() > self.model.limit;
        self.granted_if(self.model.fits(0), is_over && !is_there, code)?;
        self.counts(code);
        Ok(())
    }

    fn code(&mut self, index: usize) -> &mut Code {
        &mut self.model.processes[index].code
    }

    fn library(&mut self, index: usize, library: u32) -> Result<&mut Library> {
        self.code(index).libraries.get_mut(&library).context("the library")
    }
}
