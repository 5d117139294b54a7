use std::slice::from_ref;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fixture::node;
use crate::names::{COUNT, Dialects, annotation};
use crate::object::Pod;

/// A pod of a test.
#[derive(Clone, Debug)]
struct Spec {
    gpus: Vec<usize>,
    units: u64,
    containers: usize,
    cpu: u64,
    priority: i32,
    app: u8,
    fixed: bool,
    terminating: bool,
    bound: bool,
}

fn spec(gpu: usize, units: u64, priority: i32) -> Spec {
    Spec {
        gpus: vec![gpu],
        units,
        containers: 1,
        cpu: 1,
        priority,
        app: 0,
        fixed: false,
        terminating: false,
        bound: true,
    }
}

fn pod_of(number: usize, spec: &Spec) -> Arc<PodRequest> {
    let parts: serde_json::Map<String, serde_json::Value> =
        spec.gpus.iter().map(|gpu| (gpu.to_string(), json!(spec.units))).collect();
    let allocation: serde_json::Map<String, serde_json::Value> =
        (0..spec.containers).map(|it| (it.to_string(), json!(parts))).collect();
    let amount = (spec.units * spec.gpus.len() as u64).to_string();
    let containers: Vec<serde_json::Value> = (0..spec.containers)
        .map(|it| {
            json!({"name": it.to_string(), "resources": {
                "limits": {"aliyun.com/gpu-mem": amount},
                "requests": {"aliyun.com/gpu-mem": amount, "cpu": spec.cpu},
            }, "ports": [{"hostPort": u32::from(spec.fixed)}]})
        })
        .collect();
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {
            "name": format!("p{number}"), "namespace": "test", "uid": format!("uid-{number}"),
            "labels": {"app": spec.app.to_string(), COUNT: spec.gpus.len().to_string()},
            "annotations": {
                annotation::ALLOCATION: json!(allocation).to_string(), annotation::NODE: "n",
            },
        },
        "spec": {"containers": containers, "priority": spec.priority},
        "status": {"phase": "Pending"},
    }))
    .unwrap();
    pod.metadata.deletion_timestamp = spec.terminating;
    if spec.bound {
        pod.spec.node_name = "n".into();
    }
    Arc::new(PodRequest::of(&pod, Dialects::default()).unwrap())
}

fn request(units: u64, gpus: usize, containers: usize) -> ResourceRequest {
    let number = 99;
    let spec = Spec { gpus: (0..gpus).collect(), containers, ..spec(0, units, 0) };
    pod_of(number, &spec).resource_request().unwrap()
}

fn budgets(allowed: &[i32]) -> Vec<Budget> {
    let budget = |(app, allowed): (usize, &i32)| {
        let selector = json!({"matchLabels": {"app": app.to_string()}});
        json!({"metadata": {"namespace": "test"}, "spec": {"selector": selector},
            "status": {"disruptionsAllowed": allowed}})
    };
    let all = allowed.iter().enumerate().map(budget);
    all.map(|budget| serde_json::from_value(budget).unwrap()).collect()
}

struct Case {
    node: NodeGpus,
    accounting: NodeAccounting,
    request: ResourceRequest,
    priority: i32,
    given: Given,
    budgets: Vec<Budget>,
}

impl Case {
    fn new(sizes: &[u64], specs: &[Spec], request: ResourceRequest, priority: i32) -> Self {
        let mib: Vec<u64> = sizes.iter().map(|size| size * 1024).collect();
        let node = NodeGpus::of(&node("n", "GiB", &mib));
        let pods: Vec<Arc<PodRequest>> =
            specs.iter().enumerate().map(|(number, spec)| pod_of(number, spec)).collect();
        let accounting = NodeAccounting::of(&node, &pods);
        assert_eq!(accounting.holders.len(), specs.len());
        Self { node, accounting, request, priority, given: Given::default(), budgets: vec![] }
    }

    fn given(mut self, pods: &[usize]) -> Self {
        self.given.uids = pods.iter().map(|pod| format!("uid-{pod}")).collect();
        self
    }

    fn choose(&self) -> Option<Victims> {
        let preemptor =
            Preemptor { priority: self.priority, request: &self.request, may_replace: true };
        choose(&self.node, &self.accounting, &preemptor, &self.given, &self.budgets)
    }

