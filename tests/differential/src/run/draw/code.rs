//! Code, which is loaded onto the GPU at its first use.

use super::Run;
use crate::command::{CodeStep, Command, Loader};
use crate::model::MIB;

/// Maximum number of modules of a process, and of libraries.
const MOST: usize = 4;
/// Number of functions of each.
const FUNCTIONS: u64 = 60;

impl Run<'_> {
    /// Draws commands for modules, libraries and kernels.
    pub(super) fn draw_code(&mut self, index: usize, context: u32) -> Command {
        let code = &self.model.processes[index].code;
        let modules: Vec<(u32, u32)> =
            code.modules.iter().map(|(name, its)| (*name, its.context)).collect();
        let libraries: Vec<u32> = code.libraries.keys().copied().collect();
        let fetched = code.libraries.iter().flat_map(|(name, its)| {
            its.fetched.iter().map(|(context, function)| (*name, *context, *function))
        });
        let fetched: Vec<(u32, u32, u32)> = fetched.collect();
        let (module, library) =
            (self.random.pick(&modules).copied(), self.random.pick(&libraries).copied());
        let fetched = self.random.pick(&fetched).copied();
        let bytes = (self.random.below(32) + 1) * 2 * MIB;
        let function = self.number(FUNCTIONS);
        Command::Code(match (self.random.below(14), module, library, fetched) {
            (0 | 1, ..) if modules.len() < MOST => {
                let loaders = [Loader::Data, Loader::DataEx, Loader::FatBinary];
                let loader = self.random.pick(&loaders).copied().unwrap_or(Loader::Data);
                CodeStep::Load { context, module: self.new_key(), bytes, loader }
            }
            (2, Some((module, context)), ..) => CodeStep::Unload { context, module },
            (3..=5, Some((module, context)), ..) => {
                CodeStep::Launch { context, module, function, count: self.number(24) + 1 }
            }
            (6 | 7, Some((module, context)), ..) => CodeStep::Ready { context, module, function },
            (8, ..) if libraries.len() < MOST => {
                CodeStep::LoadLibrary { library: self.new_key(), bytes }
            }
            (9, _, Some(library), _) if self.random.once_in(2) => {
                CodeStep::UnloadLibrary { library }
            }
            (9 | 10, _, Some(library), _) => CodeStep::Fetch { context, library, function },
            (11, _, Some(library), _) => CodeStep::LaunchKernel { context, library, function },
            (12 | 13, _, _, Some((library, context, function))) => {
                CodeStep::ReadyKernel { context, library, function }
            }
            _ => return Command::MemoryInfo { context },
        })
    }

    /// Draws a number below a bound.
    pub(super) fn number(&mut self, below: u64) -> u32 {
        u32::try_from(self.random.below(below)).unwrap_or_default()
    }
}
