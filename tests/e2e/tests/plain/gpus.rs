//! Several unequal GPUs: each keeps its own limit, whichever of them the program hides and however
//! it orders the rest.

use std::collections::BTreeMap;

use cgpu_e2e::{Child, Container, Fixture, MIB, Outcome};

/// In PCI order. In the driver's order, fastest first, they are the second, the third and the
/// first.
const UNEQUAL: &str = "T4:15109,A100:40960,A10:23028";

fn seen(fixture: &Fixture, container: &Container) -> Vec<(String, u64)> {
    let outcome = Outcome::of(fixture.program_in(container, "visible")).silent();
    let gpus = outcome.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let gpu = |gpu: serde_json::Value| {
        (
            gpu["uuid"].as_str().expect("a UUID").to_owned(),
            gpu["total"].as_u64().expect("a total") / MIB,
        )
    };
    gpus.map(gpu).collect()
}

fn gpus(fixture: &Fixture) -> Vec<(String, u64)> {
    let native =
        fixture.container("native").with("CUDA_DEVICE_ORDER", "PCI_BUS_ID").with("NATIVE", "all");
    seen(fixture, &native)
}

/// Returns every ordered choice of some of `n` places, except the empty one.
fn choices(n: usize) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = vec![Vec::new()];
    let mut next = 0;
    while next < all.len() {
        let longer = (0..n).filter(|place| !all[next].contains(place));
        let longer: Vec<Vec<usize>> =
            longer.map(|place| [&all[next][..], &[place]].concat()).collect();
        all.extend(longer);
        next += 1;
    }
    all.split_off(1)
}

