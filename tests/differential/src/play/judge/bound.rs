//! Memory held by other things than handles and mappings.

use anyhow::{Context, Result, bail, ensure};

use super::Play;
use crate::command::{Answer, Command};
use crate::model::Object;
use crate::play::Kind;

impl Play<'_> {
    pub(super) fn judge_bound(
        &mut self,
        who: usize,
        command: &Command,
        answer: &Answer,
    ) -> Result<()> {
        let code = answer.code;
        match *command {
            Command::ObjectCreate { object, endpoint, shared, .. } => {
                ensure!(code == 0, "the object was not made");
                let made = Object { endpoint, shared, ..Object::default() };
                let process = &mut self.model.processes[who];
                process.objects.insert(object, made);
                process.shares = true;
            }
            Command::ObjectBind { object, offset, key, .. } => {
                ensure!(code == 0, "the memory was not bound");
                let process = &mut self.model.processes[who];
                let to = process.objects.get(&object).context("the object")?;
                let known = to.lent.is_some();
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
                let process = &mut self.model.processes[who];
                let to = process.objects.get_mut(&object).context("the object")?;
                let first = to.bound.remove(&offset).context("what is bound there")?;
                process.let_go(first);
            }
            Command::ObjectEnd { object } => {
                ensure!(code == 0, "the object was not given back");
                let process = &mut self.model.processes[who];
                let gone = process.objects.remove(&object).context("the object")?;
                gone.bound.into_values().for_each(|first| process.let_go(first));
            }
            Command::ObjectExport { object, lent } => {
                ensure!(code == 0, "the object was not exported");
                let descriptor = self.actors[who].line().receive()?;
                let process = &mut self.model.processes[who];
                let known = process.objects.get_mut(&object).context("the object")?;
                let name = *known.lent.get_or_insert(lent);
                for first in known.bound.values() {
                    if let Some(memory) = process.physical.get_mut(first) {
                        memory.known |= !memory.imported;
                    }
                }
                self.descriptors.insert(name, (Kind::Object, descriptor));
            }
            Command::ObjectImport { object, lent } => {
                ensure!(code == 0, "an object that a descriptor keeps was not imported");
                let process = &mut self.model.processes[who];
                let made = Object { shared: true, lent: Some(lent), ..Object::default() };
                process.objects.insert(object, made);
                process.shares = true;
            }
            Command::SparseCreate { context, key } => {
                ensure!(code == 0, "the sparse array was not made");
                self.model.processes[who].sparse.insert(key, context);
            }
            Command::TileMap { array, tile, key, .. } => {
                ensure!(code == 0, "the tile was not mapped");
                let process = &mut self.model.processes[who];
                let former = process.tiles.remove(&(array, tile));
                if let Some(key) = key {
                    process
                        .hold(key, |process, first| _ = process.tiles.insert((array, tile), first));
                }
                if let Some(former) = former {
                    process.let_go(former);
                }
            }
            Command::ForeignAllocate { key, bytes } => {
                ensure!(code == 0, "another interface has no memory");
                self.model.processes[who].foreign.insert(key, bytes);
                self.model.foreign.insert(key, bytes);
            }
            Command::ForeignFree { key } => {
                ensure!(code == 0, "another interface's memory was not freed");
                self.model.processes[who].foreign.remove(&key);
            }
            Command::ForeignExport { key } => {
                ensure!(code == 0, "another interface's memory was not exported");
                let descriptor = self.actors[who].line().receive()?;
                self.descriptors.insert(key, (Kind::Foreign, descriptor));
                self.model.processes[who].shares = true;
            }
            Command::ExternalImport { context, external, key, .. } => {
                ensure!(code == 0, "what a descriptor keeps was not imported");
                let process = &mut self.model.processes[who];
                process.externals.insert(external, (context, key));
                process.shares = true;
            }
            Command::ExternalMap { external, buffer, .. } => {
                ensure!(code == 0, "another interface's memory was not mapped");
                let process = &mut self.model.processes[who];
                let its = *process.externals.get(&external).context("the import")?;
                process.buffers.insert(buffer, its);
            }
            Command::ExternalFree { buffer } => {
                ensure!(code == 0, "a buffer of another interface's memory was not freed");
                self.model.processes[who].buffers.remove(&buffer);
            }
            Command::ExternalEnd { external } => {
                ensure!(code == 0, "another interface's memory was not given back");
                self.model.processes[who].externals.remove(&external);
            }
            _ => bail!("nobody judges {command:?}"),
        }
        Ok(())
    }
}
