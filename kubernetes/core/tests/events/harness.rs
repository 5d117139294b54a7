//! A random run: one API server, two extenders, and everything that can go wrong.

use std::borrow::Cow;

use cgpu_kubernetes_core::claim::CLAIM_TIMEOUT_NANOS;
use cgpu_kubernetes_core::extender::{self, Candidates};
use cgpu_kubernetes_core::names::Dialects;
use cgpu_kubernetes_core::object::Pod;
use cgpu_kubernetes_core::pod_request::PodRequest;
use fastrand::Rng;
use serde_json::json;

use crate::api::{Api, Event, corrupt, repair};
use crate::extender::{Check, Extender};
use crate::objects::{container, node, pod};
use crate::plugin;
use crate::scheduler::Permit;

pub(crate) const NODES: usize = 50;

pub(crate) struct Harness {
    pub(crate) api: Api,
    pub(crate) extenders: Vec<Extender>,
    pub(crate) random: Rng,
    pub(crate) now: u64,
    pub(crate) created: u64,
    pub(crate) check: Check,
    pub(crate) permit: Permit,
}

impl Harness {
    pub(crate) fn new(seed: u64, check: Check, nodes: usize) -> Self {
        let mut random = Rng::with_seed(seed);
        let mut api = Api::default();
        for number in 0..nodes {
            let name = format!("node-{number:02}");
            let mib: Vec<u64> = (0..random.usize(1..=8))
                .map(|_| [15109, 15109, 23028, 8192][random.usize(0..4)])
                .collect();
            api.set_node(node(&name, &mib, &[]));
            api.sizes.insert(name, mib.iter().map(|mib| mib / 1024).collect());
        }
        let extenders = vec![Extender::new(&api), Extender::new(&api)];
        Self {
            api,
            extenders,
            random,
            now: 1_000_000_000_000,
            created: 0,
            check,
            permit: Permit::default(),
        }
    }

    pub(crate) fn step(&mut self) {
        self.now += self.random.u64(0..200_000_000);
        self.api.compact();
        let which = self.random.usize(0..self.extenders.len());
        match self.random.u32(0..1000) {
            0..170 => self.create(),
            170..260 => self.of_any(|api, uid, _| api.delete(uid)),
            260..300 => self.of_any(|api, uid, random| {
                let phase = ["Succeeded", "Failed"][random.usize(0..2)];
                api.finish(uid, phase);
            }),
            300..400 => self.of_any(|api, uid, _| {
                // A kubelet starts bound pods with valid annotations.
                if api.taken.contains_key(uid) && !api.corrupted.contains_key(uid) {
                    api.write("started", uid, |pod| pod.status.phase = "Running".into());
                }
            }),
            400..410 => self.of_any(corrupt),
            410..425 => self.of_any(|api, uid, _| repair(api, uid)),
            425..428 => self.change_node(),
            428..430 => self.of_any(plugin::shrink),
            430..433 => {
                self.api.count("restarts of an extender");
                self.extenders[which] = Extender::new(&self.api);
            }
            // The bindings in progress are not continued.
            433..435 => {
                self.api.count("restarts of a scheduler");
                self.extenders[which].attempts.clear();
            }
            435..440 => self.extenders[which].list(&self.api),
            440..450 => self.extenders[which].sweep(&mut self.api, self.now),
            450..650 => {
                let waiting = self.api.waiting();
                if let Some(uid) = self.random.choice(&waiting) {
                    let is_received = self.random.u32(0..100) > 0;
                    self.extenders[which].place(&mut self.api, uid, self.now, is_received);
                }
            }
            650..850 => self.extenders[which].advance(&mut self.api, &mut self.random, self.check),
            850..880 => self.of_any(plugin::grow),
            880..910 => {
                let check = self.check;
                let resizing: Vec<String> = self.api.resizing.keys().cloned().collect();
                if let Some(uid) = self.random.choice(&resizing) {
                    plugin::confirm(&mut self.api, uid, check);
                }
            }
            _ => self.extenders[which].watch(&mut self.api, &mut self.random),
        }
    }

    pub(crate) fn of_any(&mut self, act: impl FnOnce(&mut Api, &str, &mut Rng)) {
        let index = self.random.usize(0..self.api.pods.len().max(1));
        if let Some(uid) = self.api.pods.keys().nth(index).cloned() {
            act(&mut self.api, &uid, &mut self.random);
        }
    }

