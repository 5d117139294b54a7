use super::*;
use std::sync::Arc;

use proptest::prelude::*;

use crate::claim;
use crate::container_request::{Memory, units_in_all};
use crate::fixture::{node, pod, sharing, texts};
use crate::gpus::Gpu;
use crate::names::{Dialects, annotation};
use crate::object::Pod;
use crate::pod_request::PodRequest;
use crate::resource_request::Need;
use crate::rules::PlacementRules;
use crate::share::{Role, Share};

fn gpus(sizes: &[u64]) -> NodeGpus {
    let mib: Vec<u64> = sizes.iter().map(|size| size * 1024).collect();
    NodeGpus::of(&node("n", "GiB", &mib))
}

fn accounting(node: &NodeGpus, held: &[u64]) -> NodeAccounting {
    let held = held
        .iter()
        .map(|units| Share { units: *units, percent: 0, containers: u32::from(*units > 0) })
        .collect();
    assert_eq!(node.gpus.len(), Vec::len(&held));
    NodeAccounting { held, holders: vec![] }
}

fn request(units: u64, gpus: usize) -> ResourceRequest {
    let need =
        Need { index: 0, role: Role::Container, gpus, memory: Memory::Units(units), percent: 0 };
    ResourceRequest { gpus, needs: vec![need], rules: PlacementRules::default(), notes: vec![] }
}

fn refused(sizes: &[u64], held: &[u64], units: u64, number: usize) -> (String, bool) {
    let node = gpus(sizes);
    let reason = choose(&node, &accounting(&node, held), &request(units, number)).unwrap_err();
    (reason.text, reason.resolvable)
}

#[test]
fn binpack_chooses_the_fullest_gpu_and_spread_the_emptiest() {
    let mut node = gpus(&[14, 14, 14, 14]);
    let accounting = accounting(&node, &[4, 8, 0, 8]);
    assert_eq!(choose(&node, &accounting, &request(6, 1)), Ok(vec![1]));
    assert_eq!(choose(&node, &accounting, &request(7, 1)), Ok(vec![0]));
    assert_eq!(choose(&node, &accounting, &request(2, 3)), Ok(vec![0, 1, 3]));
    node.placement = Placement::Spread;
    assert_eq!(choose(&node, &accounting, &request(6, 1)), Ok(vec![2]));
    assert_eq!(choose(&node, &accounting, &request(2, 2)), Ok(vec![0, 2]));
}

#[test]
fn reason_counts_the_gpus_by_what_they_lack() {
    for (sizes, held, units, gpus, text, resolvable) in [
        (
            &[14; 3][..],
            &[10, 11, 12][..],
            8,
            1,
            "3/3 GPUs: 4 of 8 units free, 9 on all GPUs together",
            true,
        ),
        (&[14; 3], &[10, 12, 12], 9, 1, "3/3 GPUs: 4 of 9 units free", true),
        // A reported case: four GPUs of 23 GiB, pods of 10, and one pod pending.
        (&[23; 4], &[20; 4], 10, 1, "4/4 GPUs: 3 of 10 units free, 12 on all GPUs together", true),
        (
            &[14, 22],
            &[0, 20],
            16,
            1,
            "1/2 GPUs: 16 units requested, the largest has 14; \
             1/2 GPUs: 2 of 16 units free, 16 on all GPUs together",
            true,
        ),
        (&[14, 14], &[0, 0], 16, 1, "2/2 GPUs: 16 units requested, the largest has 14", false),
        (
            &[14; 3],
            &[0, 10, 10],
            8,
            2,
            "1 of the 2 requested GPUs; 2/3 GPUs: 4 of 8 units free",
            true,
        ),
        (&[14; 2], &[0, 0], 8, 3, "3 GPUs requested, the node has 2", false),
    ] {
        let reason = refused(sizes, held, units, gpus);
        assert_eq!(
            reason,
            (text.to_owned(), resolvable),
            "{units} of {sizes:?} with {held:?} held"
        );
    }
}

#[test]
fn health_compute_and_containers_limit_placement() {
    let mut node = gpus(&[14, 14, 14]);
    node.gpus[0].healthy = false;
    let mut accounting = accounting(&node, &[0, 4, 4]);
    assert_eq!(choose(&node, &accounting, &request(4, 1)), Ok(vec![1]));
    accounting.held[1].containers = 25;
    accounting.held[2].percent = 80;
    let mut wants = request(4, 1);
    wants.needs[0].percent = 30;
    let reason = choose(&node, &accounting, &wants).unwrap_err();
    assert_eq!(
        reason.text,
        "1/3 GPUs: unhealthy; 1/3 GPUs: 20 of 30 percent free; 1/3 GPUs: room for 0 of 1 containers"
    );
    assert!(reason.resolvable);
    node.closed = Some(crate::refusal::Refusal::new("shut"));
    assert_eq!(choose(&node, &accounting, &wants), Err(Reason::permanent("shut")));
}

