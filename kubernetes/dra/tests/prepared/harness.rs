//! The model: what was answered, and what each file must say for it.

use std::collections::{BTreeMap, BTreeSet};

use cgpu_client::inventory::HostDevice;
use cgpu_kubernetes_dra::allocation::NodeClaim;
use cgpu_kubernetes_dra::capacity::Capacity;
use cgpu_kubernetes_dra::cdi::Cdi;
use cgpu_kubernetes_dra::claim::ResourceClaim;
use cgpu_kubernetes_dra::device::{Details, Device, Mode, Pool};
use cgpu_kubernetes_dra::prepared::PreparedClaims;
use cgpu_kubernetes_dra::record;
use cgpu_kubernetes_dra::resize;
use cgpu_kubernetes_dra::store::Kind;
use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;
use serde_json::{Value, json};

use crate::stores::{Fault, MemoryStore};

/// Two GPUs of 15104 MiB, which 20 weights share.
pub(crate) fn pool() -> Pool {
    let device = |index: u8| Device {
        host: HostDevice {
            uuid: Uuid([index; 16]),
            id: u32::from(index).into(),
            total: Bytes(15109 << 20),
            is_partitioned: false,
        },
        mode: Mode::Weight,
        max_weight: 20,
        healthy: true,
        other_owner: None,
        details: Details::default(),
    };
    Pool { node: "n1".into(), devices: [0, 1].map(device).into() }
}

pub(crate) fn cdi() -> Cdi {
    Cdi { runtime: "/usr/bin/cgpu-runtime".into(), config: None, vendor_kind: None }
}

/// Claim `u<at>` with one of four allocations.
pub(crate) fn claim(at: usize, variant: usize) -> NodeClaim {
    let shares: &[(&str, &str, u32)] = match variant {
        0 => &[("gpu-0", "4Gi", 1)],
        1 => &[("gpu-0", "10Gi", 3)],
        2 => &[("gpu-1", "1Gi", 12)],
        _ => &[("gpu-0", "2Gi", 2), ("gpu-1", "8Gi", 2)],
    };
    let result = |(at, (device, memory, weight)): (usize, &(&str, &str, u32))| {
        json!({"request": "main", "driver": "gpu.cgpu.dev", "pool": "n1", "device": device,
            "shareID": at.to_string(),
            "consumedCapacity": {"memory": memory, "weight": weight.to_string()}})
    };
    let results: Vec<Value> = shares.iter().enumerate().map(result).collect();
    let claim: ResourceClaim = serde_json::from_value(json!({
        "metadata": {"name": format!("c{at}"), "namespace": "test", "uid": format!("u{at}")},
        "status": {"allocation": {"devices": {"results": results}}},
    }))
    .unwrap();
    NodeClaim::of(&claim, &pool()).unwrap()
}

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Prepare {
        claim: usize,
        variant: usize,
        fault: Option<Fault>,
    },
    Unprepare {
        claim: usize,
        fault: Option<Fault>,
    },
    /// To one of four sizes.
    Resize {
        claim: usize,
        size: usize,
        fault: Option<Fault>,
    },
    Restart {
        reboot: bool,
    },
}

pub(crate) struct Harness {
    store: MemoryStore,
    claims: PreparedClaims<MemoryStore>,
    /// Whether a kill takes the node with it.
    reboots: bool,
    /// Answered as prepared.
    prepared: BTreeMap<String, NodeClaim>,
    /// A call was killed or has failed: they may be prepared, wholly or in part, or not.
    doubtful: BTreeMap<String, NodeClaim>,
    /// A resize was killed: the claim has this form, or the earlier one.
    resizing: Option<NodeClaim>,
}

impl Harness {
    pub(crate) fn new(reboots: bool) -> Self {
        let store = MemoryStore::default();
        let claims = PreparedClaims::open(store.clone(), cdi()).unwrap();
        let (prepared, doubtful) = (BTreeMap::new(), BTreeMap::new());
        Self { store, claims, reboots, prepared, doubtful, resizing: None }
    }

    pub(crate) fn run(&mut self, operation: &Operation) {
        self.run_killed(operation);
    }

    /// Runs an operation, and a restart if it was killed; returns whether it was.
    pub(crate) fn run_killed(&mut self, operation: &Operation) -> bool {
        let fault = match operation {
            Operation::Prepare { fault, .. }
            | Operation::Unprepare { fault, .. }
            | Operation::Resize { fault, .. } => *fault,
            Operation::Restart { reboot } => {
                self.restart(*reboot);
                return false;
            }
        };
        self.store.set(fault);
        match operation {
            Operation::Prepare { claim: at, variant, .. } => self.prepare(&claim(*at, *variant)),
            Operation::Unprepare { claim, .. } => self.unprepare(&format!("u{claim}")),
            Operation::Resize { claim, size, .. } => self.resize(&format!("u{claim}"), *size),
            Operation::Restart { .. } => {}
        }
        let was_killed = self.store.was_hit() && matches!(fault, Some(Fault::Kill(_)));
        self.store.set(None);
        self.check_records_exist();
        if was_killed {
            self.restart(self.reboots);
        }
        self.check();
        was_killed
    }

