use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn gpu(number: u8, mib: u64) -> HostGpu {
    HostGpu::new(Uuid([number + 1; 16]), Bytes(mib * MIB), DeviceId::of_gpu(number.into()))
}

fn planned(variables: &[(&str, &str)], gpus: &[HostGpu]) -> Result<Plan, Refusal> {
    let variables: Vec<String> =
        variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    plan(&Declared::new(&variables)?, "a", || Ok(gpus.to_vec()))
}

/// Returns the limits in MiB by the number of the GPU; `None` for native.
fn limits(variables: &[(&str, &str)], gpus: &[HostGpu]) -> Option<Vec<(u8, u64)>> {
    match planned(variables, gpus).unwrap() {
        Plan::Native => None,
        Plan::Slice(limits) => {
            Some(limits.gpus.iter().map(|(uuid, limit)| (uuid.0[0] - 1, limit.0 / MIB)).collect())
        }
    }
}

const MEM: &str = "ALIYUN_COM_GPU_MEM_CONTAINER";
const DEV: &str = "ALIYUN_COM_GPU_MEM_DEV";
const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
const SLICED: &str = "ALIYUN_COM_GPU_VISIBLE_DEVICES";

fn four() -> Vec<HostGpu> {
    (0..4).map(|number| gpu(number, 23028)).collect()
}

#[test]
fn plan_gives_the_documented_limits() {
    let t4 = [gpu(0, 15109)];
    assert_eq!(limits(&[(MEM, "6"), (DEV, "15")], &t4), Some(vec![(0, 6043)]));
    assert_eq!(limits(&[(MEM, "8"), (DEV, "15")], &t4), Some(vec![(0, 8058)]));
    let v100: Vec<HostGpu> = (0..4).map(|number| gpu(number, 16130)).collect();
    let all = "GPU-01010101-0101-0101-0101-010101010101,GPU-02020202-0202-0202-0202-020202020202,\
               GPU-03030303-0303-0303-0303-030303030303,GPU-04040404-0404-0404-0404-040404040404";
    assert_eq!(
        limits(&[(MEM, "2"), (DEV, "15"), (VISIBLE, all)], &v100),
        Some(vec![(0, 2150), (1, 2150), (2, 2150), (3, 2150)])
    );
}

#[test]
fn plan_reads_documented_lists() {
    let on = |list: &str| limits(&[(MEM, list), (CGPU_UNIT, "GiB"), (VISIBLE, "0,1,2,3")], &four());
    let gib = |sizes: [u64; 4]| Some((0..4).zip(sizes.map(|size| size * 1024)).collect::<Vec<_>>());
    assert_eq!(on("3"), gib([3, 3, 3, 3]));
    assert_eq!(on("3,1"), gib([3, 1, 1, 1]));
    assert_eq!(on("3,4,5,6"), gib([3, 4, 5, 6]));
    assert_eq!(on("0"), None);
    assert_eq!(on("1,0,0"), None);
    assert_eq!(limits(&[(VISIBLE, "0,1,2,3")], &four()), None);
    assert_eq!(limits(&[], &[]), None);
}

const CGPU_UNIT: &str = "CGPU_MEM_UNIT";

#[test]
fn limits_follow_the_named_gpus() {
    let each = [0, 1, 2, 3].map(|number| (number, 3072));
    for (variables, expected) in [
        (&[(MEM, "3,4"), (VISIBLE, "2,0")][..], Some(&[(2, 3072), (0, 4096)][..])),
        (&[(MEM, "3"), (VISIBLE, "1")], Some(&[(1, 3072)])),
        (&[(MEM, "3"), (VISIBLE, "all")], Some(&each)),
        // Without the variable the container may get any GPU, so each has a limit.
        (&[(MEM, "3")], Some(&each)),
        (&[(MEM, "3"), (VISIBLE, "void")], Some(&each)),
        (&[(MEM, "3"), (VISIBLE, "0,1,2"), (SLICED, "2")], Some(&[(2, 3072)])),
        (&[(MEM, "3,5,7"), (VISIBLE, "0,1,2"), (SLICED, "1")], Some(&[(1, 5120)])),
        (&[(MEM, "3"), (SLICED, "none")], None),
        (&[(MEM, "3"), ("CGPU_DISABLE", "1")], None),
    ] {
        assert_eq!(limits(variables, &four()).as_deref(), expected, "{variables:?}");
    }
}

