//! Reads the maps of the containers' processes that are on a GPU, and remembers what they show.

use std::collections::{BTreeMap, BTreeSet};

use cgpu_shm::clock::thread_cpu;
use cgpu_shm::units::Nanos;

use super::mapped::{Identity, Mapped, MapsReader};
use super::renewal::Renewals;
use crate::watcher::ProcessId;

/// Bytes that are read at once, some 5 ms of CPU time: much more than an honest process has.
const PIECE: u64 = 1 << 20;

/// Bytes that are read at once of a process that is to be ended.
const CHECKED: u64 = 8 << 20;

#[derive(Debug, Default)]
pub(super) struct Maps {
    renewals: Renewals,
    /// Readings of long maps, which go on when their containers are due again.
    unfinished: BTreeMap<ProcessId, MapsReader>,
}

impl Maps {
    /// Sets the containers' processes on a GPU, each with its container and whether it is verified,
    /// and reads what is due.
    pub(super) fn renew(
        &mut self,
        now: Nanos,
        processes: &BTreeMap<ProcessId, (u64, bool)>,
        regions: &BTreeSet<Identity>,
    ) {
        self.renewals.set(now, processes);
        self.unfinished.retain(|id, _| processes.contains_key(id));
        while let Some((id, tenant)) = self.renewals.next(now) {
            let start = thread_cpu();
            let reader = self.unfinished.remove(&id).map_or_else(|| MapsReader::open(id), Ok);
            let read = reader.and_then(|mut reader| Ok((reader.read(PIECE, regions)?, reader)));
            self.renewals.charge(now, tenant, thread_cpu() - start);
            match read {
                Ok((false, reader)) => _ = self.unfinished.insert(id, reader),
                Ok((true, reader)) => self.take(now, id, tenant, Some(reader.mapped)),
                Err(_) => self.take(now, id, tenant, None),
            }
        }
    }

    /// Reads a process anew that is to be ended, and returns what was found. This is done at once,
    /// and charged to its container. The outcome is remembered like any other, so an order that is
    /// refused for it costs no more than a reading in turn. More mappings than are read here count
    /// as the driver's: no process hides it so.
    pub(super) fn check(
        &mut self,
        now: Nanos,
        id: ProcessId,
        tenant: u64,
        regions: &BTreeSet<Identity>,
    ) -> Option<Mapped> {
        let start = thread_cpu();
        let read = MapsReader::open(id)
            .and_then(|mut reader| Ok((reader.read(CHECKED, regions)?, reader.mapped)));
        self.renewals.charge(now, tenant, thread_cpu() - start);
        let found = match read {
            Ok((true, mapped)) => Some(mapped),
            Ok((false, mapped)) if mapped.region => Some(Mapped { driver: true, ..mapped }),
            // What was found when all was read stands.
            Ok((false, mapped)) => {
                return self.mapped(id).or(Some(Mapped { driver: true, ..mapped }));
            }
            Err(_) => None,
        };
        self.unfinished.remove(&id);
        self.take(now, id, tenant, found);
        self.mapped(id)
    }

    fn take(&mut self, now: Nanos, id: ProcessId, tenant: u64, mapped: Option<Mapped>) {
        // Checked last, so that the maps are of this process.
        self.renewals.take(now, id, tenant, mapped.filter(|_| id.lives()));
    }

    /// Returns what a process has mapped, as far as it is known.
    pub(super) fn mapped(&self, id: ProcessId) -> Option<Mapped> {
        self.renewals.mapped(id)
    }
}
