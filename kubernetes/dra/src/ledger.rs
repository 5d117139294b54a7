//! The node's ledger: which claims are prepared, and whether there is room for one more.
//!
//! It is pure. [`crate::prepared`] writes the files between [`Ledger::begin`] and
//! [`Ledger::finish`]; a claim is busy meanwhile, and counts.

use std::collections::BTreeMap;

use cgpu_kubernetes_core::refusal::Refusal;

use crate::allocation::{NodeClaim, Share};
use crate::capacity::Capacity;
use crate::device::Pool;

/// A share that a running container still holds, whether its claim is prepared or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Name of the share.
    pub share: String,
    /// The driver's name of the device.
    pub gpu: String,
    /// What it consumes.
    pub capacity: Capacity,
}

/// A claim and what is being done with it.
#[derive(Clone, Debug)]
struct Entry {
    claim: NodeClaim,
    /// A call prepares or unprepares it.
    is_busy: bool,
}

/// The claims of a node by uid.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    entries: BTreeMap<String, Entry>,
}

impl Ledger {
    /// Creates the ledger from the records of a node.
    #[must_use]
    pub fn restore(claims: impl IntoIterator<Item = NodeClaim>) -> Self {
        let entry = |claim: NodeClaim| (claim.uid.clone(), Entry { claim, is_busy: false });
        Self { entries: claims.into_iter().map(entry).collect() }
    }

    /// Reserves what a claim consumes, and makes it busy. A claim that is prepared already consumes
    /// nothing more.
    ///
    /// # Errors
    /// A device lacks room, the claim is busy, or it has another allocation. All may be over when
    /// the kubelet tries again.
    pub fn begin(&mut self, claim: &NodeClaim, pool: &Pool, held: &[Held]) -> Result<(), Refusal> {
        if let Some(entry) = self.entries.get_mut(&claim.uid) {
            entry.check_idle()?;
            if entry.claim != *claim {
                return Err(Refusal::new(format!(
                    "{} waits until its earlier allocation is unprepared: {}",
                    claim.title(),
                    described(&entry.claim.shares)
                )));
            }
            entry.is_busy = true;
            return Ok(());
        }
        let mut wanted: BTreeMap<&str, Capacity> = BTreeMap::new();
        for share in &claim.shares {
            let sum = wanted.entry(&share.gpu).or_default();
            *sum = sum.and(share.consumed());
        }
        for (gpu, wanted) in wanted {
            self.check_room(claim, gpu, wanted, pool, held)?;
        }
        self.entries.insert(claim.uid.clone(), Entry { claim: claim.clone(), is_busy: true });
        Ok(())
    }

    /// Makes a claim busy that is to be unprepared, and returns it; `None` if it is not prepared.
    ///
    /// # Errors
    /// It is busy.
    pub fn begin_removal(&mut self, uid: &str) -> Result<Option<NodeClaim>, Refusal> {
        let Some(entry) = self.entries.get_mut(uid) else { return Ok(None) };
        entry.check_idle()?;
        entry.is_busy = true;
        Ok(Some(entry.claim.clone()))
    }

    /// Ends what [`Self::begin`] or [`Self::begin_removal`] has begun. `is_recorded` says whether
    /// the claim may have a record by now. Without one, it is forgotten.
    pub fn finish(&mut self, uid: &str, is_recorded: bool) {
        if !is_recorded {
            self.entries.remove(uid);
        } else if let Some(entry) = self.entries.get_mut(uid) {
            entry.is_busy = false;
        }
    }

    /// Returns all claims, busy ones included.
    pub fn claims(&self) -> impl Iterator<Item = &NodeClaim> {
        self.entries.values().map(|entry| &entry.claim)
    }

    /// Returns all shares of a device, by the driver's name.
    fn shares<'a>(&'a self, gpu: &'a str) -> impl Iterator<Item = &'a Share> {
        self.claims().flat_map(|claim| &claim.shares).filter(move |share| share.gpu == gpu)
    }

    /// Returns what is consumed of a device: by claims, and by containers that outlive theirs.
    #[must_use]
    pub fn consumed(&self, gpu: &str, held: &[Held]) -> Capacity {
        let prepared = self.shares(gpu).map(Share::consumed);
        let is_known = |held: &&Held| self.shares(gpu).any(|share| share.name == held.share);
        let orphaned = held.iter().filter(|held| held.gpu == gpu && !is_known(held));
        prepared.chain(orphaned.map(|held| held.capacity)).fold(Capacity::NONE, Capacity::and)
    }

    fn check_room(
        &self,
        claim: &NodeClaim,
        gpu: &str,
        wanted: Capacity,
        pool: &Pool,
        held: &[Held],
    ) -> Result<(), Refusal> {
        let device = pool.devices.iter().find(|device| device.host.name() == gpu);
        let Some(device) = device else {
            return Err(Refusal::new(format!(
                "{} waits for the GPU {gpu}, which the node does not have now",
                claim.title()
            )));
        };
        let consumed = self.consumed(gpu, held);
        if wanted.and(consumed).fits(device.capacity()) {
            return Ok(());
        }
        Err(Refusal::new(format!(
            "{} waits for room on {}: it consumes {wanted}; of {}, {consumed} is held until the \
             claims of earlier pods are unprepared",
            claim.title(),
            device.name(),
            device.capacity()
        )))
    }
}

impl Entry {
    fn check_idle(&self) -> Result<(), Refusal> {
        if self.is_busy {
            return Err(Refusal::new(format!(
                "{} waits for another call that prepares or unprepares it",
                self.claim.title()
            )));
        }
        Ok(())
    }
}