#[test]
fn hidden_and_reordered_gpus_keep_their_limits() {
    let fixture = Fixture::new(UNEQUAL);
    let gpus = gpus(&fixture);
    let limit: BTreeMap<&str, u64> =
        gpus.iter().map(|(uuid, _)| uuid.as_str()).zip([3072, 4096, 5120]).collect();
    let fastest = [1, 2, 0];
    // Each run has its own container: an earlier run's draining memory would change the figures.
    let mut runs = 0;
    let mut order = |bus: bool, list: Option<&str>| -> Vec<String> {
        runs += 1;
        let mut container =
            fixture.container(&runs.to_string()).with("ALIYUN_COM_GPU_MEM_CONTAINER", "3,4,5");
        if bus {
            container = container.with("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        }
        if let Some(list) = list {
            container = container.with("CUDA_VISIBLE_DEVICES", list);
        }
        let seen = seen(&fixture, &container);
        for (uuid, mib) in &seen {
            assert_eq!(*mib, limit[uuid.as_str()], "{uuid} of {seen:?}");
        }
        seen.into_iter().map(|(uuid, _)| uuid).collect()
    };
    let uuids =
        |places: &[usize]| places.iter().map(|&place| gpus[place].0.clone()).collect::<Vec<_>>();
    assert_eq!(order(true, None), uuids(&[0, 1, 2]));
    assert_eq!(order(false, None), uuids(&fastest));
    for choice in choices(3) {
        let list = |names: Vec<String>| names.join(",");
        let places = list(choice.iter().map(usize::to_string).collect());
        assert_eq!(order(true, Some(&places)), uuids(&choice), "{places}");
        let faster: Vec<usize> = choice.iter().map(|&place| fastest[place]).collect();
        assert_eq!(order(false, Some(&places)), uuids(&faster), "{places}");
        let full = list(uuids(&choice));
        assert_eq!(order(false, Some(&full)), uuids(&choice), "{full}");
        let short = list(uuids(&choice).iter().map(|uuid| uuid[..10].to_owned()).collect());
        assert_eq!(order(false, Some(&short)), uuids(&choice), "{short}");
    }
}

#[test]
fn limit_list_follows_every_form_of_gpu_names() {
    let fixture = Fixture::new(UNEQUAL);
    let gpus = gpus(&fixture);
    let name = |place: usize| gpus[place].0.clone();
    let short = |place: usize| gpus[place].0[..10].to_owned();
    for (row, (visible, expected)) in [
        ("0,1,2".to_owned(), [3, 4, 5]),
        ("2,0,1".to_owned(), [4, 5, 3]),
        ("1,2,0".to_owned(), [5, 3, 4]),
        ("all".to_owned(), [3, 4, 5]),
        ("void".to_owned(), [3, 4, 5]),
        // The host's numbers, of which this host has fewer.
        ("7,3,5".to_owned(), [4, 5, 3]),
        ([name(2), name(0), name(1)].join(","), [4, 5, 3]),
        ([short(1), short(2), short(0)].join(","), [5, 3, 4]),
        (
            [format!("GPU-{}", name(2)[4..].to_uppercase()), "0".to_owned(), short(1)].join(","),
            [4, 5, 3],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let container = fixture
            .container(&format!("row-{row}"))
            .with("ALIYUN_COM_GPU_MEM_CONTAINER", "3,4,5")
            .with("NVIDIA_VISIBLE_DEVICES", &visible)
            .with("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        let totals: Vec<u64> =
            seen(&fixture, &container).iter().map(|(_, mib)| mib / 1024).collect();
        assert_eq!(totals, expected, "NVIDIA_VISIBLE_DEVICES={visible}");
    }
}

#[test]
fn fractions_apply_to_each_gpus_own_size() {
    let fixture = Fixture::new(UNEQUAL);
    let container = fixture
        .container("a")
        .with("ALIYUN_COM_GPU_MEM_CONTAINER", "6,10,8")
        .with("ALIYUN_COM_GPU_MEM_DEV", "15,40,22")
        .with("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    let totals: Vec<u64> = seen(&fixture, &container).into_iter().map(|(_, mib)| mib).collect();
    assert_eq!(totals, [15109 * 6 / 15, 40960 * 10 / 40, 23028 * 8 / 22]);
}

#[test]
fn native_gpus_stay_whole_beside_sliced_ones() {
    let fixture = Fixture::new(UNEQUAL);
    let gpus = gpus(&fixture);
    let whole: Vec<u64> = gpus.iter().map(|(_, mib)| *mib).collect();
    let (uuid, short) = (gpus[2].0.as_str(), &gpus[1].0[..10]);
    for (row, (sliced, expected)) in [
        ("0".to_owned(), [3072, whole[1], whole[2]]),
        (uuid.to_owned(), [whole[0], whole[1], 5120]),
        (format!("{short},0"), [3072, 4096, whole[2]]),
        ("none".to_owned(), [whole[0], whole[1], whole[2]]),
        ("all".to_owned(), [3072, 4096, 5120]),
    ]
    .into_iter()
    .enumerate()
    {
        let native: Vec<&str> = (gpus.iter().zip(expected).zip(&whole))
            .filter_map(|((gpu, mib), whole)| (mib == *whole).then_some(gpu.0.as_str()))
            .collect();
        let container = fixture
            .container(&format!("row-{row}"))
            .with("ALIYUN_COM_GPU_MEM_CONTAINER", "3,4,5")
            .with("ALIYUN_COM_GPU_VISIBLE_DEVICES", &sliced)
            .with("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            .with("NATIVE", &native.join(","));
        let totals: Vec<u64> = seen(&fixture, &container).into_iter().map(|(_, mib)| mib).collect();
        assert_eq!(totals, expected, "ALIYUN_COM_GPU_VISIBLE_DEVICES={sliced}");
    }
}

/// Other implementations limited the first GPU only, or both as one.
#[test]
fn one_rank_per_gpu_fills_its_own_limit() {
    let fixture = Fixture::new(UNEQUAL);
    let gpus = gpus(&fixture);
    let container = fixture.container("a").with("ALIYUN_COM_GPU_MEM_CONTAINER", "3,4,5");
    let ranks: Vec<(u64, Child)> = (gpus.iter().zip([3, 4, 5]))
        .map(|((uuid, _), gib)| {
            let rank = container.clone().with("CUDA_VISIBLE_DEVICES", uuid);
            let mut command = fixture.program_in(&rank, "alloc_fill");
            command.args(["64M", "2"]);
            (gib * 1024 * MIB, Child::start(command))
        })
        .collect();
    for (limit, rank) in ranks {
        let outcome = rank.finish().silent();
        let granted = outcome.number("granted");
        assert_eq!((outcome.number("total"), outcome.number("error")), (limit, 2));
        assert!(granted <= limit && granted + 1024 * MIB > limit, "{granted} of {limit}");
    }
}
