//! Compares answers with the model and updates it.

mod bound;
mod code;
mod graphs;
mod implicit;
mod names;
mod pools;
mod ranges;

use anyhow::{Context, Result, bail, ensure};

use super::{FORCED_ERROR, Kind, Run};
use crate::command::{Answer, Command, InStream, PRIMARY, Place, ShownMemory};
use crate::model::{Allocation, BLOCK, Exported, Graph, MIB, Opened, Physical, rounded};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;
/// Minimum growth of a pool in bytes.
const CHUNK: u64 = 32 * MIB;

impl Run<'_> {
    /// Compares an answer with the model and applies its effects.
    pub(super) fn judge(&mut self, index: usize, command: &Command, answer: &Answer) -> Result<()> {
        if answer.code == FORCED_ERROR && self.plan.refusals {
            // The call had no effect, except that it may have created the context that it needs.
            self.outcome.by_driver += 1;
            if let Command::GreenCreate { .. } = command {
                self.apply_primary(index, answer.active);
            }
        } else {
            self.judge_unforced(index, command, answer)?;
        }
        let read = matches!(
            command,
            Command::MemoryInfo { .. }
                | Command::Synchronise { .. }
                | Command::Stream(InStream::Wait { .. })
        );
        self.model.processes[index].observe_pool(answer.pooled, read && answer.code == 0);
        if self.other.is_some() {
            self.turn();
            self.model.processes[index].observe_pool(answer.elsewhere, false);
            self.turn();
        }
        self.judge_reserved(index, answer)?;
        if let Command::MemoryInfo { .. } = command {
            self.judge_shown(answer.shown)?;
        }
        Ok(())
    }

    fn judge_unforced(&mut self, index: usize, command: &Command, answer: &Answer) -> Result<()> {
        let code = answer.code;
        match *command {
            Command::Init => {
                ensure!(code == 0, "cuInit was refused");
                self.on_each_gpu(|run| run.model.processes[index].started = true);
            }
            Command::ContextCreate { context } => {
                self.granted_if_fits(self.model.context, code)?;
                if code == 0 {
                    self.model.processes[index].contexts.push(context);
                }
            }
            Command::ContextDestroy { context } => {
                ensure!(code == 0, "the context was not destroyed");
                self.model.processes[index].remove_context(context);
            }
            Command::PrimaryRetain => {
                let active = self.model.processes[index].has(PRIMARY);
                if active {
                    ensure!(code == 0, "an active primary context was not retained");
                } else {
                    self.granted_if_fits(self.model.context, code)?;
                }
                ensure!(answer.active == (active || code == 0), "the primary context's state");
                let process = &mut self.model.processes[index];
                if answer.active && !active {
                    process.contexts.push(PRIMARY);
                }
                process.retained += u32::from(code == 0);
            }
            Command::PrimaryRelease | Command::PrimaryReset => {
                ensure!(code == 0, "the primary context was not released or reset");
                let process = &mut self.model.processes[index];
                process.retained -= u32::from(*command == Command::PrimaryRelease);
                if !answer.active {
                    process.remove_context(PRIMARY);
                }
            }
            Command::Allocate { context, key, bytes } => {
                self.judge_linear(index, (context, key, bytes), code)?;
            }
            Command::AllocatePitch { context, key, width, height } => {
                let bytes = pitch(width, answer)? * height;
                self.judge_linear(index, (context, key, bytes), code)?;
            }
            Command::Free { key } => {
                ensure!(code == 0, "the free was refused");
                self.model.processes[index].free(key);
            }
            Command::FreeUnknown => ensure!(code != 0, "an unknown address was freed"),
            Command::PhysicalCreate { key, bytes, place, shared, tiles, .. } => {
                let charged = if place == Place::Host { 0 } else { bytes };
                if self.takes(charged, code)? {
                    let process = &mut self.model.processes[index];
                    let physical = Physical {
                        charged,
                        bytes,
                        references: 1,
                        shared,
                        tiles,
                        ..Physical::default()
                    };
                    process.physical.insert(key, physical);
                    process.handles.insert(key, key);
                }
            }
            Command::PhysicalMap { key, map, .. } => {
                ensure!(code == 0, "the memory was not mapped");
                self.model.processes[index]
                    .hold(key, |process, physical| _ = process.maps.insert(map, physical));
            }
            Command::PhysicalUnmap { map } => {
                ensure!(code == 0, "the memory was not unmapped");
                let process = &mut self.model.processes[index];
                let physical = process.maps.remove(&map).unwrap_or_default();
                process.release_reference(physical);
            }
            Command::PhysicalRelease { key } => {
                ensure!(code == 0, "the handle was not released");
                let process = &mut self.model.processes[index];
                let physical = process.handles.remove(&key).unwrap_or_default();
                process.release_reference(physical);
            }
            Command::PhysicalRetain { map, key } => {
                ensure!(code == 0, "the mapped memory has no handle");
                let process = &mut self.model.processes[index];
                let physical = process.maps.get(&map).copied().unwrap_or_default();
                process.handles.insert(key, physical);
                process.hold(key, |_, _| ());
            }
            Command::ArrayCreate { context, key, .. }
            | Command::FlatCreate { context, key, .. } => {
                ensure!(answer.needed > 0, "the driver does not say what the array needs");
                let charged = rounded(answer.needed);
                if self.takes(charged, code)? {
                    let array = Allocation { context, charged, exported: None };
                    self.model.processes[index].arrays.insert(key, array);
                }
            }
            Command::ArrayDestroy { key, .. } => {
                ensure!(code == 0, "the array was not destroyed");
                let process = &mut self.model.processes[index];
                process.arrays.remove(&key);
                if process.sparse.remove(&key).is_some() {
                    process.unmap_tiles(key);
                }
            }
            Command::PoolAllocate { key, bytes, pool, .. } => {
                self.judge_pooled(index, key, (bytes, pool), code)?;
            }
            Command::PoolTrim { .. } | Command::PoolKeep { .. } => {
                ensure!(code == 0, "the pool was not trimmed or its threshold not set");
            }
            Command::PoolDestroy { pool } => {
                ensure!(code == 0, "an empty pool was not destroyed");
                self.model.processes[index].destroy_pool(pool);
            }
            Command::Pool(about) => self.judge_pool(index, about, answer)?,
            Command::Stream(about) => self.judge_stream(index, about, answer)?,
            Command::Range(about) => self.judge_range(index, about, answer)?,
            Command::PoolFree { key, .. } | Command::PoolFreeNow { key, .. } => {
                ensure!(code == 0, "the free was refused");
                self.model.processes[index].pooled.remove(&key);
            }
            Command::Export { key, exported } => {
                ensure!(code == 0, "the allocation has no handle");
                let allocation = self.model.processes[index].allocations.get_mut(&key);
                let allocation = allocation.context("the allocation")?;
                let (name, charged) =
                    (*allocation.exported.get_or_insert(exported), allocation.charged);
                self.model.processes[index].shares = true;
                self.enter_export(
                    name,
                    Exported {
                        charged,
                        bytes: 0,
                        handle: Some(answer.handle),
                        maker_exited: false,
                    },
                );
            }
            Command::Open { context, open, exported, .. } => {
                let maker = self.model.maker(exported);
                let process = &mut self.model.processes[index];
                let elsewhere = process.opened.values().any(|other| other.context != context);
                let there = maker.is_some_and(|maker| maker != index)
                    || maker.is_none()
                        && self
                            .model
                            .exported
                            .get(&exported)
                            .is_some_and(|exported| exported.maker_exited);
                ensure!(code != 0 || there, "memory that does not exist was opened");
                // Allocations that several contexts opened may share a block.
                ensure!(
                    code == 0 || maker.is_none() || elsewhere,
                    "existing memory was not opened"
                );
                if code == 0 {
                    process.opened.insert(open, Opened { context, exported });
                    process.shares = true;
                }
            }
            Command::Close { open } => {
                ensure!(code == 0, "an open import was not closed");
                self.model.processes[index].opened.remove(&open);
            }
            Command::PhysicalExport { key, exported } => {
                ensure!(code == 0, "the memory was not exported");
                let descriptor = self.actors[index].line().receive()?;
                let process = &mut self.model.processes[index];
                let first = process.handles.get(&key).context("the handle")?;
                let physical = process.physical.get_mut(first).context("its memory")?;
                let name = *physical.exported.get_or_insert(exported);
                let Physical { charged, bytes, imported, .. } = *physical;
                self.descriptors.insert(name, (Kind::Physical, descriptor));
                process.shares = true;
                if !imported {
                    self.enter_export(
                        name,
                        Exported { charged, bytes, handle: None, maker_exited: false },
                    );
                }
            }
            Command::PhysicalImport { key, exported } => {
                ensure!(code == 0, "memory that a descriptor keeps was not imported");
                let bytes = self.model.exported.get(&exported).context("what was lent")?.bytes;
                let process = &mut self.model.processes[index];
                let exported = Some(exported);
                let imported = Physical {
                    bytes,
                    references: 1,
                    exported,
                    imported: true,
                    shared: true,
                    ..Physical::default()
                };
                process.physical.insert(key, imported);
                process.handles.insert(key, key);
                process.shares = true;
            }
            Command::PoolCreate { pool } => {
                ensure!(code == 0, "the pool was not made");
                let process = &mut self.model.processes[index];
                process.pools.insert(pool, None);
                process.shares = true;
            }
            Command::PoolExport { pool, exported } => {
                ensure!(code == 0, "the pool was not exported");
                let descriptor = self.actors[index].line().receive()?;
                let known = self.model.processes[index].pools.get_mut(&pool).context("the pool")?;
                self.descriptors.insert(*known.get_or_insert(exported), (Kind::Pool, descriptor));
            }
            Command::PoolImport { pool, exported } => {
                ensure!(code == 0, "the pool that a descriptor keeps was not imported");
                let process = &mut self.model.processes[index];
                process.imported.insert(pool, exported);
                process.shares = true;
            }
            Command::PoolExportPointer { key } => {
                ensure!(code == 0, "the allocation of a pool has no handle");
                let pooled =
                    self.model.processes[index].pooled.get_mut(&key).context("the allocation")?;
                pooled.handle = Some(answer.handle);
            }
            Command::PoolImportPointer { open, key, .. } => {
                ensure!(code == 0, "an allocation of another's pool was not opened");
                self.model.processes[index].opened_pooled.insert(open, key);
            }
            Command::PoolClose { open, .. } => {
                ensure!(code == 0, "an allocation of another's pool was not closed");
                self.model.processes[index].opened_pooled.remove(&open);
            }
            Command::GraphCreate { context, graph, sizes } => {
                ensure!(code == 0, "the graph was not made");
                let blocks = sizes.map(|bytes| bytes.next_multiple_of(BLOCK));
                let (bytes, bound) = (sizes.iter().sum(), blocks.iter().sum());
                self.model.processes[index].graphs.insert(graph, Graph { context, bytes, bound });
            }
            Command::GraphLaunch { graph } => {
                let graph = *self.model.processes[index].graphs.get(&graph).context("the graph")?;
                self.takes_within((graph.bytes, graph.bound), code)?;
            }
            Command::GraphDestroy { graph } => {
                ensure!(code == 0, "the graph was not destroyed");
                self.model.processes[index].graphs.remove(&graph);
            }
            Command::GraphTrim => ensure!(code == 0, "unused memory of graphs was not trimmed"),
            Command::Synchronise { .. } => ensure!(code == 0, "the stream was not waited for"),
            Command::MemoryInfo { .. } => ensure!(code == 0, "the getters were refused"),
            Command::Fork => ensure!(code == 0, "the child ended with {code}"),
            Command::Execute => self.remove_process(index),
            Command::Graph(ref step) => self.judge_graph(index, step, answer)?,
            Command::Code(ref step) => self.judge_code(index, step, code)?,
            Command::GreenCreate { .. }
            | Command::GreenDestroy { .. }
            | Command::GreenAllocate { .. }
            | Command::LimitSet { .. }
            | Command::ModuleLoad { .. }
            | Command::ModuleUnload { .. }
            | Command::LibraryLoad { .. }
            | Command::LibraryUse { .. }
            | Command::LibraryUnload { .. }
            | Command::Lock { .. }
            | Command::Checkpoint { .. }
            | Command::Restore { .. }
            | Command::Unlock { .. } => self.judge_implicit(index, command, answer)?,
            Command::Attach { .. }
            | Command::Detach { .. }
            | Command::AllocateLow { .. }
            | Command::AllocateLowPitch { .. } => self.judge_names(index, command, answer)?,
            _ => self.judge_bound(index, command, answer)?,
        }
        Ok(())
    }

    /// Compares an allocation of linear memory; returns whether it was granted.
    fn judge_linear(
        &mut self,
        index: usize,
        (context, key, bytes): (u32, u32, u64),
        code: i32,
    ) -> Result<bool> {
        let charged = rounded(bytes);
        let is_granted = self.takes(charged, code)?;
        if is_granted {
            let allocation = Allocation { context, charged, exported: None };
            self.model.processes[index].allocations.insert(key, allocation);
        }
        Ok(is_granted)
    }

    /// Compares and counts the answer of an allocation; returns whether it was granted.
    fn takes(&mut self, bytes: u64, code: i32) -> Result<bool> {
        self.takes_within((bytes, bytes), code)
    }

    /// Does the same where only the minimum and the maximum of the bytes are known.
    fn takes_within(&mut self, (least, most): (u64, u64), code: i32) -> Result<bool> {
        self.granted_if(self.model.fits(most), !self.model.might_fit(least), code)?;
        Ok(self.counts(code))
    }

    fn granted_if_fits(&self, bytes: u64, code: i32) -> Result<()> {
        self.granted_if(self.model.fits(bytes), !self.model.might_fit(bytes), code)
    }

    /// Requires success if `surely`, and refusal if `never`. In between, where pools are trimmed
    /// first, both are accepted.
    fn granted_if(&self, surely: bool, never: bool, code: i32) -> Result<()> {
        let (total, limit) = (self.model.total(), self.model.limit);
        match code {
            0 if never => bail!("granted although {total} of {limit} are in use"),
            OUT_OF_MEMORY if surely => bail!("refused although {total} of {limit} are in use"),
            0 | OUT_OF_MEMORY => Ok(()),
            code => bail!(
                "refused with {code}, which is not out of memory, with {total} of {limit} in use"
            ),
        }
    }

    /// Counts the answer of an allocation and returns whether it was granted.
    fn counts(&mut self, code: i32) -> bool {
        let count =
            if code == 0 { &mut self.outcome.granted } else { &mut self.outcome.over_limit };
        *count += 1;
        code == 0
    }

    /// Requires that all getters agree.
    fn judge_shown(&self, shown: ShownMemory) -> Result<()> {
        let limit = self.model.limit;
        ensure!(
            [shown.total, shown.device_total, shown.nvml_total] == [limit; 3]
                && shown.nvml_free == shown.free
                && shown.nvml_used == limit - shown.free,
            "the getters disagree"
        );
        self.judge_use(shown)
    }

    /// Requires that the used memory shown is what the model has.
    fn judge_use(&self, shown: ShownMemory) -> Result<()> {
        let limit = self.model.limit;
        let (least, most) = (self.model.total(), self.model.most() + self.exited);
        let used = limit - shown.free;
        // Memory of exited processes may exceed the limit, of which at most all is shown as used.
        ensure!(
            used >= least.min(limit) && used <= most,
            "{used} shown of {least} to {most} in use"
        );
        Ok(())
    }

    /// Compares NVML's answer to a process without a context: the container's use, and each of its
    /// processes with its memory.
    pub(super) fn judge_nvml(&self, answer: &Answer) -> Result<()> {
        let (shown, limit) = (answer.shown, self.model.limit);
        ensure!(
            answer.code == 0
                && shown.nvml_total == limit
                && shown.nvml_used == limit - shown.nvml_free,
            "NVML's getters disagree"
        );
        self.judge_use(ShownMemory { free: shown.nvml_free, ..shown })?;
        for (process, actor) in self.model.processes.iter().zip(&self.actors) {
            let its = answer
                .members
                .iter()
                .filter(|(pid, _)| *pid == actor.pid())
                .map(|(_, memory)| *memory);
            let its: Vec<u64> = its.collect();
            let least = self.model.of(process);
            let most = least + process.stale();
            let one = matches!(its[..], [memory] if (least..=most).contains(&memory));
            ensure!(
                one || its.is_empty() && least == 0,
                "NVML lists {its:?} for {} with {least} to {most}",
                actor.pid()
            );
        }
        let is_unknown = |pid: &u32| !self.actors.iter().any(|actor| actor.pid() == *pid);
        let unknown: Vec<u32> =
            answer.members.iter().map(|(pid, _)| *pid).filter(is_unknown).collect();
        ensure!(
            unknown.is_empty(),
            "NVML lists {unknown:?}, which are not live processes of the container"
        );
        Ok(())
    }
}

/// Returns the pitch, which the driver chooses. After a refusal, it is the smallest possible one,
/// which must not have fitted.
fn pitch(width: u64, answer: &Answer) -> Result<u64> {
    let pitch = if answer.code == 0 { answer.pitch } else { width.next_multiple_of(512) };
    ensure!(pitch >= width, "the pitch");
    Ok(pitch)
}

/// Requires success exactly where the call can succeed.
fn succeeds_if(can: bool, code: i32, what: &str) -> Result<()> {
    let where_it = if can { "can succeed" } else { "must fail" };
    ensure!((code == 0) == can, "{what}: answered {code} where it {where_it}");
    Ok(())
}