    /// The numbers of the victims in ascending order.
    fn victims(&self) -> Option<Vec<usize>> {
        let found = self.choose()?;
        let mut numbers: Vec<usize> =
            found.uids.iter().map(|uid| uid[4..].parse().unwrap()).collect();
        numbers.sort_unstable();
        Some(numbers)
    }

    /// The least cost of all sets that the rules allow: a check by other means than the search.
    fn least(&self) -> Option<Cost> {
        let pods: Vec<&Holder> = self
            .accounting
            .holders
            .iter()
            .filter(|it| it.pod.bound.is_some() && it.pod.priority < self.priority)
            .collect();
        let sets = (0..1_usize << pods.len()).map(|bits| {
            let those = |bit: usize| -> Vec<&Holder> {
                let all = pods.iter().enumerate().filter(|(at, _)| bits >> at & 1 == bit);
                all.map(|(_, holder)| *holder).collect()
            };
            (those(1), those(0))
        });
        let is_given = |holder: &&&Holder| self.given.uids.contains(&holder.pod.uid);
        let allowed = sets.filter(|(out, stay)| {
            let kept: Vec<&Holder> = stay.iter().filter(is_given).copied().collect();
            let extra: Vec<&Holder> = out.iter().filter(|it| !is_given(it)).copied().collect();
            let left = self.accounting.holders.iter();
            let left = left.filter(|it| out.iter().all(|gone| gone.pod.uid != it.pod.uid));
            let left = NodeAccounting::sum(&self.node, left);
            let fits_one = |gpu: usize| {
                let mut alone = self.node.clone();
                alone.gpus.iter_mut().for_each(|it| it.healthy = it.index as usize == gpu);
                placement::choose(&alone, &left, &self.request).is_ok()
                    && extra.iter().all(|it| it.parts(&self.node).iter().any(|it| it.0 == gpu))
            };
            let fits = match self.request.gpus {
                1 => (0..self.node.gpus.len()).any(fits_one),
                _ => placement::choose(&self.node, &left, &self.request).is_ok(),
            };
            fits && are_replaced(&kept, &extra)
        });
        let cost = |(out, _): (Vec<&Holder>, Vec<&Holder>)| {
            let alive: Vec<&Holder> =
                out.into_iter().filter(|it| !it.pod.eviction.terminating).collect();
            let over = |budget: &Budget| {
                let hits = alive.iter().filter(|it| budget.protects(&it.pod)).count() as u64;
                hits.saturating_sub(budget.allowed())
            };
            Cost {
                violations: self.budgets.iter().map(over).sum(),
                highest: alive.iter().map(|it| it.pod.priority).max(),
                count: alive.len(),
            }
        };
        allowed.map(cost).min()
    }

    fn cost(&self, found: &Victims) -> Cost {
        let out = self.accounting.holders.iter().filter(|it| found.uids.contains(&it.pod.uid));
        let alive: Vec<&Holder> = out.filter(|it| !it.pod.eviction.terminating).collect();
        Cost {
            violations: found.violations,
            highest: alive.iter().map(|it| it.pod.priority).max(),
            count: alive.len(),
        }
    }
}

/// Whether each pod has a pod of its own that covers it.
fn are_replaced(pods: &[&Holder], by: &[&Holder]) -> bool {
    let Some((first, rest)) = pods.split_first() else { return true };
    let covers = |it: &&Holder| it.pod.eviction.covers(&first.pod.eviction);
    !first.pod.eviction.fixed
        && (0..by.len()).any(|at| {
            let mut others = by.to_vec();
            let other = others.remove(at);
            covers(&other) && are_replaced(rest, &others)
        })
}

#[test]
fn victims_are_completed_until_one_gpu_fits() {
    // By the sum of the node, one pod of 7 suffices; on a GPU both must go.
    let specs = [spec(0, 7, 1), spec(0, 7, 1), spec(1, 7, 1), spec(1, 7, 5)];
    let case = Case::new(&[14, 14], &specs, request(14, 1, 1), 9).given(&[2]);
    // The victim of GPU 1 is replaced by one of GPU 0, where both pods have the lowest priority.
    assert_eq!(case.victims(), Some(vec![0, 1]));
    let case = Case::new(&[14, 14], &specs[1..], request(14, 1, 1), 9).given(&[1]);
    assert_eq!(case.victims(), Some(vec![0]), "an equal pod replaces it");
    // Without victims of the scheduler, as from one that asks about fragmented nodes.
    let case = Case::new(&[14, 14], &specs, request(14, 1, 1), 9);
    let found = case.choose().unwrap();
    assert_eq!((found.uids.len(), found.gpus), (2, vec![0]));
}

