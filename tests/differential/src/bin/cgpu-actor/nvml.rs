//! Queries of NVML.

use anyhow::{Result, bail};
use cgpu_differential::command::{Answer, ShownMemory};

use crate::actor::Actor;
use crate::driver::place;
use crate::records::{NvmlMemory, NvmlProcess};

/// Maximum number of listed processes, above that of any container here.
const MOST: usize = 64;

impl Actor {
    /// Returns the GPU's handle and memory.
    pub(crate) fn nvml_memory(&self) -> Result<(usize, NvmlMemory)> {
        let (mut device, mut memory) = (0_usize, NvmlMemory::default());
        let code =
            self.nvml.call(c"nvmlDeviceGetHandleByIndex_v2", [self.gpu, place(&mut device)])?;
        if code != 0 {
            bail!("nvmlDeviceGetHandleByIndex_v2 answered {code}");
        }
        match self.nvml.call(c"nvmlDeviceGetMemoryInfo", [device, place(&mut memory)])? {
            0 => Ok((device, memory)),
            code => bail!("nvmlDeviceGetMemoryInfo answered {code}"),
        }
    }

    /// Reads the GPU's memory and its processes.
    pub(crate) fn nvml_query(&self, answer: &mut Answer) -> Result<i32> {
        let (device, memory) = self.nvml_memory()?;
        let NvmlMemory { total: nvml_total, used: nvml_used, free: nvml_free } = memory;
        answer.shown = ShownMemory { nvml_total, nvml_used, nvml_free, ..ShownMemory::default() };
        let (mut count, mut list) = (u32::try_from(MOST)?, [NvmlProcess::default(); MOST]);
        let to = [device, place(&mut count), place(&mut list)];
        let code = self.nvml.call(c"nvmlDeviceGetComputeRunningProcesses_v3", to)?;
        if code == 0 {
            let listed = list.iter().take(usize::try_from(count)?);
            answer.members = listed.map(|process| (process.pid, process.memory)).collect();
        }
        Ok(code)
    }
}
