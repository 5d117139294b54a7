use super::*;
use crate::object::PodSpec;

fn container(name: &str, limits: &[(&str, &str)]) -> Container {
    let limits = limits.iter().map(|(name, text)| ((*name).to_owned(), (*text).into())).collect();
    Container {
        name: name.into(),
        resources: crate::object::Resources { limits, ..Default::default() },
        ..Default::default()
    }
}

fn pod(init: Vec<Container>, containers: Vec<Container>) -> Pod {
    Pod {
        spec: PodSpec { containers, init_containers: init, ..Default::default() },
        ..Default::default()
    }
}

fn one(limits: &[(&str, &str)]) -> Result<Option<Amount>, String> {
    let pod = pod(vec![], vec![container("c", limits)]);
    ContainerRequest::of_pod(&pod, Dialects { hami: true })
        .map(|requests| requests.first().map(|request| request.amount))
        .map_err(|refusal| refusal.to_string())
}

#[test]
fn limits_are_the_request() {
    let each = |gpus, memory, percent| Ok(Some(Amount::Each { gpus, memory, percent }));
    assert_eq!(
        one(&[("aliyun.com/gpu-mem", "8")]),
        Ok(Some(Amount::InAll { units: 8, percent: 0 }))
    );
    assert_eq!(
        one(&[("aliyun.com/gpu-mem", "16k"), ("aliyun.com/gpu-core.percentage", "30")]),
        Ok(Some(Amount::InAll { units: 16000, percent: 30 }))
    );
    for nothing in [
        &[][..],
        &[("cpu", "1")],
        &[("aliyun.com/gpu-mem", "0")],
        &[("nvidia.com/gpu", "0"), ("nvidia.com/gpumem", "5")],
    ] {
        assert_eq!(one(nothing), Ok(None), "{nothing:?}");
    }
    // The two jobs of document 004.
    assert_eq!(
        one(&[
            ("nvidia.com/gpu", "1"),
            ("nvidia.com/gpucores", "30"),
            ("nvidia.com/gpumem", "3000")
        ]),
        each(1, Memory::Mib(3000), 30)
    );
    assert_eq!(
        one(&[
            ("nvidia.com/gpu", "1"),
            ("nvidia.com/gpumem-percentage", "50"),
            ("nvidia.com/gpumem", "3000")
        ]),
        each(1, Memory::Mib(3000), 0)
    );
    let half = [("nvidia.com/gpu", "1"), ("nvidia.com/gpumem-percentage", "50")];
    assert_eq!(one(&half), each(1, Memory::Percent(50), 0));
    assert_eq!(one(&[("nvidia.com/gpu", "2")]), each(2, Memory::Whole, 0));
    // Resources of a dialect that is not enabled are ignored.
    let pod = pod(vec![], vec![container("c", &[("nvidia.com/gpu", "1")])]);
    assert_eq!(ContainerRequest::of_pod(&pod, Dialects::default()), Ok(vec![]));
}