/// Otherwise the claim would be refused on confirmation, and made and withdrawn again and again.
#[test]
fn overfull_gpu_takes_no_pod() {
    let node = gpus(&[14, 14]);
    let mut accounting = accounting(&node, &[4, 8]);
    accounting.held[1].percent = 130;
    // The second GPU is fuller and has enough memory and containers free, but its compute is
    // over-full.
    assert_eq!(accounting.overfull(&node).collect::<Vec<_>>(), [1]);
    assert_eq!(choose(&node, &accounting, &request(4, 1)), Ok(vec![0]));
    let reason = choose(&node, &accounting, &request(4, 2)).unwrap_err();
    assert_eq!(
        (reason.text.as_str(), reason.resolvable),
        ("1 of the 2 requested GPUs; 1/2 GPUs: over-full", true)
    );
    accounting.held[1].percent = 100;
    assert_eq!(choose(&node, &accounting, &request(4, 1)), Ok(vec![1]));
}

#[test]
fn gpu_smaller_than_a_unit_takes_no_hami_pod() {
    let node = NodeGpus::of(&node("n", "GiB", &[512, 15109]));
    for limits in [
        ("nvidia.com/gpumem", "100"),
        ("nvidia.com/gpumem-percentage", "50"),
        ("nvidia.com/gpu", "1"),
    ] {
        let requesting = pod("p", &[("nvidia.com/gpu", "1"), limits]);
        let waiting = PodRequest::of(&requesting, Dialects { hami: true }).unwrap();
        let claim = claim::claim(&waiting, &node, &NodeAccounting::of(&node, []), 1).unwrap();
        assert_eq!(claim.annotations[annotation::INDEX].as_deref(), Some("1"), "{limits:?}");
    }
}

#[test]
fn scores_rank_nodes_by_fullness() {
    assert_eq!(scores(&[100, 300, 200], Placement::Binpack), [0, 10, 5]);
    assert_eq!(scores(&[100, 300, 200], Placement::Spread), [10, 0, 5]);
    assert_eq!(scores(&[7, 7], Placement::Binpack), [10, 10]);
    assert_eq!(scores(&[], Placement::Binpack), [0; 0]);
    let node = gpus(&[14, 14]);
    assert_eq!(fullness(&node, &accounting(&node, &[4, 3]), &request(7, 1), &[1]), 500_000);
}

/// Places pods one after the other. As in a cluster, claims are written on the pods and read back.
fn placed(node: &NodeGpus, sizes: &[u64], gpus: &[usize]) -> (NodeAccounting, Vec<bool>) {
    let mut pods: Vec<Arc<PodRequest>> = Vec::new();
    let mut all = Vec::new();
    for (number, size) in sizes.iter().enumerate() {
        let mut pod: Pod = sharing(&format!("p{number}"), size * gpus[number] as u64);
        pod.metadata.labels = texts(&[("aliyun.com/gpu-count", &gpus[number].to_string())]);
        let accounting = NodeAccounting::of(node, &pods);
        let waiting = PodRequest::of(&pod, Dialects::default()).unwrap();
        let claim = claim::claim(&waiting, node, &accounting, 1);
        all.push(claim.is_ok());
        if let Ok(claim) = claim {
            claim.apply(&mut pod);
            pods.push(Arc::new(PodRequest::of(&pod, Dialects::default()).unwrap()));
        }
    }
    (NodeAccounting::of(node, &pods), all)
}

