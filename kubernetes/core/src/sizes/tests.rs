use super::*;
use crate::claim;
use crate::fixture::{container, node, pod, sharing};
use crate::gpus::{HeldPart, HeldPod};
use crate::names::{CORE, Dialects, MEMORY};
use crate::object::Pod;

/// Two GPUs of 14 units.
fn here() -> NodeGpus {
    NodeGpus::of(&node("n", "GiB", &[15109, 15109]))
}

/// The pod, placed on the node by the extender.
fn placed(mut pod: Pod) -> Pod {
    let waiting = PodRequest::of(&pod, Dialects::default()).unwrap();
    claim::claim(&waiting, &here(), &NodeAccounting::of(&here(), []), 1).unwrap().apply(&mut pod);
    pod.spec.node_name = "n".into();
    pod.status.phase = "Running".into();
    pod
}

fn request(pod: &Pod) -> PodRequest {
    PodRequest::of(pod, Dialects::default()).unwrap()
}

/// A pod of 6 units and 30 %, and a container of 2 units.
fn two() -> Pod {
    let mut two = pod("p", &[(MEMORY, "6"), (CORE, "30")]);
    two.spec.containers.push(container("side", &[(MEMORY, "2")]));
    placed(two)
}

fn sizes(text: &str) -> Sizes {
    wanted(&request(&two()), text, &here(), true).unwrap().sizes
}

#[test]
fn annotation_sizes_containers() {
    let size = |memory, weight, percent| Size { memory, weight, percent };
    for (text, main, side) in [
        ("memory=1Gi", Some(size(Some(1024), None, None)), Some(size(Some(1024), None, None))),
        ("main: memory=1Gi,weight=3", Some(size(Some(1024), Some(3), None)), None),
        (
            "side: weight=25; main: percent=10",
            Some(size(None, None, Some(10))),
            Some(size(None, Some(25), None)),
        ),
        ("main: memory=1", Some(size(Some(1), None, None)), None),
        ("main: memory=8Gi,percent=100,grow=true", Some(size(Some(8192), None, Some(100))), None),
        ("main: shrink=wait", None, None),
        ("", None, None),
    ] {
        let sizes = sizes(text);
        assert_eq!(sizes.0.get("main"), main.as_ref(), "{text}");
        assert_eq!(sizes.0.get("side"), side.as_ref(), "{text}");
        let annotations = sizes.written().map(|text| (annotation::SIZES.to_owned(), text));
        assert_eq!(Sizes::read(&annotations.into_iter().collect()), Ok(sizes), "{text}");
    }
    let waits = |text: &str| wanted(&request(&two()), text, &here(), false).unwrap().waiting;
    assert_eq!(waits("main: shrink=wait; shrink=refuse"), BTreeSet::from(["main".to_owned()]));
    assert_eq!(
        described(&request(&two()), &here(), &sizes("main: memory=1Gi,weight=3")),
        "container `main` has 1024 MiB of GPU 0, weight 3, 30 % of the compute; container `side` \
         has 2158 MiB of GPU 0"
    );
}

/// Each is refused as a whole: nothing is resized.
#[test]
fn annotation_that_is_wrong_is_refused() {
    for (text, message) in [
        ("8Gi", "`8Gi` is not memory=AMOUNT, weight=NUMBER, percent=NUMBER"),
        ("memory=4GB", "memory of container `main` is `4GB`, which is not a quantity"),
        ("memory=-1Gi", "is `-1Gi`, which is negative"),
        ("memory=0", "is `0`, expected at least 1"),
        ("memory=1500m", "is `1500m`, which is not a whole number"),
        ("memory=99999999999999999999", "which is too large"),
        ("memory=9E,grow=true", "and GPU 0 has 15109 MiB"),
        ("weight=0", "weight of container `main` is `0`, expected 1 to 25"),
        ("weight=26", "expected 1 to 25"),
        ("weight=1.5", "which is not a whole number"),
        ("percent=0", "expected 1 to 100"),
        ("percent=101,grow=true", "expected 1 to 100"),
        ("cores=10", "`cores=10` is not memory=AMOUNT"),
        ("memory=1Gi,memory=2Gi", "names memory twice"),
        ("main: weight=1; main: weight=2", "is the second entry"),
        ("mian: weight=1", "no container `mian` that requests a GPU, only `main`"),
        ("shrink=maybe", "shrink of container `main` is `maybe`, expected wait or refuse"),
        ("memory=8Gi,grow=yes", "grow of container `main` is `yes`, expected true or false"),
        (
            "main: memory=8Gi",
            "memory of container `main` is `8Gi`, more than the 6475 MiB that it requested: add \
             grow=true, for which the permission",
        ),
        ("main: memory=8Gi,grow=false", "add grow=true"),
        ("main: percent=31", "more than the 30 % that it requested"),
        ("side: percent=1", "more than the 0 % that it requested"),
    ] {
        let refusal = wanted(&request(&two()), text, &here(), true).unwrap_err().to_string();
        let start = "the annotation cgpu.dev/resize is refused: ";
        assert!(refusal.starts_with(start) && refusal.contains(message), "{text}: {refusal}");
    }
    let refusal = wanted(&request(&two()), "memory=8Gi,grow=true", &here(), false).unwrap_err();
    assert!(refusal.message().ends_with("allows no growth (--allow-growth)"), "{refusal}");
    let unlimited = NodeGpus { isolated: false, ..here() };
    let refusal = wanted(&request(&two()), "weight=1", &unlimited, true).unwrap_err();
    assert!(refusal.message().ends_with("have no limits"), "{refusal}");
}

