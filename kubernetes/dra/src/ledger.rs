//! The node's ledger: which claims are prepared, and whether there is room for one more.
//!
//! It is pure. [`crate::prepared`] writes the files between [`Ledger::begin`] and
//! [`Ledger::finish`]; a claim is busy meanwhile, and counts.

use std::collections::{BTreeMap, BTreeSet};

use cgpu_kubernetes_core::refusal::Refusal;
use cgpu_shm::uuid::Uuid;

use crate::allocation::{NodeClaim, Share};
use crate::capacity::Capacity;
use crate::device::Pool;
use crate::owner::Program;

/// What containers with the same shares hold of a device while they run, whether their claims are
/// prepared or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Names of their shares, also of those of other devices.
    pub shares: Vec<String>,
    /// The device.
    pub gpu: Uuid,
    /// What they hold of it.
    pub capacity: Capacity,
}

/// What is known of a claim's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// It is in place, and survives a failure of power.
    Durably,
    /// It may be in place.
    Perhaps,
    /// There is none.
    No,
}

/// A claim and what is being done with it.
#[derive(Clone, Debug)]
struct Entry {
    claim: NodeClaim,
    recorded: Recorded,
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
        let entry = |claim: NodeClaim| {
            let recorded = Recorded::Durably;
            (claim.uid.clone(), Entry { claim, recorded, is_busy: false })
        };
        Self { entries: claims.into_iter().map(entry).collect() }
    }

    /// Reserves what a claim consumes, and makes it busy. A claim that is prepared already consumes
    /// nothing more. Returns what is known of its record.
    ///
    /// # Errors
    /// A device lacks room, the claim is busy, or it has another allocation. All may be over when
    /// the kubelet tries again.
    pub fn begin(
        &mut self,
        claim: &NodeClaim,
        pool: &Pool,
        held: &[Held],
    ) -> Result<Recorded, Refusal> {
        if let Some(entry) = self.entries.get_mut(&claim.uid) {
            entry.check_idle()?;
            if entry.claim.allocated() != claim.allocated() {
                return Err(Refusal::new(format!(
                    "{} waits until its earlier allocation is unprepared: {}",
                    claim.title(),
                    described(&entry.claim.shares)
                )));
            }
            entry.is_busy = true;
            return Ok(entry.recorded);
        }
        let mut wanted: BTreeMap<&str, Capacity> = BTreeMap::new();
        for share in &claim.shares {
            let sum = wanted.entry(&share.gpu).or_default();
            *sum = sum.and(share.consumed());
        }
        for (gpu, wanted) in wanted {
            self.check_room(claim, gpu, wanted, pool, held)?;
        }
        let (claim, recorded) = (claim.clone(), Recorded::No);
        self.entries.insert(claim.uid.clone(), Entry { claim, recorded, is_busy: true });
        Ok(recorded)
    }

    /// Makes a claim busy that is to be resized to this form of it.
    ///
    /// # Errors
    /// It is busy, or not prepared with this allocation.
    pub fn begin_resize(&mut self, claim: &NodeClaim) -> Result<(), Refusal> {
        let entry = self.entries.get_mut(&claim.uid);
        let same = entry.filter(|entry| entry.claim.allocated() == claim.allocated());
        let entry = same
            .ok_or_else(|| Refusal::new(format!("{} is not prepared any more", claim.title())))?;
        entry.check_idle()?;
        entry.is_busy = true;
        Ok(())
    }

    /// Ends what [`Self::begin_resize`] has begun; the claim has this form from now on.
    pub fn finish_resize(&mut self, claim: &NodeClaim) {
        let recorded = Recorded::Durably;
        let entry = Entry { claim: claim.clone(), recorded, is_busy: false };
        self.entries.insert(claim.uid.clone(), entry);
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

    /// Ends what [`Self::begin`] or [`Self::begin_removal`] has begun. A claim without a record is
    /// forgotten.
    pub fn finish(&mut self, uid: &str, recorded: Recorded) {
        if recorded == Recorded::No {
            self.entries.remove(uid);
        } else if let Some(entry) = self.entries.get_mut(uid) {
            (entry.recorded, entry.is_busy) = (recorded, false);
        }
    }

    /// Returns the claim of this uid, if it is prepared or busy.
    #[must_use]
    pub fn claim(&self, uid: &str) -> Option<&NodeClaim> {
        self.entries.get(uid).map(|entry| &entry.claim)
    }

    /// Returns all claims, busy ones included.
    pub fn claims(&self) -> impl Iterator<Item = &NodeClaim> {
        self.entries.values().map(|entry| &entry.claim)
    }

    /// Returns all shares of a device, by the driver's name.
    fn shares<'a>(&'a self, gpu: &'a str) -> impl Iterator<Item = &'a Share> {
        self.claims().flat_map(|claim| &claim.shares).filter(move |share| share.gpu == gpu)
    }

    /// Returns the names of all shares.
    #[must_use]
    pub fn share_names(&self) -> BTreeSet<String> {
        let shares = self.claims().flat_map(|claim| &claim.shares);
        shares.map(|share| share.name.clone()).collect()
    }

    /// Returns what is consumed of a device by claims, and what containers hold beyond that.
    #[must_use]
    pub fn consumed(&self, gpu: &str, held: &[Held]) -> (Capacity, Capacity) {
        let sum = |shares: &mut dyn Iterator<Item = &Share>| {
            shares.map(Share::consumed).fold(Capacity::NONE, Capacity::and)
        };
        let beyond = |held: &Held| {
            let mut own = self.shares(gpu).filter(|share| held.shares.contains(&share.name));
            held.capacity.without(sum(&mut own))
        };
        let is_here = |held: &&Held| gpu.parse().is_ok_and(|gpu: Uuid| gpu == held.gpu);
        let held = held.iter().filter(is_here).map(beyond).fold(Capacity::NONE, Capacity::and);
        (sum(&mut self.shares(gpu)), held)
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
        if let Some(owner) = device.other_owner.as_ref().filter(|_| wanted != Capacity::NONE) {
            return Err(Refusal::new(format!(
                "{} is refused: {} is given out by {}, too; {}",
                claim.title(),
                device.name(),
                owner.title(),
                owner.remedy(Program::Driver)
            )));
        }
        let (consumed, running) = self.consumed(gpu, held);
        if wanted.and(consumed).and(running).fits(device.capacity()) {
            return Ok(());
        }
        let claims = "until the claims of earlier pods are unprepared";
        let containers = "by containers that still run, whose claims are unprepared";
        let held = match (consumed, running) {
            (Capacity::NONE, running) => format!("{running} is held {containers}"),
            (consumed, Capacity::NONE) => format!("{consumed} is held {claims}"),
            (consumed, running) => {
                format!("{consumed} is held {claims}, and {running} {containers}")
            }
        };
        Err(Refusal::new(format!(
            "{} waits for room on {}: it consumes {wanted}; of {}, {held}",
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
    use crate::owner::OtherOwner;
    use serde_json::{Value, json};

    fn claimed(uid: &str, results: &[Value]) -> NodeClaim {
        let mut claim = claim(&json!(results), &Value::Null);
        claim.metadata.uid = uid.into();
        NodeClaim::of(&claim, &pool()).unwrap()
    }

    fn begin(ledger: &mut Ledger, claim: &NodeClaim) -> Result<(), String> {
        ledger.begin(claim, &pool(), &[]).map(drop).map_err(|refusal| refusal.to_string())
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
        ledger.finish("a", Recorded::Durably);
        assert!(begin(&mut ledger, &b).is_err());
        // While it is being unprepared, and after a removal that failed.
        assert_eq!(ledger.begin_removal("a"), Ok(Some(a.clone())));
        assert!(begin(&mut ledger, &b).is_err());
        ledger.finish("a", Recorded::Perhaps);
        assert!(begin(&mut ledger, &b).is_err());
        ledger.begin_removal("a").unwrap();
        ledger.finish("a", Recorded::No);
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
        // It has another share, too, of a claim that stays.
        let both = a.shares[0].consumed().and(Capacity { memory: GIB, weight: 2, cores: 0 });
        let held = [Held {
            shares: vec!["a-0".into(), "c-0".into()],
            gpu: a.shares[0].gpu.parse().unwrap(),
            capacity: both,
        }];
        assert_eq!(
            ledger.begin(&b, &pool(), &held).unwrap_err().to_string(),
            "claim test/c waits for room on gpu-0: it consumes 8192 MiB, weight 1; of 15104 MiB, \
             weight 20, 9216 MiB, weight 3 is held by containers that still run, whose claims are \
             unprepared"
        );
        let c = claimed("c", &[result("gpu-0", "1Gi", 2)]);
        assert_eq!(ledger.begin(&c, &pool(), &held), Ok(Recorded::No));
        let gpu = &a.shares[0].gpu;
        assert_eq!(ledger.consumed(gpu, &held), (c.shares[0].consumed(), a.shares[0].consumed()));
        let refusal = ledger.begin(&b, &pool(), &held).unwrap_err().to_string();
        assert!(refusal.contains("unprepared, and 8192 MiB, weight 1 by containers"), "{refusal}");
        // The other device has room.
        let other = claimed("d", &[result("gpu-1", "8Gi", 1)]);
        assert_eq!(ledger.begin(&other, &pool(), &held), Ok(Recorded::No));
        assert_eq!(ledger.begin(&b, &pool(), &[]), Ok(Recorded::No));
        ledger.finish("b", Recorded::No);
        // It does not count twice while its claim is prepared.
        assert_eq!(ledger.begin(&a, &pool(), &[]), Ok(Recorded::No));
        assert_eq!(ledger.consumed(gpu, &held), (both, Capacity::NONE));
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
        ledger.finish("a", Recorded::Durably);
        // Again, with the same allocation and with another.
        for recorded in [Recorded::Durably, Recorded::Perhaps] {
            ledger.entries.get_mut("a").unwrap().recorded = recorded;
            assert_eq!(ledger.begin(&a, &pool(), &[]), Ok(recorded));
            ledger.finish("a", Recorded::Durably);
        }
        let other = claimed("a", &[result("gpu-1", "1Gi", 1)]);
        assert_eq!(
            begin(&mut ledger, &other).unwrap_err(),
            "claim test/c waits until its earlier allocation is unprepared: 8192 MiB, weight 1 of \
             gpu-0"
        );
        assert_eq!(ledger.begin_removal("b"), Ok(None));
    }

    #[test]
    fn gpu_of_another_owner_gets_no_new_claim_and_keeps_its_own() {
        let a = claimed("a", &[result("gpu-0", "8Gi", 1)]);
        let mut ledger = Ledger::restore([a.clone()]);
        let mut owned = pool();
        owned.devices[0].other_owner = Some(OtherOwner::Plugin("nvidia.com/gpu".into()));
        ledger.begin(&a, &owned, &[]).unwrap();
        let b = claimed("b", &[result("gpu-1", "1Gi", 1), result("gpu-0", "1Gi", 1)]);
        assert_eq!(
            ledger.begin(&b, &owned, &[]).unwrap_err().to_string(),
            "claim test/c is refused: gpu-0 is given out by the device plugin of nvidia.com/gpu, \
             too; end that plugin on this node (GPU Operator: label the node \
             nvidia.com/gpu.deploy.device-plugin=false, or set devicePlugin.enabled=false); if it \
             has other GPUs, set dra.arguments={--disjoint-resources=nvidia.com/gpu} in cgpu's chart"
        );
        let mut admin = result("gpu-0", "1Gi", 1);
        admin["adminAccess"] = true.into();
        ledger.begin(&claimed("c", &[admin]), &owned, &[]).unwrap();
    }

    #[test]
    fn lost_gpu_gets_no_new_claim_and_keeps_its_own() {
        let a = claimed("a", &[result("gpu-0", "8Gi", 1)]);
        let mut ledger = Ledger::restore([a.clone()]);
        let mut gone = pool();
        gone.devices.remove(0);
        assert_eq!(ledger.begin(&a, &gone, &[]), Ok(Recorded::Durably));
        let b = claimed("b", &[result("gpu-0", "1Gi", 1)]);
        let refusal = ledger.begin(&b, &gone, &[]).unwrap_err().to_string();
        assert!(refusal.contains("waits for the GPU GPU-00"), "{refusal}");
        assert_eq!(ledger.claims().count(), 1);
    }
}