#[test]
fn invalid_variables_are_refused_in_one_line() {
    for (variables, part) in [
        (vec![(MEM, "abc")], "ALIYUN_COM_GPU_MEM_CONTAINER is `abc`, expected whole numbers"),
        (vec![(MEM, "")], "ALIYUN_COM_GPU_MEM_CONTAINER is empty"),
        (vec![(MEM, "-1")], "is `-1`"),
        (vec![(MEM, "99")], "more than GPU 0 has"),
        (vec![(MEM, "1,2,3,4,5")], "which has 5 entries for 4 GPUs"),
        (vec![(MEM, "1"), (DEV, "0")], "ALIYUN_COM_GPU_MEM_DEV is `0`"),
        (vec![(MEM, "1"), (VISIBLE, "4")], "there is no GPU 4: this host has 4"),
        (vec![(MEM, "1"), (VISIBLE, "0,1,2,7")], "there is no GPU 7"),
        (vec![(MEM, "1"), (VISIBLE, "first")], "NVIDIA_VISIBLE_DEVICES is `first`"),
        (
            vec![(MEM, "1"), (VISIBLE, "0"), (SLICED, "1")],
            "which names a GPU that NVIDIA_VISIBLE_DEVICES does not",
        ),
        (vec![(MEM, "1"), ("ALIYUN_COM_GPU_SCHD_WEIGHT", "26")], "from 1 to 25"),
        (vec![(MEM, "1"), ("CGPU_DISABLE", "yes")], "CGPU_DISABLE is `yes`"),
        (vec![(MEM, "1"), (MEM, "2")], "is set twice, to `1` and `2`"),
        (vec![(MEM, "a\nb")], "is `a\\nb`"),
    ] {
        let message = planned(&variables, &four()).unwrap_err().to_string();
        assert!(message.contains(part), "{variables:?}: {message}");
        assert!(!message.contains('\n'), "{message}");
    }
    let none = planned(&[(MEM, "1")], &[]).unwrap_err().to_string();
    assert!(none.contains("no GPU"), "{none}");
    let partitioned = [HostGpu { is_partitioned: true, ..gpu(0, 40960) }, gpu(1, 40960)];
    assert!(planned(&[(MEM, "1")], &partitioned).unwrap_err().to_string().contains("MIG"));
    assert_eq!(limits(&[(MEM, "1"), (VISIBLE, "1")], &partitioned), Some(vec![(1, 1024)]));
}

#[test]
fn instances_count_as_gpus_and_keep_indexes() {
    let part = |number: u8, name: DeviceId, mib: u64| {
        HostGpu::new(Uuid([number + 1; 16]), Bytes(mib * MIB), name)
    };
    let partitioned = [
        gpu(0, 15109),
        part(1, DeviceId::of_instance(1, 0), 20480),
        part(2, DeviceId::of_instance(1, 3), 5120),
        part(3, DeviceId::of_gpu(2), 15109),
    ];
    let mig = |number: u8| Uuid([number + 1; 16]).to_string().replacen("GPU", "MIG", 1);
    // By index, instances take the place of their GPU.
    assert_eq!(
        limits(&[(MEM, "3,4,2,5")], &partitioned),
        Some(vec![(0, 3072), (1, 4096), (2, 2048), (3, 5120)])
    );
    let both = format!("{},{}", mig(2), &mig(1)[..13]);
    assert_eq!(
        limits(&[(MEM, "1,2"), (VISIBLE, &both)], &partitioned),
        Some(vec![(2, 1024), (1, 2048)])
    );
    assert_eq!(
        limits(&[(MEM, "1"), (DEV, "2"), (VISIBLE, &mig(1))], &partitioned),
        Some(vec![(1, 10240)])
    );
    assert_eq!(limits(&[(MEM, "1"), (VISIBLE, "2")], &partitioned), Some(vec![(3, 1024)]));
    let sliced = [(MEM, "1"), (VISIBLE, &format!("0,{both}")), (SLICED, &mig(1))];
    assert_eq!(limits(&sliced, &partitioned), Some(vec![(1, 1024)]));
    for (visible, memory, part) in [
        ("1", "1", "GPU 1 is partitioned into MIG instances; name those by their own UUID"),
        ("1:0", "1", "MIG devices go by their own UUID"),
        ("1.0", "1", "MIG devices go by their own UUID"),
        ("3", "1", "there is no GPU 3: this host has 3"),
        // More than the instance has, but not more than its GPU.
        (&mig(2), "6", "more than"),
    ] {
        let message =
            planned(&[(MEM, memory), (VISIBLE, visible)], &partitioned).unwrap_err().to_string();
        assert!(message.contains(part), "{visible}: {message}");
    }
}

