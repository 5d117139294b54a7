//! Compares answers with the model and updates it.

mod bound;
mod code;
mod graphs;
mod implicit;
mod names;
mod pools;
mod ranges;

use anyhow::{Context, Result, bail, ensure};

use super::{Kind, Play, TOLD_TO};
use crate::command::{Answer, Command, InStream, PRIMARY, Place, Sight};
use crate::model::{Allocation, BLOCK, Graph, Lent, MIB, Opened, Physical, rounded};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;
/// Minimum growth of a pool in bytes.
const CHUNK: u64 = 32 * MIB;

impl Play<'_> {
    /// Compares an answer with the model and applies its effects.
    pub(super) fn judge(&mut self, who: usize, command: &Command, answer: &Answer) -> Result<()> {
        if answer.code == TOLD_TO && self.plan.refusals {
            // The call had no effect, except that it may have created the context that it needs.
            self.outcome.by_driver += 1;
            if let Command::GreenCreate { .. } = command {
                self.primary_came_back(who, answer.active);
            }
        } else {
            self.judge_untold(who, command, answer)?;
        }
        let read = matches!(
            command,
            Command::Look { .. }
                | Command::Synchronise { .. }
                | Command::Stream(InStream::Wait { .. })
        );
        self.model.processes[who].pool_seen(answer.pooled, read && answer.code == 0);
        if self.other.is_some() {
            self.turn();
            self.model.processes[who].pool_seen(answer.elsewhere, false);
            self.turn();
        }
        self.judge_reserved(who, answer)?;
        if let Command::Look { .. } = command {
            self.judge_sight(answer.sight)?;
        }
        Ok(())
    }

    fn judge_untold(&mut self, who: usize, command: &Command, answer: &Answer) -> Result<()> {
        let code = answer.code;
        match *command {
            Command::Init => {
                ensure!(code == 0, "cuInit was refused");
                self.on_each_gpu(|play| play.model.processes[who].started = true);
            }
            Command::ContextCreate { context } => {
                self.granted_if_fits(self.model.context, code)?;
                if code == 0 {
                    self.model.processes[who].contexts.push(context);
                }
            }
            Command::ContextDestroy { context } => {
                ensure!(code == 0, "the context was not destroyed");
                self.model.processes[who].lose(context);
            }
            Command::PrimaryRetain => {
                let active = self.model.processes[who].has(PRIMARY);
                if active {
                    ensure!(code == 0, "the primary context is there");
                } else {
                    self.granted_if_fits(self.model.context, code)?;
                }
                ensure!(answer.active == (active || code == 0), "the primary context's state");
                let process = &mut self.model.processes[who];
                if answer.active && !active {
                    process.contexts.push(PRIMARY);
                }
                process.retained += u32::from(code == 0);
            }
            Command::PrimaryRelease | Command::PrimaryReset => {
                ensure!(code == 0, "the primary context was not let go");
                let process = &mut self.model.processes[who];
                process.retained -= u32::from(*command == Command::PrimaryRelease);
                if !answer.active {
                    process.lose(PRIMARY);
                }
            }
            Command::Allocate { context, key, bytes } => {
                let charged = rounded(bytes);
                self.granted_if_fits(charged, code)?;
                if self.counts(code) {
                    self.model.processes[who]
                        .allocations
                        .insert(key, Allocation { context, charged, lent: None });
                }
            }
            Command::AllocatePitch { context, key, width, height } => {
                // The driver chooses the pitch. After a refusal, the smallest possible pitch must
                // not have fitted.
                let pitch = if code == 0 { answer.pitch } else { width.next_multiple_of(512) };
                ensure!(pitch >= width, "the pitch");
                let charged = rounded(pitch * height);
                self.granted_if_fits(charged, code)?;
                if self.counts(code) {
                    self.model.processes[who]
                        .allocations
                        .insert(key, Allocation { context, charged, lent: None });
                }
            }
            Command::Free { key } => {
                ensure!(code == 0, "the free was refused");
                self.model.processes[who].free(key);
            }
            Command::FreeUnknown => ensure!(code != 0, "an unknown address was freed"),
            Command::PhysicalCreate { key, bytes, place, shared, tiles, .. } => {
                let charged = if place == Place::Host { 0 } else { bytes };
                self.granted_if_fits(charged, code)?;
                if self.counts(code) {
                    let process = &mut self.model.processes[who];
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
                self.model.processes[who]
                    .hold(key, |process, physical| _ = process.maps.insert(map, physical));
            }
            Command::PhysicalUnmap { map } => {
                ensure!(code == 0, "the memory was not unmapped");
                let process = &mut self.model.processes[who];
                let physical = process.maps.remove(&map).unwrap_or_default();
                process.let_go(physical);
            }
            Command::PhysicalRelease { key } => {
                ensure!(code == 0, "the handle was not released");
                let process = &mut self.model.processes[who];
                let physical = process.handles.remove(&key).unwrap_or_default();
                process.let_go(physical);
            }
            Command::PhysicalRetain { map, key } => {
                ensure!(code == 0, "the mapped memory has no handle");
                let process = &mut self.model.processes[who];
                let physical = process.maps.get(&map).copied().unwrap_or_default();
                process.handles.insert(key, physical);
                process.hold(key, |_, _| ());
            }
            Command::ArrayCreate { context, key, .. }
            | Command::FlatCreate { context, key, .. } => {
                ensure!(answer.needed > 0, "the driver does not say what the array needs");
                let charged = rounded(answer.needed);
                self.granted_if_fits(charged, code)?;
                if self.counts(code) {
                    let array = Allocation { context, charged, lent: None };
                    self.model.processes[who].arrays.insert(key, array);
                }
            }
            Command::ArrayDestroy { key, .. } => {
                ensure!(code == 0, "the array was not destroyed");
                let process = &mut self.model.processes[who];
                process.arrays.remove(&key);
                if process.sparse.remove(&key).is_some() {
                    process.untile(key);
                }
            }
            Command::PoolAllocate { key, bytes, pool, .. } => {
                self.judge_pooled(who, key, (bytes, pool), code)?;
            }
            Command::PoolTrim { .. } | Command::PoolKeep { .. } => {
                ensure!(code == 0, "the pool did not do as it was told");
            }
            Command::PoolDestroy { pool } => {
                ensure!(code == 0, "an empty pool was not destroyed");
                self.model.processes[who].destroy_pool(pool);
            }
            Command::Pool(about) => self.judge_pool(who, about, answer)?,
            Command::Stream(about) => self.judge_stream(who, about, answer)?,
            Command::Range(about) => self.judge_range(who, about, answer)?,
            Command::PoolFree { key, .. } | Command::PoolFreeNow { key, .. } => {
                ensure!(code == 0, "the free was refused");
                self.model.processes[who].pooled.remove(&key);
            }
            Command::Lend { key, lent } => {
                ensure!(code == 0, "the allocation has no handle");
                let allocation = self.model.processes[who].allocations.get_mut(&key);
                let allocation = allocation.context("the allocation")?;
                let (name, charged) = (*allocation.lent.get_or_insert(lent), allocation.charged);
                self.model.processes[who].shares = true;
                self.lend(
                    name,
                    Lent { charged, bytes: 0, handle: Some(answer.handle), bereaved: false },
                );
            }
            Command::Open { context, open, lent, .. } => {
                let maker = self.model.maker(lent);
                let process = &mut self.model.processes[who];
                let elsewhere = process.opened.values().any(|other| other.context != context);
                let there = maker.is_some_and(|maker| maker != who)
                    || maker.is_none()
                        && self.model.lent.get(&lent).is_some_and(|lent| lent.bereaved);
                ensure!(code != 0 || there, "what is not there was opened");
                // Allocations that several contexts opened may share a block.
                ensure!(code == 0 || maker.is_none() || elsewhere, "what is there was not opened");
                if code == 0 {
                    process.opened.insert(open, Opened { context, lent });
                    process.shares = true;
                }
            }
            Command::Close { open } => {
                ensure!(code == 0, "what was open was not closed");
                self.model.processes[who].opened.remove(&open);
            }
            Command::PhysicalExport { key, lent } => {
                ensure!(code == 0, "the memory was not exported");
                let descriptor = self.actors[who].line().receive()?;
                let process = &mut self.model.processes[who];
                let first = process.handles.get(&key).context("the handle")?;
                let physical = process.physical.get_mut(first).context("its memory")?;
                let name = *physical.lent.get_or_insert(lent);
                let Physical { charged, bytes, imported, .. } = *physical;
                self.descriptors.insert(name, (Kind::Physical, descriptor));
                process.shares = true;
                if !imported {
                    self.lend(name, Lent { charged, bytes, handle: None, bereaved: false });
                }
            }
            Command::PhysicalImport { key, lent } => {
                ensure!(code == 0, "what a descriptor keeps was not imported");
                let bytes = self.model.lent.get(&lent).context("what was lent")?.bytes;
                let process = &mut self.model.processes[who];
                let lent = Some(lent);
                let imported = Physical {
                    bytes,
                    references: 1,
                    lent,
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
                let process = &mut self.model.processes[who];
                process.pools.insert(pool, None);
                process.shares = true;
            }
            Command::PoolExport { pool, lent } => {
                ensure!(code == 0, "the pool was not exported");
                let descriptor = self.actors[who].line().receive()?;
                let known = self.model.processes[who].pools.get_mut(&pool).context("the pool")?;
                self.descriptors.insert(*known.get_or_insert(lent), (Kind::Pool, descriptor));
            }
            Command::PoolImport { pool, lent } => {
                ensure!(code == 0, "the pool that a descriptor keeps was not imported");
                let process = &mut self.model.processes[who];
                process.imported.insert(pool, lent);
                process.shares = true;
            }
            Command::PoolLend { key } => {
                ensure!(code == 0, "the allocation of a pool has no handle");
                let pooled =
                    self.model.processes[who].pooled.get_mut(&key).context("the allocation")?;
                pooled.handle = Some(answer.handle);
            }
            Command::PoolOpen { open, key, .. } => {
                ensure!(code == 0, "an allocation of another's pool was not opened");
                self.model.processes[who].opened_pooled.insert(open, key);
            }
            Command::PoolClose { open, .. } => {
                ensure!(code == 0, "an allocation of another's pool was not closed");
                self.model.processes[who].opened_pooled.remove(&open);
            }
            Command::GraphCreate { context, graph, sizes } => {
                ensure!(code == 0, "the graph was not made");
                let blocks = sizes.map(|bytes| bytes.next_multiple_of(BLOCK));
                let (bytes, bound) = (sizes.iter().sum(), blocks.iter().sum());
                self.model.processes[who].graphs.insert(graph, Graph { context, bytes, bound });
            }
            Command::GraphLaunch { graph } => {
                let graph = *self.model.processes[who].graphs.get(&graph).context("the graph")?;
                self.granted_if(
                    self.model.fits(graph.bound),
                    !self.model.might_fit(graph.bytes),
                    code,
                )?;
                self.counts(code);
            }
            Command::GraphDestroy { graph } => {
                ensure!(code == 0, "the graph was not destroyed");
                self.model.processes[who].graphs.remove(&graph);
            }
            Command::GraphTrim => ensure!(code == 0, "what graphs do not use was not given back"),
            Command::Synchronise { .. } => ensure!(code == 0, "the stream was not waited for"),
            Command::Look { .. } => ensure!(code == 0, "the getters were refused"),
            Command::Fork => ensure!(code == 0, "the child ended with {code}"),
            Command::Execute => self.bury(who),
            Command::Graph(ref step) => self.judge_graph(who, step, answer)?,
            Command::Code(ref step) => self.judge_code(who, step, code)?,
            Command::GreenCreate { .. }
            | Command::GreenDestroy { .. }
            | Command::GreenAllocate { .. }
            | Command::LimitSet { .. }
            | Command::ModuleLoad { .. }
            | Command::ModuleUnload { .. }
            | Command::LibraryLoad { .. }
            | Command::LibraryBring { .. }
            | Command::LibraryUnload { .. }
            | Command::Lock { .. }
            | Command::Checkpoint { .. }
            | Command::Restore { .. }
            | Command::Unlock { .. } => self.judge_implicit(who, command, answer)?,
            Command::Attach { .. }
            | Command::Detach { .. }
            | Command::AllocateLow { .. }
            | Command::AllocateLowPitch { .. } => self.judge_names(who, command, answer)?,
            _ => self.judge_bound(who, command, answer)?,
        }
        Ok(())
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
    fn judge_sight(&self, sight: Sight) -> Result<()> {
        let limit = self.model.limit;
        ensure!(
            [sight.total, sight.device_total, sight.nvml_total] == [limit; 3]
                && sight.nvml_free == sight.free
                && sight.nvml_used == limit - sight.free,
            "the getters disagree"
        );
        self.judge_use(sight)
    }

    /// Requires that the used memory shown is what the model has.
    fn judge_use(&self, sight: Sight) -> Result<()> {
        let limit = self.model.limit;
        let (least, most) = (self.model.total(), self.model.most() + self.dead);
        let used = limit - sight.free;
        // Memory of exited processes may exceed the limit, of which at most all is shown as used.
        ensure!(
            used >= least.min(limit) && used <= most,
            "{used} shown of {least} to {most} in use"
        );
        Ok(())
    }

    /// Compares NVML's answer to a process without a context: the container's use, and each of its
    /// processes with its memory.
    pub(super) fn judge_watch(&self, answer: &Answer) -> Result<()> {
        let (sight, limit) = (answer.sight, self.model.limit);
        ensure!(
            answer.code == 0
                && sight.nvml_total == limit
                && sight.nvml_used == limit - sight.nvml_free,
            "NVML's getters disagree"
        );
        self.judge_use(Sight { free: sight.nvml_free, ..sight })?;
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
        let stranger = |pid: &u32| !self.actors.iter().any(|actor| actor.pid() == *pid);
        let strangers: Vec<u32> =
            answer.members.iter().map(|(pid, _)| *pid).filter(stranger).collect();
        ensure!(strangers.is_empty(), "NVML lists {strangers:?}, who are dead or of others");
        Ok(())
    }
}