/// Returns the fewest equal GPUs that hold all of these, by exhaustive search.
fn fewest(sizes: &[u64], capacity: u64) -> usize {
    fn go(sizes: &[u64], capacity: u64, used: &mut Vec<u64>, best: &mut usize) {
        if used.len() >= *best {
            return;
        }
        let Some((size, rest)) = sizes.split_first() else {
            *best = used.len();
            return;
        };
        for gpu in 0..used.len() {
            if used[gpu] + size <= capacity {
                used[gpu] += size;
                go(rest, capacity, used, best);
                used[gpu] -= size;
            }
        }
        used.push(*size);
        go(rest, capacity, used, best);
        used.pop();
    }
    let mut best = sizes.len() + 1;
    go(sizes, capacity, &mut Vec::new(), &mut best);
    best
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Best fit takes at most 1.7 times the GPUs of an optimal packer, rounded down, for any order
    /// of sizes (Dosa and Sgall, 2014).
    #[test]
    fn binpack_uses_no_more_gpus_than_the_bound_of_best_fit(
        sizes in prop::collection::vec(1_u64..=14, 1..9),
    ) {
        let node = gpus(&vec![14; sizes.len()]);
        let (accounting, all) = placed(&node, &sizes, &vec![1; sizes.len()]);
        prop_assert!(all.iter().all(|placed| *placed));
        let used = accounting.held.iter().filter(|share| share.units > 0).count();
        let best = fewest(&sizes, 14);
        prop_assert!(used * 10 <= best * 17, "{used} GPUs, {best} would do");
    }

    /// A pod is refused only if too few GPUs have room, and every chosen GPU has room.
    #[test]
    fn pod_is_placed_exactly_where_it_fits(
        sizes in prop::collection::vec(1_u64..20, 1..5),
        wanted in prop::collection::vec((1_u64..12, 1_usize..4), 1..12),
        spread in any::<bool>(),
        places in prop::collection::vec((-1..2, -1..3), 5),
        banned in any::<[bool; 5]>(),
    ) {
        let mut node = gpus(&sizes);
        // Where GPUs are does not decide whether a pod fits; which ones it may have does.
        locate(&mut node, &places);
        let banned: Vec<usize> = (0..sizes.len()).filter(|gpu| banned[*gpu]).collect();
        let list: Vec<String> = banned.iter().map(|gpu| format!("GPU-n-{gpu}")).collect();
        if spread {
            node.placement = Placement::Spread;
        }
        let mut pods: Vec<Arc<PodRequest>> = Vec::new();
        for (number, (units, count)) in wanted.iter().enumerate() {
            let mut pod = sharing(&format!("p{number}"), units * *count as u64);
            pod.metadata.labels = texts(&[("aliyun.com/gpu-count", &count.to_string())]);
            let is_picky = number % 2 == 0 && !banned.is_empty();
            if is_picky {
                let rule = ("nvidia.com/nouse-gpuuuid", list.join(","));
                pod.metadata.annotations = texts(&[(rule.0, &rule.1)]);
            }
            let accounting = NodeAccounting::of(&node, &pods);
            let has_room =
                |position: &usize| accounting.free(&node, *position).units >= *units;
            let may_have = |position: &usize| !is_picky || !banned.contains(position);
            let room = (0..sizes.len()).filter(has_room).filter(may_have).count();
            let waiting = PodRequest::of(&pod, Dialects { hami: true }).unwrap();
            match claim::claim(&waiting, &node, &accounting, 1) {
                Ok(claim) => {
                    prop_assert!(room >= *count);
                    claim.apply(&mut pod);
                    let pod = Arc::new(PodRequest::of(&pod, Dialects { hami: true }).unwrap());
                    pods.push(Arc::clone(&pod));
                    prop_assert_eq!(claim::confirm(&pod.uid, &node, &pods), Ok(()));
                }
                Err(_) => prop_assert!(room < *count),
            }
            let accounting = NodeAccounting::of(&node, &pods);
            prop_assert_eq!(accounting.overfull(&node).count(), 0);
            let held: u64 = accounting.held.iter().map(|share| share.units).sum();
            let requests = pods.iter().map(|pod| pod.requests.as_ref().unwrap());
            let requested: u64 = requests.map(|all| units_in_all(all, None)).sum();
            prop_assert_eq!(held, requested);
        }
    }
}

/// Compares the average with an optimal packer. The bound is the current quality, not a promise.
#[test]
fn binpack_is_close_to_optimal_on_average() {
    let mut random = fastrand::Rng::with_seed(9);
    let (mut used, mut best) = (0, 0);
    for _ in 0..300 {
        let sizes: Vec<u64> = (0..8).map(|_| random.u64(1..=14)).collect();
        let node = gpus(&[14; 8]);
        let (accounting, _) = placed(&node, &sizes, &[1; 8]);
        used += accounting.held.iter().filter(|share| share.units > 0).count();
        best += fewest(&sizes, 14);
    }
    assert!(used * 100 <= best * 108, "{used} GPUs, {best} would do");
}

/// A NUMA node and a PCIe root for each GPU of a node; negative: not known.
fn locate(node: &mut NodeGpus, places: &[(i32, i32)]) {
    for (gpu, (numa, root)) in node.gpus.iter_mut().zip(places) {
        gpu.locality.numa_node = u32::try_from(*numa).ok();
        gpu.locality.pcie_root = (*root >= 0).then(|| format!("pci0000:{root:02x}"));
    }
}

