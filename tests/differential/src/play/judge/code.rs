//! Code, which is loaded onto the GPU at its first use.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

use super::Play;
use crate::command::CodeStep;
use crate::model::{Code, Library, Module};

impl Play<'_> {
    pub(super) fn judge_code(&mut self, who: usize, step: &CodeStep, code: i32) -> Result<()> {
        match *step {
            CodeStep::Load { context, module, bytes, .. } => {
                self.granted_if_fits(bytes, code)?;
                if self.counts(code) {
                    let made =
                        Module { context, bytes, loaded: BTreeSet::new(), looked: BTreeSet::new() };
                    self.code(who).modules.insert(module, made);
                }
            }
            CodeStep::Unload { module, .. } => {
                ensure!(code == 0, "the module was not unloaded");
                self.code(who).modules.remove(&module);
            }
            CodeStep::Launch { context, module, function, count } => {
                ensure!(
                    code == 0,
                    "a first launch, which nobody can refuse on a GPU with room, was refused"
                );
                let code = self.code(who);
                let its = code.modules.get_mut(&module).context("the module")?;
                let fresh =
                    (function..function + count).filter(|function| its.loaded.insert(*function));
                for _ in 0..fresh.count() {
                    code.load(context, false);
                }
            }
            CodeStep::Ready { context, module, function } => {
                let its = self.code(who).modules.get(&module).context("the module")?;
                let is_looked = its.looked.contains(&function);
                self.brought_if_under(is_looked, code)?;
                let accounting = self.code(who);
                let its = accounting.modules.get_mut(&module).context("the module")?;
                if code == 0 {
                    its.looked.insert(function);
                }
                if code == 0 && its.loaded.insert(function) {
                    accounting.load(context, true);
                }
            }
            CodeStep::LoadLibrary { library, bytes } => {
                ensure!(code == 0, "a library, which takes nothing, was not loaded");
                let made = Library {
                    bytes,
                    contexts: BTreeMap::new(),
                    loaded: BTreeSet::new(),
                    fetched: BTreeSet::new(),
                    looked: BTreeSet::new(),
                };
                self.code(who).libraries.insert(library, made);
            }
            CodeStep::UnloadLibrary { library } => {
                ensure!(code == 0, "the library was not unloaded");
                self.code(who).libraries.remove(&library);
            }
            CodeStep::Fetch { context, library, function } => {
                let its = self.library(who, library)?;
                let (bytes, is_known) = (its.bytes, its.contexts.get(&context) == Some(&true));
                let is_fetched = its.fetched.contains(&(context, function));
                if is_known || is_fetched {
                    self.brought_if_under(is_fetched, code)?;
                } else {
                    // A library that was loaded by a launch is charged from now on.
                    self.granted_if_fits(bytes, code)?;
                    self.counts(code);
                }
                if code == 0 {
                    let its = self.library(who, library)?;
                    its.contexts.insert(context, true);
                    its.fetched.insert((context, function));
                }
            }
            CodeStep::LaunchKernel { context, library, function } => {
                ensure!(
                    code == 0,
                    "a first launch, which nobody can refuse on a GPU with room, was refused"
                );
                let its = self.library(who, library)?;
                its.contexts.entry(context).or_insert(false);
                if its.loaded.insert((context, function)) {
                    self.code(who).load(context, false);
                }
            }
            CodeStep::ReadyKernel { context, library, function } => {
                let its = self.library(who, library)?;
                let is_looked = its.looked.contains(&(context, function));
                self.brought_if_under(is_looked, code)?;
                let its = self.library(who, library)?;
                if code == 0 {
                    its.looked.insert((context, function));
                }
                if code == 0 && its.loaded.insert((context, function)) {
                    self.code(who).load(context, true);
                }
            }
        }
        Ok(())
    }

    /// Compares a look-up that loads code of unknown size: it is granted unless the container is
    /// over its limit. A repeated look-up is always granted.
    fn brought_if_under(&mut self, is_there: bool, code: i32) -> Result<()> {
        let is_over = self.model.total() > self.model.limit;
        self.granted_if(self.model.fits(0), is_over && !is_there, code)?;
        self.counts(code);
        Ok(())
    }

    fn code(&mut self, who: usize) -> &mut Code {
        &mut self.model.processes[who].code
    }

    fn library(&mut self, who: usize, library: u32) -> Result<&mut Library> {
        self.code(who).libraries.get_mut(&library).context("the library")
    }
}
