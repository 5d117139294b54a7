//! Implicit memory and checkpoints.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};

use super::{OUT_OF_MEMORY, Run};
use crate::command::{Answer, Command, PRIMARY};
use crate::model::{GREEN, Progress, Set};

/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: i32 = 801;

impl Run<'_> {
    /// Applies a primary context that was created for a green one. If the green one is refused, the
    /// primary context stays when references of the program have outlived a reset.
    pub(super) fn apply_primary(&mut self, index: usize, active: bool) {
        let process = &mut self.model.processes[index];
        if active && process.retained > 0 && !process.has(PRIMARY) {
            process.contexts.push(PRIMARY);
        }
    }

    pub(super) fn judge_implicit(
        &mut self,
        index: usize,
        command: &Command,
        answer: &Answer,
    ) -> Result<()> {
        let code = answer.code;
        match *command {
            Command::GreenCreate { green } => {
                let whole =
                    if self.model.processes[index].has(PRIMARY) { 0 } else { self.model.context };
                self.granted_if_fits(whole + GREEN, code)?;
                let process = &mut self.model.processes[index];
                if code == 0 {
                    ensure!(answer.active, "a green context without the primary one");
                    if whole > 0 {
                        process.contexts.push(PRIMARY);
                    }
                    process.greens.push(green);
                }
                self.apply_primary(index, answer.active);
                let process = &self.model.processes[index];
                ensure!(answer.active == process.has(PRIMARY), "the primary context's state");
            }
            Command::GreenDestroy { green } => {
                ensure!(code == 0, "the green context was not destroyed");
                let process = &mut self.model.processes[index];
                process.greens.retain(|other| *other != green);
                if !answer.active {
                    process.remove_context(PRIMARY);
                }
            }
            Command::GreenAllocate { key, bytes, .. } => {
                self.judge_linear(index, (PRIMARY, key, bytes), code)?;
            }
            Command::LimitSet { context, limit, value } => {
                let bytes = |each: u64| each * answer.needed;
                let former = bytes(answer.former);
                let set = self.model.processes[index].limits.get(&(context, limit)).copied();
                let set = set.unwrap_or(Set { initial: former, beyond: 0 });
                let beyond = bytes(value).saturating_sub(set.initial);
                match beyond.checked_sub(set.beyond) {
                    Some(more) => self.granted_if_fits(more, code)?,
                    None => ensure!(code == 0, "the limit was not made smaller"),
                }
                if code == 0 {
                    let set = Set { beyond, ..set };
                    self.model.processes[index].limits.insert((context, limit), set);
                }
            }
            Command::ModuleLoad { context, module, bytes } => {
                if self.takes(bytes, code)? {
                    self.model.processes[index].modules.insert(module, (context, bytes));
                }
            }
            Command::ModuleUnload { module, .. } => {
                ensure!(code == 0, "the module was not unloaded");
                self.model.processes[index].modules.remove(&module);
            }
            Command::LibraryLoad { library, bytes } => {
                ensure!(code == 0, "a library, which takes nothing, was not loaded");
                self.model.processes[index].libraries.insert(library, (bytes, BTreeSet::new()));
            }
            Command::LibraryUse { context, library, .. } => {
                let its =
                    self.model.processes[index].libraries.get(&library).context("the library")?;
                let (bytes, is_there) = (its.0, its.1.contains(&context));
                ensure!(!is_there || code == 0, "a loaded library was refused");
                if !is_there {
                    self.takes(bytes, code)?;
                }
                if let (0, Some((_, contexts))) =
                    (code, self.model.processes[index].libraries.get_mut(&library))
                {
                    contexts.insert(context);
                }
            }
            Command::LibraryUnload { library } => {
                ensure!(code == 0, "the library was not unloaded");
                self.model.processes[index].libraries.remove(&library);
            }
            Command::Lock { pid } => {
                ensure!(code == 0, "a process between two calls was not locked");
                self.progressed(pid, Progress::Locked)?;
            }
            Command::Checkpoint { pid } => {
                let index = self.place_of(pid).context("no such process")?;
                let shares =
                    self.on_each_gpu(|run| run.model.processes[index].shares).contains(&true);
                ensure!(
                    code == 0 || code == NOT_SUPPORTED && shares,
                    "a locked process was not checkpointed"
                );
                if code == 0 {
                    self.progressed(pid, Progress::Checkpointed)?;
                }
            }
            Command::Restore { pid } => {
                let index = self.place_of(pid).context("no such process")?;
                let rooms = self.on_each_gpu(|run| {
                    let process = &run.model.processes[index];
                    let most = run.model.charge_when_restored(process) + process.pool_charged
                        - process.pool;
                    (run.model.fits(most), !run.model.might_fit(run.model.firm(process)))
                });
                let surely = rooms.iter().all(|(surely, _)| *surely);
                let never = rooms.iter().any(|(_, never)| *never);
                self.granted_if(surely, never, code)?;
                if code == 0 {
                    self.progressed(pid, Progress::Locked)?;
                }
                ensure!(
                    code == 0 || code == OUT_OF_MEMORY,
                    "a checkpointed process was not restored"
                );
            }
            Command::Unlock { pid } => {
                ensure!(code == 0, "a locked process was not unlocked");
                self.progressed(pid, Progress::Running)?;
            }
            _ => bail!("no comparison for {command:?}"),
        }
        Ok(())
    }

    /// Applies a checkpoint state on every GPU, since a checkpoint covers the whole process.
    fn progressed(&mut self, pid: u32, progress: Progress) -> Result<()> {
        let index = self.place_of(pid).context("no such process")?;
        self.on_each_gpu(|run| run.model.processes[index].progress = progress);
        Ok(())
    }
}