fn described(shares: &[Share]) -> String {
    let share = |share: &Share| format!("{} of {}", share.consumed(), share.device);
    shares.iter().map(share).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{GIB, claim, pool, result};
    use serde_json::{Value, json};

    fn claimed(uid: &str, results: &[Value]) -> NodeClaim {
        let mut claim = claim(&json!(results), &Value::Null);
        claim.metadata.uid = uid.into();
        NodeClaim::of(&claim, &pool()).unwrap()
    }

    fn begin(ledger: &mut Ledger, claim: &NodeClaim) -> Result<(), String> {
        ledger.begin(claim, &pool(), &[]).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn device_is_never_oversold() {
        let mut ledger = Ledger::default();
        let (a, b) = (
            claimed("a", &[result("gpu-0", "8Gi", 1)]),
            claimed("b", &[result("gpu-0", "8Gi", 1)]),
        );
        assert_eq!(begin(&mut ledger, &a), Ok(()));
        // Also while it is being prepared.
        assert_eq!(
            begin(&mut ledger, &b).unwrap_err(),
            "claim test/c waits for room on gpu-0: it consumes 8192 MiB, weight 1; of 15104 MiB, \
             weight 20, 8192 MiB, weight 1 is held until the claims of earlier pods are unprepared"
        );
        ledger.finish("a", true);
        assert!(begin(&mut ledger, &b).is_err());
        // While it is being unprepared, and after a removal that failed.
        assert_eq!(ledger.begin_removal("a"), Ok(Some(a.clone())));
        assert!(begin(&mut ledger, &b).is_err());
        ledger.finish("a", true);
        assert!(begin(&mut ledger, &b).is_err());
        ledger.begin_removal("a").unwrap();
        ledger.finish("a", false);
        assert_eq!(begin(&mut ledger, &b), Ok(()));
    }

    #[test]
    fn shares_of_one_device_in_a_claim_count_together() {
        let mut other = result("gpu-0", "8Gi", 1);
        other["shareID"] = "t".into();
        let both = claimed("a", &[result("gpu-0", "8Gi", 1), other]);
        assert!(begin(&mut Ledger::default(), &both).is_err());
        let apart = claimed("a", &[result("gpu-0", "8Gi", 1), result("gpu-1", "8Gi", 1)]);
        assert_eq!(begin(&mut Ledger::default(), &apart), Ok(()));
    }

    #[test]
    fn weights_are_kept_within_the_device() {
        let mut ledger = Ledger::default();
        for (uid, weight, fits) in [("a", 15, true), ("b", 6, false), ("c", 5, true)] {
            let claim = claimed(uid, &[result("gpu-0", "1Gi", weight)]);
            assert_eq!(begin(&mut ledger, &claim).is_ok(), fits, "{uid}");
        }
        assert!(begin(&mut ledger, &claimed("d", &[result("gpu-0", "128Mi", 1)])).is_err());
    }

    #[test]
    fn running_container_counts_until_it_has_ended() {
        let mut ledger = Ledger::default();
        let (a, b) = (
            claimed("a", &[result("gpu-0", "8Gi", 1)]),
            claimed("b", &[result("gpu-0", "8Gi", 1)]),
        );
        let held = [Held {
            share: "a-0".into(),
            gpu: a.shares[0].gpu.clone(),
            capacity: a.shares[0].consumed(),
        }];
        assert!(ledger.begin(&b, &pool(), &held).is_err());
        assert_eq!(ledger.begin(&b, &pool(), &[]), Ok(()));
        ledger.finish("b", false);
        // It does not count twice while its claim is prepared.
        assert_eq!(ledger.begin(&a, &pool(), &[]), Ok(()));
        let gpu = &a.shares[0].gpu;
        assert_eq!(ledger.consumed(gpu, &held), Capacity { memory: 8 * GIB, weight: 1, cores: 0 });
    }

    #[test]
    fn claim_is_prepared_once_and_by_one_call() {
        let mut ledger = Ledger::default();
        let a = claimed("a", &[result("gpu-0", "8Gi", 1)]);
        begin(&mut ledger, &a).unwrap();
        for refused in [
            begin(&mut ledger, &a),
            ledger.begin_removal("a").map(drop).map_err(|_| {
                "claim test/c waits for another call that prepares or unprepares it".to_owned()
            }),
        ] {
            assert!(refused.unwrap_err().contains("waits for another call"));
        }
        ledger.finish("a", true);
        // Again, with the same allocation and with another.
        assert_eq!(begin(&mut ledger, &a), Ok(()));
        ledger.finish("a", true);
        let other = claimed("a", &[result("gpu-1", "1Gi", 1)]);
        assert_eq!(
            begin(&mut ledger, &other).unwrap_err(),
            "claim test/c waits until its earlier allocation is unprepared: 8192 MiB, weight 1 of \
             gpu-0"
        );
        assert_eq!(ledger.begin_removal("b"), Ok(None));
    }

    #[test]
    fn lost_gpu_gets_no_new_claim_and_keeps_its_own() {
        let a = claimed("a", &[result("gpu-0", "8Gi", 1)]);
        let mut ledger = Ledger::restore([a.clone()]);
        let mut gone = pool();
        gone.devices.remove(0);
        assert_eq!(ledger.begin(&a, &gone, &[]), Ok(()));
        let b = claimed("b", &[result("gpu-0", "1Gi", 1)]);
        let refusal = ledger.begin(&b, &gone, &[]).unwrap_err().to_string();
        assert!(refusal.contains("waits for the GPU GPU-00"), "{refusal}");
        assert_eq!(ledger.claims().count(), 1);
    }
}