#[test]
fn gpus_are_read_only_for_a_limit() {
    for variables in
        [vec![], vec![format!("{MEM}=0")], vec![format!("{MEM}=3"), "CGPU_DISABLE=true".into()]]
    {
        let plan = plan(&Declared::new(&variables).unwrap(), "a", || panic!("GPUs were read"));
        assert_eq!(plan, Ok(Plan::Native));
    }
}

#[test]
fn any_name_fits_the_limits_file() {
    for name in ["", "a b", "a#b", "é\u{7}", &"é".repeat(60), &"x".repeat(100)] {
        let limits = Limits { name: name_of(name), ..Limits::default() };
        assert!(limits.to_text().is_ok(), "{name:?}");
    }
}

/// Returns values of variables, valid or not.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        "[0-9]{1,3}(,[0-9]{1,2}){0,4}",
        "[ \\t0-9,.a-z+-]{0,8}",
        Just("all".to_owned()),
        Just("none".to_owned()),
        Just("true".to_owned()),
        any::<String>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// With any variables, a container that requests memory is not native, unless it requests no
    /// limit or no GPU. Its limits are above 0, at most the GPU's memory, and equal to those that
    /// the shim computes inside.
    #[test]
    fn every_request_gets_a_limit_or_a_refusal(
        memory in value(),
        rest in proptest::collection::vec((proptest::sample::select(vec![
            DEV, CGPU_UNIT, VISIBLE, SLICED, "ALIYUN_COM_GPU_SCHD_WEIGHT", "CGPU_DISABLE",
            "CGPU_DIR", "PATH",
        ]), value()), 0..5),
        count in 1_u8..5,
    ) {
        let mut variables = vec![format!("{MEM}={memory}")];
        variables.extend(rest.iter().map(|(name, value)| format!("{name}={value}")));
        let gpus: Vec<HostGpu> = (0..count).map(|number| gpu(number, 15109)).collect();
        let Ok(declared) = Declared::new(&variables) else { return Ok(()) };
        let trim = |text: &str| text.trim_matches([' ', '\t']).to_owned();
        let is_zero = |part: &str| {
            let part = trim(part);
            !part.is_empty() && part.bytes().all(|byte| byte == b'0')
        };
        let is = |name: &str, values: [&str; 2]| {
            declared.get(name).map(trim).is_some_and(|value| values.contains(&value.as_str()))
        };
        let is_off = memory.split(',').any(is_zero)
            || is("CGPU_DISABLE", ["1", "true"])
            || is(SLICED, ["none", "void"]);
        match plan(&declared, "a", || Ok(gpus.clone())) {
            Ok(Plan::Native) => prop_assert!(is_off, "{variables:?} is native"),
            Ok(Plan::Slice(limits)) => {
                prop_assert!(!limits.gpus.is_empty());
                for (uuid, limit) in &limits.gpus {
                    let gpu = gpus.iter().find(|gpu| gpu.gpu.uuid == *uuid);
                    let gpu = gpu.expect("a GPU of the host");
                    prop_assert!(*limit > Bytes::ZERO && *limit <= gpu.gpu.total);
                }
                prop_assert!(limits.to_text().is_ok());
            }
            Err(refusal) => prop_assert!(!refusal.to_string().contains('\n')),
        }
    }
}
