//! Memory held by other things than handles and mappings.

use anyhow::{Context, Result, bail, ensure};

use super::Run;
use crate::command::{Answer, Command};
use crate::model::Object;
use crate::run::Kind;

impl Run<'_> {
    pub(super) fn judge_bound(
        &mut self,
        index: usize,
        command: &Command,
        answer: &Answer,
    ) -> Result<()> {
        let code = answer.code;
        match *command {
            Command::ObjectCreate { object, endpoint, shared, .. } => {
                ensure!(code == 0, "the object was not made");
                let made = Object { endpoint, shared, ..Object::default() };
                let process = &mut self.model.processes[index];
                process.objects.insert(object, made);
                process.shares = true;
            }
            Command::ObjectBind { object, offset, key, .. } => {
                ensure!(code == 0, "the memory was not bound");
                let process = &mut self.model.processes[index];
                let to = process.objects.get(&object).context("the object")?;
                let known = to.exported.is_some();
                process.hold(key, |process, first| {
                    if let Some(to) = process.objects.get_mut(&object) {
                        to.bound.insert(offset, first);
                    }
                    if let Some(memory) = process.physical.get_mut(&first) {
                        memory.known |= known && !memory.imported;
                    }
                });
            }
            Command::ObjectUnbind { object, offset, .. } => {
                ensure!(code == 0, "the memory was not unbound");
                let process = &mut self.model.processes[index];
                let to = process.objects.get_mut(&object).context("the object")?;
                let first = to.bound.remove(&offset).context("what is bound there")?;
                process.release_reference(first);
            }
            Command::ObjectEnd { object } => {
                ensure!(code == 0, "the object was not released");
                let process = &mut self.model.processes[index];
                let gone = process.objects.remove(&object).context("the object")?;
                gone.bound.into_values().for_each(|first| process.release_reference(first));
            }
            Command::ObjectExport { object, exported } => {
                ensure!(code == 0, "the object was not exported");
                let descriptor = self.actors[index].line().receive()?;
                let process = &mut self.model.processes[index];
                let known = process.objects.get_mut(&object).context("the object")?;
                let name = *known.exported.get_or_insert(exported);
                for first in known.bound.values() {
                    if let Some(memory) = process.physical.get_mut(first) {
                        memory.known |= !memory.imported;
                    }
                }
                self.descriptors.insert(name, (Kind::Object, descriptor));
            }
            Command::ObjectImport { object, exported } => {
                ensure!(code == 0, "an object that a descriptor keeps was not imported");
                let process = &mut self.model.processes[index];
                let made = Object { shared: true, exported: Some(exported), ..Object::default() };
                process.objects.insert(object, made);
                process.shares = true;
            }
            Command::SparseCreate { context, key } => {
                ensure!(code == 0, "the sparse array was not made");
                self.model.processes[index].sparse.insert(key, context);
            }
            Command::TileMap { array, tile, key, .. } => {
                ensure!(code == 0, "the tile was not mapped");
                let process = &mut self.model.processes[index];
                let former = process.tiles.remove(&(array, tile));
                if let Some(key) = key {
                    process
                        .hold(key, |process, first| _ = process.tiles.insert((array, tile), first));
                }
                if let Some(former) = former {
                    process.release_reference(former);
                }
            }
            Command::ForeignAllocate { key, bytes } => {
                ensure!(code == 0, "another interface has no memory");
                self.model.processes[index].foreign.insert(key, bytes);
                self.model.foreign.insert(key, bytes);
            }
            Command::ForeignFree { key } => {
                ensure!(code == 0, "another interface's memory was not freed");
                self.model.processes[index].foreign.remove(&key);
            }
            Command::ForeignExport { key } => {
                ensure!(code == 0, "another interface's memory was not exported");
                let descriptor = self.actors[index].line().receive()?;
                self.descriptors.insert(key, (Kind::Foreign, descriptor));
                self.model.processes[index].shares = true;
            }
            Command::ExternalImport { context, external, key, .. } => {
                ensure!(code == 0, "memory that a descriptor keeps was not imported");
                let process = &mut self.model.processes[index];
                process.externals.insert(external, (context, key));
                process.shares = true;
            }
            Command::ExternalMap { external, buffer, .. } => {
                ensure!(code == 0, "another interface's memory was not mapped");
                let process = &mut self.model.processes[index];
                let its = *process.externals.get(&external).context("the import")?;
                process.buffers.insert(buffer, its);
            }
            Command::ExternalFree { buffer } => {
                ensure!(code == 0, "a buffer of another interface's memory was not freed");
                self.model.processes[index].buffers.remove(&buffer);
            }
            Command::ExternalEnd { external } => {
                ensure!(code == 0, "another interface's memory was not released");
                self.model.processes[index].externals.remove(&external);
            }
            _ => bail!("no comparison for {command:?}"),
        }
        Ok(())
    }
}
