//! Calls of older programs.

use anyhow::{Result, bail, ensure};

use super::Run;
use crate::command::{Answer, Command};
use crate::model::{Allocation, rounded};

impl Run<'_> {
    pub(super) fn judge_names(
        &mut self,
        index: usize,
        command: &Command,
        answer: &Answer,
    ) -> Result<()> {
        let code = answer.code;
        match *command {
            Command::Attach { context } => {
                ensure!(code == 0, "one more use of a context was refused");
                *self.model.processes[index].attached.entry(context).or_default() += 1;
            }
            Command::Detach { context } => {
                ensure!(code == 0, "a use of a context was not ended");
                let process = &mut self.model.processes[index];
                match process.attached.get_mut(&context).filter(|uses| **uses > 0) {
                    Some(uses) => *uses -= 1,
                    None => process.remove_context(context),
                }
            }
            Command::AllocateLow { context, key, bytes } => {
                self.judge_low(index, (context, key, bytes), answer)?;
            }
            Command::AllocateLowPitch { context, key, width, height } => {
                // As in `Command::AllocatePitch`.
                let pitch = if code == 0 { answer.pitch } else { width.next_multiple_of(512) };
                ensure!(pitch >= width, "the pitch");
                self.judge_low(index, (context, key, pitch * height), answer)?;
            }
            _ => bail!("no comparison for {command:?}"),
        }
        Ok(())
    }

    fn judge_low(
        &mut self,
        index: usize,
        (context, key, bytes): (u32, u32, u64),
        answer: &Answer,
    ) -> Result<()> {
        let charged = rounded(bytes);
        self.granted_if_fits(charged, answer.code)?;
        if self.counts(answer.code) {
            ensure!(u32::try_from(answer.address).is_ok(), "an address of more than 32 bits");
            let process = &mut self.model.processes[index];
            process.allocations.insert(key, Allocation { context, charged, exported: None });
            process.low.insert(key);
        }
        Ok(())
    }
}