    fn prepare(&mut self, claim: &NodeClaim) {
        let known = self.ledger();
        let may_be_prepared = match known.get(&claim.uid) {
            Some(other) => other.allocated() == *claim,
            None => fits(known.values().chain([claim])),
        };
        // What was resized stays so.
        let claim = known.get(&claim.uid).filter(|_| may_be_prepared).unwrap_or(claim);
        let done = self.claims.prepare(claim, &pool(), &[]);
        if self.store.was_hit() {
            // It may have been refused before the fault. The fault itself may be in a last check.
            if !self.prepared.contains_key(&claim.uid) && may_be_prepared {
                self.doubtful.insert(claim.uid.clone(), claim.clone());
            }
        } else {
            assert_eq!(done.is_ok(), may_be_prepared, "{done:?}");
        }
        if done.is_ok() {
            self.doubtful.remove(&claim.uid);
            self.prepared.insert(claim.uid.clone(), claim.clone());
        }
    }

    fn resize(&mut self, uid: &str, size: usize) {
        let annotation =
            [None, Some("memory=512Mi"), Some("weight=1"), Some("memory=1000Mi,weight=1")][size];
        let Some(claim) = self.prepared.get(uid) else { return };
        let claim = resize::resized(claim, annotation).unwrap();
        if self.claims.resize(&claim).is_err() {
            assert!(self.store.was_hit());
            if self.claims.resize(&claim).is_err() {
                self.resizing = Some(claim);
                return;
            }
        }
        self.prepared.insert(uid.to_owned(), claim);
    }

    fn unprepare(&mut self, uid: &str) {
        let done = self.claims.unprepare(uid);
        let known = self.prepared.remove(uid);
        if done.is_ok() {
            self.doubtful.remove(uid);
            for kind in Kind::ALL {
                let is_of = |name: &String| name == uid || name.starts_with(&format!("{uid}-"));
                assert!(!self.store.listed(kind).iter().any(is_of), "{kind:?} of {uid} is left");
            }
        } else {
            assert!(self.store.was_hit(), "{done:?}");
            self.doubtful.extend(known.map(|claim| (uid.to_owned(), claim)));
        }
    }

    fn restart(&mut self, reboot: bool) {
        self.store.restart(reboot);
        self.claims = PreparedClaims::open(self.store.clone(), cdi()).unwrap();
        let (known, records) = (self.ledger(), self.records());
        assert_eq!(known, records);
        if let Some(claim) =
            self.resizing.take().filter(|claim| known.get(&claim.uid) == Some(claim))
        {
            self.prepared.insert(claim.uid.clone(), claim);
        }
        // No other file is there, and each of these is complete.
        known.values().for_each(|claim| self.check_files(claim));
        let names = |kind| self.store.listed(kind).into_iter().collect::<BTreeSet<String>>();
        let shares = known.values().flat_map(|claim| &claim.shares);
        assert_eq!(names(Kind::Limits), shares.map(|share| share.name.clone()).collect());
        assert_eq!(names(Kind::Cdi), known.keys().cloned().collect());
        let files: usize = Kind::ALL.into_iter().map(|kind| names(kind).len()).sum();
        assert_eq!(self.store.count(), files, "an unfinished file is left");
        self.check();
    }

    /// Checks what holds at any time.
    fn check(&mut self) {
        let (known, records) = (self.ledger(), self.records());
        for (uid, claim) in &self.prepared {
            assert_eq!(records.get(uid), Some(claim), "{uid} is lost");
            self.check_files(claim);
        }
        self.doubtful.retain(|uid, _| known.contains_key(uid));
        for (uid, claim) in &known {
            let answered = self.prepared.get(uid).or_else(|| self.doubtful.get(uid));
            assert_eq!(answered, Some(claim), "{uid} was not asked for");
        }
        assert!(records.iter().all(|(uid, claim)| known.get(uid) == Some(claim)));
        assert!(fits(known.values()), "oversold: {known:?}");
    }

    /// A claim has a record before anything else of it exists, and until nothing else of it exists.
    fn check_records_exist(&self) {
        for kind in [Kind::Limits, Kind::Cdi] {
            for name in self.store.listed(kind) {
                let uid = name.split('-').next().unwrap();
                assert!(self.store.text(Kind::Record, uid).is_some(), "{name} has no record");
            }
        }
    }

    fn check_files(&self, claim: &NodeClaim) {
        for share in &claim.shares {
            let limits = share.limits().unwrap();
            assert_eq!(self.store.text(Kind::Limits, &share.name), limits, "{}", share.name);
        }
        let specification = cdi().specification(claim);
        assert_eq!(self.store.text(Kind::Cdi, &claim.uid), specification, "{}", claim.uid);
    }

    fn ledger(&self) -> BTreeMap<String, NodeClaim> {
        let ledger = self.claims.ledger();
        ledger.claims().map(|claim| (claim.uid.clone(), claim.clone())).collect()
    }

    fn records(&self) -> BTreeMap<String, NodeClaim> {
        let read = |uid: String| {
            let text = self.store.text(Kind::Record, &uid).unwrap();
            let claim = record::read(&uid, &text).unwrap();
            (uid, claim)
        };
        self.store.listed(Kind::Record).into_iter().map(read).collect()
    }
}

/// Adds up apart from the ledger.
fn fits<'a>(claims: impl Iterator<Item = &'a NodeClaim>) -> bool {
    let mut sums: BTreeMap<&str, (u64, u32)> = BTreeMap::new();
    for share in claims.flat_map(|claim| &claim.shares) {
        let Capacity { memory, weight, .. } = share.consumed();
        let sum = sums.entry(&share.device).or_default();
        *sum = (sum.0 + memory, sum.1 + weight);
    }
    sums.values().all(|(memory, weight)| *memory <= 15104 << 20 && *weight <= 20)
}
