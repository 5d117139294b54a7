//! Prepared claims: the ledger and its files, in an order that may be interrupted at any step.
//!
//! ```text
//!   prepare:    reserve -> record staged, published -> limits, CDI -> answer
//!   resize:     busy    -> record staged, published -> limits
//!   unprepare:  busy    -> CDI, limits removed -> record removed   -> answer
//!   open:       records -> ledger; limits and CDI as the records say, and no others
//! ```
//!
//! The record is the truth. A claim has one before anything else of it exists, and until nothing
//! else of it exists.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cgpu_kubernetes_core::refusal::Refusal;

use crate::allocation::NodeClaim;
use crate::cdi::Cdi;
use crate::device::Pool;
use crate::ledger::{Held, Ledger, Recorded};
use crate::record;
use crate::store::{Kind, Store};

/// The claims that are prepared on a node.
pub struct PreparedClaims<S> {
    store: S,
    cdi: Cdi,
    /// No file and no request is waited for while it is locked.
    ledger: Mutex<Ledger>,
}

impl<S: Store> PreparedClaims<S> {
    /// Reads the records, and makes limits and CDI devices agree with them.
    ///
    /// # Errors
    /// A record is not understood, or a file cannot be read, written or removed. Then nothing may
    /// be prepared.
    pub fn open(store: S, cdi: Cdi) -> Result<Self, Refusal> {
        let failed = |what: &str, error: &io::Error| {
            Refusal::new(format!("cannot restore the prepared claims: {what}: {error}"))
        };
        store.recover().map_err(|error| failed("unfinished files", &error))?;
        let mut claims = Vec::new();
        for uid in store.names(Kind::Record).map_err(|error| failed("records", &error))? {
            let text = store.read(Kind::Record, &uid).map_err(|error| failed(&uid, &error))?;
            let Some(text) = text else { continue };
            claims.push(record::read(&uid, &text).map_err(|why| {
                Refusal::new(format!("cannot restore the prepared claims: record {uid}: {why}"))
            })?);
        }
        let opened = Self { store, cdi, ledger: Mutex::new(Ledger::restore(claims.clone())) };
        for claim in &claims {
            opened.derive(claim)?;
        }
        let uids: BTreeSet<&str> = claims.iter().map(|claim| claim.uid.as_str()).collect();
        let shares: BTreeSet<&str> = claims
            .iter()
            .flat_map(|claim| &claim.shares)
            .map(|share| share.name.as_str())
            .collect();
        for (kind, known) in [(Kind::Cdi, uids), (Kind::Limits, shares)] {
            for name in opened.store.names(kind).map_err(|error| failed("files", &error))? {
                if !known.contains(name.as_str()) {
                    let removed = opened.store.remove(kind, &name);
                    removed.map_err(|error| failed(&name, &error))?;
                }
            }
        }
        Ok(opened)
    }

    /// Prepares a claim. Repeating it is harmless, and changes no share that was resized. `held` is
    /// what running containers hold.
    ///
    /// # Errors
    /// There is no room, or a file cannot be written. The kubelet repeats the call.
    pub fn prepare(&self, claim: &NodeClaim, pool: &Pool, held: &[Held]) -> Result<(), Refusal> {
        for share in &claim.shares {
            self.cdi.ids(share)?;
        }
        let (claim, known) = {
            let mut ledger = self.ledger();
            let known = ledger.begin(claim, pool, held)?;
            (ledger.claim(&claim.uid).unwrap_or(claim).clone(), known)
        };
        // A claim that is prepared needs no room on the disk to be prepared again.
        let written = match known {
            Recorded::Durably => Ok(()),
            Recorded::Perhaps | Recorded::No => self.record(&claim),
        };
        let recorded = match written {
            Ok(()) => Recorded::Durably,
            Err(_) if self.may_be_recorded(&claim.uid) => Recorded::Perhaps,
            Err(_) => Recorded::No,
        };
        let done = match written {
            Ok(()) => self.derive(&claim),
            Err(error) => Err(failed("write", &claim, &error)),
        };
        self.ledger().finish(&claim.uid, recorded);
        done
    }

    /// Gives a prepared claim this form of it, in which its shares have other sizes.
    ///
    /// # Errors
    /// It is busy or not prepared, or a file cannot be written: then repeat it.
    pub fn resize(&self, claim: &NodeClaim) -> Result<(), Refusal> {
        self.ledger().begin_resize(claim)?;
        let recorded = self.record(claim).map_err(|error| failed("write", claim, &error));
        let done = recorded.and_then(|()| self.derive(claim));
        match done {
            Ok(()) => self.ledger().finish_resize(claim),
            // The record may have this form; the next call writes it anew.
            Err(_) => self.ledger().finish(&claim.uid, Recorded::Perhaps),
        }
        done
    }

    /// Unprepares a claim, from its record alone. A claim that is not prepared is unprepared
    /// already.
    ///
    /// # Errors
    /// A file cannot be removed. The claim stays prepared, and the kubelet repeats the call.
    pub fn unprepare(&self, uid: &str) -> Result<(), Refusal> {
        let Some(claim) = self.ledger().begin_removal(uid)? else { return Ok(()) };
        let limits = claim.shares.iter().map(|share| (Kind::Limits, share.name.as_str()));
        let files = [(Kind::Cdi, uid)].into_iter().chain(limits).chain([(Kind::Record, uid)]);
        let removed = files.into_iter().try_for_each(|(kind, name)| self.store.remove(kind, name));
        self.ledger().finish(uid, if removed.is_ok() { Recorded::No } else { Recorded::Perhaps });
        removed.map_err(|error| failed("remove", &claim, &error))
    }

    /// Returns the ledger. It is not kept while files are written.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // A ledger is changed by whole steps, so a panic elsewhere leaves it valid.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.store
    }

    fn record(&self, claim: &NodeClaim) -> io::Result<()> {
        self.store.stage(Kind::Record, &claim.uid, &record::write(claim))?;
        self.store.publish(Kind::Record, &claim.uid)
    }

    /// Writes limits and CDI devices of a claim, where they differ.
    fn derive(&self, claim: &NodeClaim) -> Result<(), Refusal> {
        for share in &claim.shares {
            if let Some(limits) = share.limits()? {
                self.ensure(claim, Kind::Limits, &share.name, &limits)?;
            }
        }
        match self.cdi.specification(claim) {
            Some(text) => self.ensure(claim, Kind::Cdi, &claim.uid, &text),
            None => Ok(()),
        }
    }

    fn ensure(&self, claim: &NodeClaim, kind: Kind, name: &str, text: &str) -> Result<(), Refusal> {
        let written = self.store.read(kind, name).and_then(|known| {
            if known.as_deref() == Some(text) {
                return Ok(());
            }
            self.store.stage(kind, name, text)?;
            self.store.publish(kind, name)
        });
        written.map_err(|error| failed("write", claim, &error))
    }

    /// Returns whether a claim may have a record; so it is if that cannot be read.
    fn may_be_recorded(&self, uid: &str) -> bool {
        self.store.read(Kind::Record, uid).map_or(true, |text| text.is_some())
    }
}

fn failed(what: &str, claim: &NodeClaim, error: &io::Error) -> Refusal {
    Refusal::new(format!("cannot {what} the files of {}: {error}", claim.title()))
}