#[test]
fn pod_of_several_gpus_gets_those_that_are_close_together() {
    for (places, held, gpus, expected) in [
        // Without topology, the fullest ones.
        (&[(-1, -1); 4][..], &[0, 4, 0, 4][..], 2, &[1, 3][..]),
        // One PCIe root, then one NUMA node.
        (&[(0, 1), (0, 2), (1, 3), (1, 3)], &[4, 4, 0, 0], 2, &[2, 3]),
        (&[(0, 1), (1, 2), (0, 3), (1, 4)], &[4, 3, 0, 0], 2, &[0, 2]),
        // Of several roots, that of the fullest GPUs.
        (&[(0, 1), (0, 1), (0, 2), (0, 2)], &[0, 4, 2, 3], 2, &[2, 3]),
        // A root without room is none.
        (&[(0, 1), (0, 1), (1, 2), (1, 3)], &[14, 0, 0, 0], 2, &[2, 3]),
        // More than a NUMA node has.
        (&[(0, 1), (0, 1), (1, 2), (1, 2)], &[0, 0, 14, 0], 3, &[0, 1, 3]),
        // The kernel knows no NUMA node.
        (&[(-1, 1), (-1, 2), (-1, 1), (-1, 2)], &[0, 1, 0, 1], 2, &[1, 3]),
        (&[(0, 1), (-1, 1), (0, 1), (-1, -1)], &[0, 4, 0, 4], 2, &[0, 2]),
        // A pod of one GPU does not look at it.
        (&[(0, 1), (0, 1), (1, 2), (1, 2)], &[0, 0, 4, 0], 1, &[2]),
    ] {
        let mut node = gpus_of(4);
        locate(&mut node, places);
        let chosen = choose(&node, &accounting(&node, held), &request(1, gpus));
        assert_eq!(chosen, Ok(expected.to_vec()), "{places:?} {held:?}");
    }
}

fn gpus_of(count: usize) -> NodeGpus {
    gpus(&vec![14; count])
}

#[test]
fn annotations_of_a_pod_choose_its_gpus() {
    let mut node = NodeGpus::of(&node("n", "GiB", &[15109; 4]));
    node.gpus.iter_mut().for_each(|gpu| gpu.product = Some("Tesla T4".to_owned()));
    node.gpus[3].product = Some("NVIDIA A100-SXM4-40GB".to_owned());
    let accounting = accounting(&node, &[4, 8, 0, 0]);
    let chosen = |annotations: &[(&str, &str)], hami: bool| {
        let mut pod = sharing("p", 2);
        pod.metadata.annotations = texts(annotations);
        let request = PodRequest::of(&pod, Dialects { hami }).unwrap().resource_request();
        choose(&node, &accounting, &request.unwrap()).map_err(|reason| reason.text)
    };
    let [uuid, no_uuid, kind, policy] = [
        "nvidia.com/use-gpuuuid",
        "nvidia.com/nouse-gpuuuid",
        "nvidia.com/use-gputype",
        "hami.io/gpu-scheduler-policy",
    ];
    assert_eq!(chosen(&[], true), Ok(vec![1]));
    assert_eq!(chosen(&[(policy, "spread")], true), Ok(vec![2]));
    assert_eq!(chosen(&[(uuid, "GPU-n-3,GPU-n-0")], true), Ok(vec![0]));
    assert_eq!(chosen(&[(no_uuid, "GPU-n-1")], true), Ok(vec![0]));
    assert_eq!(chosen(&[(kind, "a100")], true), Ok(vec![3]));
    assert_eq!(
        chosen(&[(kind, "H100")], true),
        Err("4/4 GPUs: not permitted by the pod's annotations".to_owned())
    );
    // Only where HAMi's names are read.
    assert_eq!(chosen(&[(uuid, "x"), (kind, "H100")], false), Ok(vec![1]));
}

#[test]
fn hami_resources_are_placed() {
    let node = NodeGpus::of(&node("n", "GiB", &[15109, 15109]));
    let requests =
        [("nvidia.com/gpu", "2"), ("nvidia.com/gpumem", "3000"), ("nvidia.com/gpucores", "30")];
    let waiting = PodRequest::of(&pod("p", &requests), Dialects { hami: true }).unwrap();
    let claim = claim::claim(&waiting, &node, &NodeAccounting::of(&node, []), 1).unwrap();
    assert_eq!(
        claim.annotations[annotation::ALLOCATION].as_deref(),
        Some(r#"{"0":{"0":3,"1":3}}"#)
    );
    assert_eq!(node.gpus[0].units, Gpu::plain(0, 14).units);
}
