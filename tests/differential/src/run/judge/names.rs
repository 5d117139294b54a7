//! Calls of older programs.

use anyhow::{Result, bail, ensure};

use super::{Run, pitch};
use crate::command::{Answer, Command};

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
                let bytes = pitch(width, answer)? * height;
                self.judge_low(index, (context, key, bytes), answer)?;
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
        if self.judge_linear(index, (context, key, bytes), answer.code)? {
            ensure!(u32::try_from(answer.address).is_ok(), "an address of more than 32 bits");
            self.model.processes[index].low.insert(key);
        }
        Ok(())
    }
}