#[test]
fn invalid_amounts_are_refused() {
    for (limits, message) in [
        (
            &[("aliyun.com/gpu-mem", "-2")][..],
            "aliyun.com/gpu-mem of container `c` is `-2`, which is negative; expected a whole \
             number of units, such as `2`",
        ),
        (
            &[("aliyun.com/gpu-mem", "1500m")],
            "aliyun.com/gpu-mem of container `c` is `1500m`, which is not a whole number; expected",
        ),
        (&[("aliyun.com/gpu-mem", "99E")], "is `99E`, which is too large; expected"),
        (&[("aliyun.com/gpu-mem", "2 GiB")], "is `2 GiB`, which is not a quantity; expected"),
        (
            &[("aliyun.com/gpu-core.percentage", "30")],
            "requests aliyun.com/gpu-core.percentage but not aliyun.com/gpu-mem; expected memory \
             as well",
        ),
        (
            &[("nvidia.com/gpumem", "3000")],
            "container `c` requests nvidia.com/gpumem but not nvidia.com/gpu; expected the number \
             of GPUs as well: request `nvidia.com/gpu: 1`",
        ),
        (
            &[("nvidia.com/gpu", "1"), ("nvidia.com/priority", "2")],
            "nvidia.com/priority of container `c` is `2`, expected 0 (high) or 1 (low)",
        ),
        (
            &[("aliyun.com/gpu-mem", "1"), ("nvidia.com/priority", "0")],
            "requests both aliyun.com/gpu-mem and nvidia.com/priority",
        ),
        (
            &[("nvidia.com/gpucores", "101"), ("nvidia.com/gpu", "1")],
            "nvidia.com/gpucores of container `c` is `101`, expected at most 100",
        ),
        (
            &[("nvidia.com/gpumem-percentage", "200"), ("nvidia.com/gpu", "1")],
            "nvidia.com/gpumem-percentage of container `c` is `200`, expected at most 100",
        ),
        (
            &[("nvidia.com/gpu", "1"), ("aliyun.com/gpu-mem", "1")],
            "container `c` requests both aliyun.com/gpu-mem and nvidia.com/gpu; expected one of \
             the two",
        ),
    ] {
        let refusal = one(limits).unwrap_err();
        assert!(refusal.contains(message), "{limits:?}: {refusal}");
        assert!(!refusal.contains('\n'));
    }
    let mut twice = container("c", &[("aliyun.com/gpu-mem", "2")]);
    twice.resources.requests.insert("aliyun.com/gpu-mem".into(), "3".into());
    let refusal = ContainerRequest::of_pod(&pod(vec![], vec![twice]), Dialects::default())
        .unwrap_err()
        .to_string();
    assert!(refusal.contains("is `2` as a limit and `3` as a request"), "{refusal}");
    let mixed = pod(
        vec![],
        vec![
            container("a", &[("nvidia.com/gpu", "1")]),
            container("b", &[("aliyun.com/gpu-mem", "1")]),
        ],
    );
    let refusal =
        ContainerRequest::of_pod(&mixed, Dialects { hami: true }).unwrap_err().to_string();
    assert!(
        refusal.contains(
            "container `b` requests resources of aliyun.com and container `a` those of nvidia.com"
        ),
        "{refusal}"
    );
}

#[test]
fn request_without_a_limit_counts() {
    let mut requesting = container("c", &[]);
    requesting.resources.requests.insert("aliyun.com/gpu-mem".into(), "3".into());
    let requests =
        ContainerRequest::of_pod(&pod(vec![], vec![requesting]), Dialects::default()).unwrap();
    assert_eq!(requests[0].amount, Amount::InAll { units: 3, percent: 0 });
}

#[test]
fn containers_keep_their_index() {
    let mut sidecar = container("s", &[("aliyun.com/gpu-mem", "1")]);
    sidecar.restart_policy = "Always".into();
    let init = container("i", &[("aliyun.com/gpu-mem", "4")]);
    let plain = container("none", &[]);
    let main = container("m", &[("aliyun.com/gpu-mem", "2")]);
    let requests =
        ContainerRequest::of_pod(&pod(vec![sidecar, init], vec![plain, main]), Dialects::default())
            .unwrap();
    let seen: Vec<_> = requests
        .iter()
        .map(|request| (request.container.as_str(), request.role, request.index))
        .collect();
    assert_eq!(seen, [("s", Role::Sidecar, 2), ("i", Role::Init, 3), ("m", Role::Container, 1)]);
    assert_eq!(units_in_all(&requests, None), 5);
}

#[test]
fn memory_of_a_gpu_rounds_up_to_its_units() {
    let gpu = Gpu { units: 14, mib: Some(15109), ..Gpu::plain(0, 14) };
    assert_eq!(Memory::Mib(3000).units_of(&gpu), 3);
    assert_eq!(Memory::Mib(15109).units_of(&gpu), 14);
    assert_eq!(Memory::Mib(15110).units_of(&gpu), 15);
    assert_eq!(Memory::Percent(50).units_of(&gpu), 7);
    assert_eq!(Memory::Percent(51).units_of(&gpu), 8);
    assert_eq!(Memory::Whole.units_of(&gpu), 14);
    assert_eq!(Memory::Mib(3000).units_of(&Gpu::plain(0, 14)), 3);
}

#[test]
fn memory_of_a_gpu_is_at_least_one_unit() {
    let none = Gpu { mib: Some(512), ..Gpu::plain(0, 0) };
    let empty = Gpu { mib: Some(0), ..Gpu::plain(0, 0) };
    for gpu in [&none, &empty, &Gpu::plain(0, 0), &Gpu::plain(0, 14)] {
        for memory in [Memory::Units(0), Memory::Mib(0), Memory::Percent(0)] {
            assert_eq!(memory.units_of(gpu), 1, "{memory:?} of {gpu:?}");
        }
    }
    for gpu in [&none, &empty, &Gpu::plain(0, 0)] {
        for memory in [Memory::Mib(100), Memory::Percent(50), Memory::Whole] {
            assert_eq!(memory.units_of(gpu), 1, "{memory:?} of {gpu:?}");
        }
    }
}