    pub(crate) fn create(&mut self) {
        self.created += 1;
        // Keep the cluster nearly full, so that pods compete.
        if self.api.pods.len() > 700 {
            return self.of_any(|api, uid, _| api.delete(uid));
        }
        let (random, number) = (&mut self.random, self.created);
        let units = random.u64(1..9);
        let mut pod = pod(number, &json!([container("main", &json!(units))]));
        match random.u32(0..20) {
            0..3 => {
                let gpus = random.u64(2..5);
                pod = self::pod(
                    number,
                    &json!([container("main", &json!(units.div_ceil(2) * gpus))]),
                );
                pod.metadata.labels =
                    [("aliyun.com/gpu-count".to_owned(), gpus.to_string())].into();
            }
            3..6 => {
                pod = self::pod(
                    number,
                    &json!([container("one", &json!(units)), container("two", &json!(2))]),
                )
            }
            6 => {
                pod = self::pod(
                    number,
                    &json!([container(
                        "main",
                        &json!(["-3", "1.5", "99E", "x"][random.usize(0..4)])
                    )]),
                )
            }
            7 => {
                pod.spec.init_containers =
                    serde_json::from_value(json!([container("init", &json!(1))])).unwrap()
            }
            _ => {}
        }
        self.add(pod);
    }

    pub(crate) fn add(&mut self, pod: Pod) {
        let uid = pod.metadata.uid.clone();
        self.api.pods.insert(uid.clone(), pod);
        self.api.write("created", &uid, |_| ());
    }

    /// Removes a random node, or adds it with other healthy GPUs.
    pub(crate) fn change_node(&mut self) {
        let name = format!("node-{:02}", self.random.usize(0..self.api.sizes.len()));
        self.api.count("changes of nodes");
        if self.random.u32(0..4) == 0 && self.api.nodes.remove(&name).is_some() {
            self.api.events.push(Event::NodeDeleted(name));
            return;
        }
        let mib: Vec<u64> = self.api.sizes[&name].iter().map(|units| units * 1024).collect();
        let unhealthy: Vec<usize> = (0..mib.len()).filter(|_| self.random.u32(0..4) == 0).collect();
        self.api.set_node(node(&name, &mib, &unhealthy));
    }

    /// Repairs annotations and nodes, lets both extenders place what fits, and lists.
    pub(crate) fn finish(&mut self) {
        for uid in self.api.corrupted.keys().cloned().collect::<Vec<_>>() {
            repair(&mut self.api, &uid);
        }
        for name in self.api.sizes.keys().cloned().collect::<Vec<_>>() {
            let mib: Vec<u64> = self.api.sizes[&name].iter().map(|units| units * 1024).collect();
            self.api.set_node(node(&name, &mib, &[]));
        }
        for uid in self.api.resizing.keys().cloned().collect::<Vec<_>>() {
            plugin::confirm(&mut self.api, &uid, self.check);
        }
        self.end_schedule();
        for round in 0..4 {
            self.now += 2 * CLAIM_TIMEOUT_NANOS;
            for which in 0..self.extenders.len() {
                self.extenders[which].list(&self.api);
                self.extenders[which].sweep(&mut self.api, self.now);
                if round > 0 {
                    self.place_all(which);
                }
            }
        }
        self.extenders.iter_mut().for_each(|extender| extender.list(&self.api));
    }

    pub(crate) fn place_all(&mut self, which: usize) {
        for uid in self.api.waiting() {
            self.extenders[which].place(&mut self.api, &uid, self.now, true);
            while !self.extenders[which].attempts.is_empty() {
                self.extenders[which].advance(&mut self.api, &mut self.random, self.check);
            }
            self.extenders[which].catch_up(&self.api);
        }
    }

    pub(crate) fn check_idle(&self) {
        let taken: u64 = self.api.taken.values().flat_map(|(_, gpus)| gpus.values()).sum();
        let dialects = Dialects::default();
        for extender in &self.extenders {
            let cluster = &extender.cluster;
            assert!(cluster.is_valid());
            let held: u64 = cluster
                .nodes()
                .flat_map(|(_, accounting)| &accounting.held)
                .map(|share| share.units)
                .sum();
            assert_eq!(held, taken, "what the accounting says and what was taken");
            for (node, accounting) in cluster.nodes() {
                assert_eq!(accounting.overfull(node).count(), 0);
            }
            assert_eq!(cluster.stale(u64::MAX).count(), 0, "a claim is left");
            // Nothing is kept for a pod of a gang, nor for a nominated one.
            let mut least =
                PodRequest::of(&pod(0, &json!([container("main", &json!(1))])), dialects)
                    .expect("a request");
            least.priority = i32::MIN;
            for (node, _) in cluster.nodes() {
                let (_, accounting) = cluster.room(&least, &node.name).expect("it exists");
                assert!(matches!(accounting, Cow::Borrowed(_)), "room of {} is kept", node.name);
            }
        }
        // A pod that is still pending fits nowhere.
        let cluster = &self.extenders[0].cluster;
        let names: Vec<String> = self.api.nodes.keys().cloned().collect();
        for uid in self.api.waiting() {
            let pod = self.api.pods[&uid].clone();
            let requested =
                Candidates { pod: Some(pod), nodes: None, node_names: Some(names.clone()) };
            assert_eq!(
                extender::filter(cluster, &requested).node_names.unwrap(),
                [""; 0],
                "{uid} fits and waits"
            );
        }
    }
}