#[test]
fn pod_holds_what_it_requested_or_more() {
    let held = |text: &str| {
        let pod = PodRequest { sizes: Ok(sizes(text)), ..request(&two()) };
        let held = NodeAccounting::of(&here(), [&Arc::new(pod)]).held;
        (held[0], held[1].units)
    };
    let share = |units, percent| Share { units, percent, containers: 2 };
    assert_eq!(held(""), (share(8, 30), 0));
    // What a resize frees is for no other pod.
    assert_eq!(held("main: memory=1Gi,percent=10"), (share(8, 30), 0));
    assert_eq!(held("main: memory=7Gi,grow=true"), (share(9, 30), 0));
    assert_eq!(held("percent=40,grow=true"), (share(8, 80), 0));
    // A pod whose allocation is unclear counts with its sizes on each GPU.
    let mut edited = two();
    edited.metadata.annotations.insert(annotation::ALLOCATION.into(), "mine".into());
    let text = sizes("main: memory=7Gi,grow=true").written().unwrap();
    edited.metadata.annotations.insert(annotation::SIZES.into(), text);
    let held = NodeAccounting::of(&here(), [&Arc::new(request(&edited))]).held;
    assert_eq!([held[0].units, held[1].units], [9, 9]);
    // So does one whose sizes are not understood.
    let mut forged = two();
    forged.metadata.annotations.insert(annotation::SIZES.into(), r#"{"main":{"mem":1}}"#.into());
    let accounting = NodeAccounting::of(&here(), [&Arc::new(request(&forged))]);
    assert!(matches!(accounting.holders[0].holding, Holding::Unclear(_)), "{accounting:?}");
    assert_eq!([accounting.held[0].units, accounting.held[1].units], [8, 8]);
}

#[test]
fn pod_grows_into_free_room_only() {
    let pod = request(&two());
    let mut other = placed(sharing("other", 4));
    other.metadata.annotations.insert(annotation::INDEX.into(), "0".into());
    let pods = [Arc::new(pod.clone()), Arc::new(request(&other))];
    let room = |text: &str| check_room(&pod, &sizes(text), &here(), &pods);
    // 4 of 14 units are another's, 2 the second container's.
    assert_eq!(room("main: memory=8Gi,grow=true"), Ok(()));
    assert_eq!(
        room("main: memory=9Gi,grow=true").unwrap_err().message(),
        "no room on GPU 0: the pod would hold 11 of 14 units and 30 % of its compute; beside the \
         other pods it can hold 10 units and 100 %"
    );
    assert!(room("percent=60,grow=true").is_err());
    // What was freed for a more important pod is kept for it.
    let mut urgent = self::pod("urgent", &[(MEMORY, "14")]);
    urgent.spec.priority = 9;
    urgent.status.nominated_node_name = "n".into();
    let grown = |urgent: &Pod| {
        let mut pods = vec![pods[0].clone(), Arc::new(request(urgent))];
        let mut second = placed(sharing("second", 1));
        second
            .metadata
            .annotations
            .insert(annotation::ALLOCATION.into(), r#"{"0":{"1":1}}"#.into());
        second.spec.priority = 9;
        pods.push(Arc::new(request(&second)));
        check_room(&pod, &sizes("main: memory=8Gi,grow=true"), &here(), &pods)
    };
    assert!(grown(&urgent).unwrap_err().message().contains("GPU 0: it is kept for a pod"));
    urgent.spec.priority = -1;
    assert_eq!(grown(&urgent), Ok(()));
    // Containers of a deleted pod have their room until they end, and a pod's own report is none.
    let held = |uid: &str| {
        let part = HeldPart { mib: 2158, percent: 0, containers: 1 };
        let pod =
            HeldPod { pod: "test/gone".into(), gpus: [(0, part)].into(), ..HeldPod::default() };
        NodeGpus { held: [(uid.to_owned(), pod)].into(), ..here() }
    };
    let text = "main: memory=8Gi,grow=true";
    assert!(check_room(&pod, &sizes(text), &held("gone"), &pods).is_err());
    assert_eq!(check_room(&pod, &sizes(text), &held(&pod.uid), &pods), Ok(()));
}