#[test]
fn victim_is_replaced_only_by_a_pod_of_its_amounts() {
    let mut specs = [spec(0, 7, 1), spec(0, 7, 1), spec(1, 7, 1)];
    let case = |specs: &[Spec]| Case::new(&[14, 14], specs, request(14, 1, 1), 9).given(&[0]);
    assert_eq!(case(&specs).victims(), Some(vec![2]));
    specs[0].cpu = 2;
    assert_eq!(case(&specs).victims(), Some(vec![0, 2]));
    specs[0].cpu = 1;
    specs[0].fixed = true;
    assert_eq!(case(&specs).victims(), Some(vec![0, 2]), "a host port");
    specs[0].fixed = false;
    let case = case(&specs);
    let preemptor = Preemptor { priority: 9, request: &case.request, may_replace: false };
    let found = choose(&case.node, &case.accounting, &preemptor, &case.given, &[]).unwrap();
    assert_eq!(found.uids.len(), 2, "the pod has an affinity");
}

#[test]
fn budgets_come_before_priorities_and_those_before_numbers() {
    let mut specs = [spec(0, 10, 1), spec(1, 10, 5)];
    specs[0].app = 1;
    let mut case = Case::new(&[10, 10], &specs, request(10, 1, 1), 9);
    assert_eq!(case.victims(), Some(vec![0]));
    case.budgets = budgets(&[1, 0]);
    assert_eq!(case.victims(), Some(vec![1]));
    assert_eq!(case.choose().unwrap().violations, 0);
    case.budgets = budgets(&[0, 0]);
    let found = case.choose().unwrap();
    assert_eq!((found.uids, found.violations), (vec!["uid-0".to_owned()], 1));
    // Three pods of a low priority rather than one of a higher.
    let specs = [spec(0, 4, 1), spec(0, 3, 1), spec(0, 3, 1), spec(1, 10, 2)];
    assert_eq!(Case::new(&[10, 10], &specs, request(10, 1, 1), 9).victims(), Some(vec![0, 1, 2]));
    // One pod rather than two of the same priority.
    let specs = [spec(0, 4, 1), spec(0, 6, 1), spec(1, 6, 1), spec(1, 2, 1), spec(1, 2, 1)];
    assert_eq!(Case::new(&[10, 10], &specs, request(6, 1, 1), 9).victims().unwrap().len(), 1);
}

#[test]
fn pod_that_is_being_deleted_costs_nothing() {
    let mut specs = [spec(0, 10, 5), spec(1, 10, 1)];
    specs[0].terminating = true;
    let mut case = Case::new(&[10, 10], &specs, request(10, 1, 1), 9);
    case.budgets = budgets(&[0]);
    let found = case.choose().unwrap();
    assert_eq!((found.uids, found.violations), (vec!["uid-0".to_owned()], 0));
}

#[test]
fn node_without_a_set_has_none() {
    let low = spec(0, 10, 1);
    let case = |specs: &[Spec], priority| Case::new(&[10], specs, request(10, 1, 1), priority);
    assert_eq!(case(from_ref(&low), 1).victims(), None, "an equal priority");
    assert_eq!(case(from_ref(&low), 0).victims(), None, "a higher priority");
    assert_eq!(case(&[Spec { bound: false, ..low.clone() }], 9).victims(), None, "a claim");
    assert_eq!(case(from_ref(&low), 1).given(&[0]).victims(), None);
    let mut closed = case(from_ref(&low), 9);
    closed.node.closed = Some(crate::refusal::Refusal::new("closed"));
    assert_eq!(closed.victims(), None);
    let larger = Case::new(&[10], &[low], request(11, 1, 1), 9);
    assert_eq!(larger.victims(), None, "more than the GPU has");
    assert_eq!(case(&[], 9).victims(), Some(vec![]), "nothing to evict");
}

