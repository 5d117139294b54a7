use super::*;

use proptest::prelude::*;

use crate::gpus::Placement;

fn node(sizes: &[u64]) -> NodeGpus {
    NodeGpus {
        name: "n".into(),
        address: "unknown".into(),
        gpus: (0..).zip(sizes).map(|(index, units)| Gpu::plain(index, *units)).collect(),
        placement: Placement::Binpack,
        isolated: true,
        closed: None,
        notes: vec![],
        held: crate::gpus::Held::new(),
        ready: true,
    }
}

fn request(index: usize, units: u64) -> ContainerRequest {
    ContainerRequest {
        container: format!("c{index}"),
        role: Role::Container,
        index,
        amount: Amount::InAll { units, percent: 0 },
        high_priority: None,
    }
}

fn texts(pairs: &[(&str, &str)]) -> Texts {
    pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

fn shares(
    annotations: &[(&str, &str)],
    requests: &[ContainerRequest],
    sizes: &[u64],
) -> Result<Vec<(u32, u64)>, String> {
    let allocation =
        Allocation::read(&texts(annotations)).map_err(|refusal| refusal.to_string())?.expect("one");
    let shares = allocation.shares(requests, &node(sizes), &Sizes::default());
    let shares = shares.map_err(|refusal| refusal.to_string())?;
    Ok(shares.iter().map(|(gpu, share)| (*gpu, share.units)).collect())
}

const INDEX: &str = annotation::INDEX;
const DEVICE: &str = annotation::DEVICE;
const SPLIT: &str = annotation::ALLOCATION;

#[test]
fn allocation_by_container_overrides_the_index() {
    assert_eq!(Allocation::read(&texts(&[("other", "x")])), Ok(None));
    assert_eq!(Allocation::read(&texts(&[(INDEX, "-1")])), Ok(None));
    assert_eq!(
        shares(&[(INDEX, "1")], &[request(0, 8), request(1, 3)], &[14, 14]),
        Ok(vec![(1, 11)])
    );
    assert_eq!(
        shares(
            &[(SPLIT, r#"{"0":{"0":4,"2":4},"1":{"2":3}}"#)],
            &[request(0, 8), request(1, 3)],
            &[14; 3]
        ),
        Ok(vec![(0, 4), (2, 7)])
    );
    assert_eq!(
        shares(&[(INDEX, "0"), (SPLIT, r#"{"0":{"1":8}}"#)], &[request(0, 8)], &[14; 2]),
        Ok(vec![(1, 8)])
    );
}

#[test]
fn units_scale_with_the_size_at_allocation() {
    // 2 of 14 GiB are 17 of the 118 units of 128 MiB that the same GPU has after the change.
    assert_eq!(
        shares(&[(INDEX, "0"), (DEVICE, "14")], &[request(0, 2)], &[118]),
        Ok(vec![(0, 17)])
    );
    assert_eq!(
        shares(&[(INDEX, "0"), (DEVICE, "118")], &[request(0, 16)], &[14]),
        Ok(vec![(0, 2)])
    );
    assert_eq!(
        shares(
            &[(SPLIT, r#"{"0":{"0":7,"1":7}}"#), (DEVICE, "14,22")],
            &[request(0, 14)],
            &[28, 44]
        ),
        Ok(vec![(0, 14), (1, 14)])
    );
}

#[test]
fn edited_annotations_are_refused() {
    for (annotations, message) in [
        (&[(INDEX, "x")][..], "ALIYUN_COM_GPU_MEM_IDX is `x`, expected the index of a GPU"),
        (&[(INDEX, "")], "is ``, expected the index of a GPU"),
        (&[(INDEX, "7")], "it names GPU 7, but the node has 2 GPUs"),
        (
            &[(INDEX, "0"), (DEVICE, "0")],
            "ALIYUN_COM_GPU_MEM_DEV is `0`, expected the units of a GPU",
        ),
        (&[(INDEX, "0"), (DEVICE, "14,14")], "has 2 sizes for 1 GPUs"),
        (&[(INDEX, "0"), (DEVICE, "4")], "container `c0` was given 8 units of GPU 0, which has 4"),
        (
            &[(SPLIT, "0=8")],
            "scheduler.framework.gpushare.allocation is `0=8`, expected units by GPU by container",
        ),
        (&[(SPLIT, r#"{"0":{"0":-8}}"#)], "expected units by GPU by container"),
        (&[(SPLIT, r#"{"0":{"0":2}}"#)], "container `c0` was given 2 units, but requests 8"),
        (&[(SPLIT, r#"{"0":{"0":12}}"#)], "container `c0` was given 12 units, but requests 8"),
        (&[(SPLIT, "{}")], "container `c0` was given 0 units, but requests 8"),
        (
            &[(SPLIT, r#"{"0":{"0":0,"1":8}}"#)],
            "container `c0` was given 0 units of GPU 0, expected at least 1",
        ),
        (&[(SPLIT, r#"{"0":{"0":8},"3":{"0":1}}"#)], "names container 3, which requests nothing"),
        (
            &[(SPLIT, r#"{"0":{"0":18446744073709551615,"1":18446744073709551615}}"#)],
            "which has 14",
        ),
    ] {
        let refusal = shares(annotations, &[request(0, 8)], &[14, 14]).expect_err(message);
        assert!(refusal.contains(message), "{annotations:?}: {refusal}");
    }
}

#[test]
fn amount_of_each_gpu_must_equal_the_request() {
    let each = |gpus, memory| ContainerRequest {
        container: "c".into(),
        role: Role::Container,
        index: 0,
        amount: Amount::Each { gpus, memory, percent: 30 },
        high_priority: None,
    };
    let two = [(SPLIT, r#"{"0":{"0":7,"1":7}}"#)];
    assert_eq!(shares(&two, &[each(2, Memory::Percent(50))], &[14, 14]), Ok(vec![(0, 7), (1, 7)]));
    assert!(
        shares(&two, &[each(1, Memory::Percent(50))], &[14, 14])
            .unwrap_err()
            .contains("was given 2 GPUs, but requests 1")
    );
    assert!(
        shares(&two, &[each(2, Memory::Percent(60))], &[14, 14])
            .unwrap_err()
            .contains("was given 7 units, but requests 9")
    );
    assert_eq!(
        shares(&[(SPLIT, r#"{"0":{"0":0}}"#)], &[each(1, Memory::Whole)], &[14, 14]),
        Err("container `c` was given 0 units of GPU 0, expected at least 1".into())
    );
    assert_eq!(shares(&[(INDEX, "1")], &[each(1, Memory::Mib(3000))], &[14, 14]), Ok(vec![(1, 3)]));
    assert!(
        shares(&[(INDEX, "1")], &[each(2, Memory::Mib(3000))], &[14, 14])
            .unwrap_err()
            .contains("was given 1 GPUs, but requests 2")
    );
}

proptest! {
    /// Any accepted annotations yield exactly what the limits request, on GPUs that exist.
    #[test]
    fn annotations_never_change_a_limit(
        split in prop::collection::btree_map(
            0_usize..3,
            prop::collection::btree_map(0_u32..4, 0_u64..16, 0..4),
            0..4,
        ),
        sizes in prop::collection::vec(1_u64..20, 1..4),
        limits in prop::collection::vec(1_u64..16, 1..3),
        agreeing in any::<bool>(),
    ) {
        let requests: Vec<ContainerRequest> = limits
            .iter()
            .enumerate()
            .map(|(index, limit)| {
                let written = split.get(&index).map_or(0, |gpus| gpus.values().sum());
                request(index, if agreeing && written > 0 { written } else { *limit })
            })
            .collect();
        let text = serde_json::to_string(&split).unwrap();
        if let Ok(shares) = shares(&[(SPLIT, &text)], &requests, &sizes) {
            let sum: u64 = shares.iter().map(|(_, units)| units).sum();
            prop_assert_eq!(sum, crate::container_request::units_in_all(&requests, None));
            prop_assert!(shares.iter().all(|(gpu, _)| (*gpu as usize) < sizes.len()));
        }
    }

    #[test]
    fn arbitrary_text_does_not_panic(
        index in ".{0,12}",
        device in "[0-9,x ]{0,12}",
        split in "[{}\":0-9,]{0,24}",
        time in ".{0,12}",
    ) {
        let annotations =
            texts(&[(INDEX, &index), (DEVICE, &device), (annotation::ASSUME_TIME, &time)]);
        let with = Allocation::read(&annotations);
        let mut longer = annotations.clone();
        longer.insert(SPLIT.into(), split);
        for allocation in [with, Allocation::read(&longer)].into_iter().flatten().flatten() {
            let _ = allocation.shares(&[request(0, 8)], &node(&[14, 14]), &Sizes::default());
        }
    }
}