#[test]
fn victims_without_gpus_stay_in_their_order() {
    let specs = [spec(0, 10, 1), spec(1, 10, 4)];
    let mut case = Case::new(&[10, 10], &specs, request(10, 1, 1), 9);
    case.given = Given { uids: ["a", "uid-1", "b"].map(str::to_owned).to_vec(), violations: 3 };
    case.budgets = budgets(&[0]);
    // Replaced by the pod of a lower priority.
    let found = case.choose().unwrap();
    assert_eq!(found.uids, ["a", "b", "uid-0"]);
    assert_eq!(found.violations, 3, "two of the scheduler's, one of ours");
}

fn specs(most: usize) -> impl Strategy<Value = Vec<Spec>> {
    let one = (
        prop_oneof![4 => (0..3_usize).prop_map(|gpu| vec![gpu]), 1 => Just(vec![0, 1]), 1 => Just(vec![1, 2])],
        1..6_u64,
        1..3_usize,
        1..3_u64,
        0..5_i32,
        0..3_u8,
        (prop::bool::weighted(0.15), prop::bool::weighted(0.15), prop::bool::weighted(0.9)),
    );
    let one = one.prop_map(|(gpus, units, containers, cpu, priority, app, flags)| Spec {
        gpus,
        units,
        containers,
        cpu,
        priority,
        app,
        fixed: flags.0,
        terminating: flags.1,
        bound: flags.2,
    });
    prop::collection::vec(one, 0..most)
}

#[test]
fn victims_are_on_gpus_that_the_pod_may_have() {
    let specs = [spec(0, 10, 1), spec(1, 10, 2)];
    let mut case = Case::new(&[10, 10], &specs, request(4, 1, 1), 3);
    assert_eq!(case.victims(), Some(vec![0]));
    let rule = [("nvidia.com/use-gpuuuid".to_owned(), "GPU-n-1".to_owned())];
    case.request.rules = crate::rules::PlacementRules::of(&rule.into()).unwrap();
    assert_eq!(case.victims(), Some(vec![1]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The search finds what all subsets give.
    #[test]
    fn victims_are_the_least_of_all_sets(
        specs in specs(8),
        wanted in (1..8_u64, 1..3_usize, 1..3_usize, 1..5_i32),
        chosen in any::<u8>(),
        allowed in prop::collection::vec(0..3_i32, 3),
    ) {
        let (units, gpus, containers, priority) = wanted;
        let given: Vec<usize> = (0..specs.len())
            .filter(|it| chosen >> it & 1 == 1 && specs[*it].priority < priority && specs[*it].bound)
            .collect();
        let mut case =
            Case::new(&[10, 12, 10], &specs, request(units, gpus, containers), priority).given(&given);
        case.budgets = budgets(&allowed);
        let found = case.choose();
        prop_assert_eq!(found.as_ref().map(|found| case.cost(found)), case.least());
        if let Some(found) = found {
            // Lower priorities alone, in descending order.
            let priority_of = |uid: &String| specs[uid[4..].parse::<usize>().unwrap()].priority;
            let priorities: Vec<i32> = found.uids.iter().map(priority_of).collect();
            prop_assert!(priorities.iter().all(|it| *it < priority));
            prop_assert!(priorities.is_sorted_by(|one, other| one >= other));
            let left = case.accounting.holders.iter();
            let left = left.filter(|it| !found.uids.contains(&it.pod.uid));
            let left = NodeAccounting::sum(&case.node, left);
            prop_assert_eq!(placement::choose(&case.node, &left, &case.request), Ok(found.gpus));
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Beyond what the search can try, the result still fits.
    #[test]
    fn victims_of_a_crowded_node_suffice(specs in specs(60), units in 1..10_u64, gpus in 1..4_usize) {
        let case = Case::new(&[90, 90, 90], &specs, request(units * 9, gpus, 1), 3);
        let all_low = case.accounting.holders.iter().filter(|it| {
            it.pod.bound.is_none() || it.pod.priority >= 3
        });
        let emptiest = NodeAccounting::sum(&case.node, all_low);
        let can_fit = placement::choose(&case.node, &emptiest, &case.request).is_ok();
        prop_assert_eq!(case.choose().is_some(), can_fit);
    }
}
