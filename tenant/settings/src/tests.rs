//! Every row of the settings' table, and the message for every malformed value.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use proptest::prelude::*;

use super::*;
use crate::declared::Declared;

fn uuid(number: u8) -> Uuid {
    let mut bytes = [0x10 + number; 16];
    bytes[15] = number;
    Uuid(bytes)
}

/// Returns GPUs in PCI order, of these sizes in MiB.
fn gpus(sizes: &[u64]) -> Vec<GpuInfo> {
    let gpu = |(number, &mib): (u8, &u64)| GpuInfo {
        uuid: uuid(number),
        total: Bytes::from_mib(mib),
        order: u64::from(number) << 8,
    };
    (0..).zip(sizes).map(gpu).collect()
}

fn decide(variables: &[&str], gpus: &[GpuInfo], complete: bool) -> Result<Decision, Refusal> {
    Variables::read(&Declared::with(variables)).decide(Inventory {
        gpus,
        partitioned: &[],
        complete,
    })
}

/// Returns the limits in MiB by GPU number; a GPU without a limit is missing.
fn limits(variables: &[&str], gpus: &[GpuInfo]) -> Vec<(u8, u64)> {
    let mut limits: Vec<(u8, u64)> =
        match decide(variables, gpus, true).expect("well-formed settings") {
            Decision::On(settings) => {
                settings.gpus.iter().map(|gpu| (gpu.uuid.0[15], gpu.limit.0 >> 20)).collect()
            }
            Decision::Off(reason) => panic!("off: {reason:?}"),
        };
    limits.sort_unstable();
    limits
}

fn message(variables: &[&str], gpus: &[GpuInfo], complete: bool) -> String {
    match decide(variables, gpus, complete) {
        Err(refusal) => refusal.message().to_owned(),
        Ok(decision) => panic!("{variables:?} gave {decision:?}"),
    }
}

#[test]
fn unset_or_zero_memory_is_no_limit() {
    let gpus = gpus(&[15109, 15109, 15109]);
    for variables in [
        &[][..],
        &["ALIYUN_COM_GPU_MEM_CONTAINER=0"],
        &["ALIYUN_COM_GPU_MEM_CONTAINER=1,0,0"],
        &["ALIYUN_COM_GPU_MEM_CONTAINER=1,0,0", "NVIDIA_VISIBLE_DEVICES=0"],
        &["ALIYUN_COM_GPU_MEM_CONTAINER=0", "ALIYUN_COM_GPU_MEM_DEV=15"],
        &["ALIYUN_COM_GPU_MEM_DEV=15"],
        &["ALIYUN_COM_GPU_SCHD_WEIGHT=4"],
    ] {
        assert_eq!(
            decide(variables, &gpus, true),
            Ok(Decision::Off(Reason::NoLimit)),
            "{variables:?}"
        );
    }
}

#[test]
fn disable_variable_disables() {
    let gpus = gpus(&[15109]);
    for (value, off) in [("true", true), ("1", true), ("false", false), ("0", false)] {
        let disable = format!("CGPU_DISABLE={value}");
        let decision = decide(&["ALIYUN_COM_GPU_MEM_CONTAINER=3", &disable], &gpus, true)
            .expect("well-formed");
        assert_eq!(decision == Decision::Off(Reason::Disabled), off, "{value}");
    }
}

/// A limit from outside applies whatever the program's variables say.
#[test]
fn deep_bind_is_kept_only_on_request_and_without_a_limit_from_outside() {
    let folder = tempfile::tempdir().expect("a folder");
    let kept = |variables: &[&str]| {
        let mut environment = Declared::with(variables);
        environment.run_directory = folder.path().into();
        keeps_deep_bind(&environment)
    };
    for (value, is_kept) in [("1", true), ("true", true), ("0", false), ("yes", false)] {
        assert_eq!(kept(&[&format!("CGPU_KEEP_DEEPBIND={value}")]), is_kept, "{value}");
    }
    assert!(!kept(&[]));
    // A file that cannot be read is in force.
    std::os::unix::fs::symlink("limits", folder.path().join("limits")).expect("a link");
    assert!(!kept(&["CGPU_KEEP_DEEPBIND=1"]));
}

#[test]
fn documented_settings_give_the_documented_limits() {
    for (total, container, device, limit) in [
        (15109, "6", "15", 6043),
        (15109, "8", "15", 8058),
        (16130, "2", "15", 2150),
        (23028, "8", "22", 8373),
        (23028, "12", "22", 12560),
        (23028, "22", "22", 23028),
    ] {
        let variables = [
            format!("ALIYUN_COM_GPU_MEM_CONTAINER={container}"),
            format!("ALIYUN_COM_GPU_MEM_DEV={device}"),
        ];
        let variables: Vec<&str> = variables.iter().map(String::as_str).collect();
        assert_eq!(
            limits(&variables, &gpus(&[total])),
            [(0, limit)],
            "{total} x {container} / {device}"
        );
    }
}

#[test]
fn amount_without_a_gpus_total_is_counted_in_units() {
    let gpus = gpus(&[15109]);
    for (variables, limit) in [
        (&["ALIYUN_COM_GPU_MEM_CONTAINER=3"][..], 3072),
        (&["ALIYUN_COM_GPU_MEM_CONTAINER=3", "CGPU_MEM_UNIT=GiB"], 3072),
        (&["ALIYUN_COM_GPU_MEM_CONTAINER=3", "CGPU_MEM_UNIT=MiB"], 3),
        (&["ALIYUN_COM_GPU_MEM_CONTAINER=3", "CGPU_MEM_UNIT=128MiB"], 384),
        (&["ALIYUN_COM_GPU_MEM_CONTAINER=15109", "CGPU_MEM_UNIT=MiB"], 15109),
        (
            &["ALIYUN_COM_GPU_MEM_CONTAINER=3", "CGPU_MEM_UNIT=MiB", "ALIYUN_COM_GPU_MEM_DEV=15"],
            3021,
        ),
    ] {
        assert_eq!(limits(variables, &gpus), [(0, limit)], "{variables:?}");
    }
}

#[test]
fn list_of_amounts_follows_the_visible_gpus() {
    let four = gpus(&[20480; 4]);
    let two = gpus(&[20480; 2]);
    let by_uuid = format!("NVIDIA_VISIBLE_DEVICES={},{}", uuid(2), uuid(0));
    for (gpus, container, visible, expected) in [
        (&four, "3", None, vec![(0, 3), (1, 3), (2, 3), (3, 3)]),
        (&four, "3,1", None, vec![(0, 3), (1, 1), (2, 1), (3, 1)]),
        (&four, "3,4,5,6", None, vec![(0, 3), (1, 4), (2, 5), (3, 6)]),
        (
            &four,
            "3,4,5,6",
            Some("NVIDIA_VISIBLE_DEVICES=0,1,2,3"),
            vec![(0, 3), (1, 4), (2, 5), (3, 6)],
        ),
        (
            &four,
            "3,4,5,6",
            Some("NVIDIA_VISIBLE_DEVICES=3,2,1,0"),
            vec![(0, 6), (1, 5), (2, 4), (3, 3)],
        ),
        (
            &four,
            "3,4,5,6",
            Some("NVIDIA_VISIBLE_DEVICES=all"),
            vec![(0, 3), (1, 4), (2, 5), (3, 6)],
        ),
        // The toolkit sets `void` where a device plugin added the GPUs in another way.
        (
            &four,
            "3,4,5,6",
            Some("NVIDIA_VISIBLE_DEVICES=void"),
            vec![(0, 3), (1, 4), (2, 5), (3, 6)],
        ),
        (
            &four,
            "3,4,5,6",
            Some("NVIDIA_VISIBLE_DEVICES=none"),
            vec![(0, 3), (1, 4), (2, 5), (3, 6)],
        ),
        (&four, "3,4,5,6", Some("NVIDIA_VISIBLE_DEVICES="), vec![(0, 3), (1, 4), (2, 5), (3, 6)]),
        // Fewer listed than visible: positions.
        (&four, "3,4", Some("NVIDIA_VISIBLE_DEVICES=2,0"), vec![(0, 4), (2, 3)]),
        (&four, "3,4", Some(by_uuid.as_str()), vec![(0, 4), (2, 3)]),
        (&four, "3,4", Some("NVIDIA_VISIBLE_DEVICES=GPU-12,GPU-10101010"), vec![(0, 4), (2, 3)]),
        (&four, "3,4", Some("NVIDIA_VISIBLE_DEVICES=MIG-12121212,1"), vec![(1, 4), (2, 3)]),
        // All listed, by the host's indexes: ranks.
        (&two, "3,4", Some("NVIDIA_VISIBLE_DEVICES=5,2"), vec![(0, 4), (1, 3)]),
        (&two, "3,4", Some("NVIDIA_VISIBLE_DEVICES=7, GPU-10"), vec![(0, 4), (1, 3)]),
    ] {
        let container = format!("ALIYUN_COM_GPU_MEM_CONTAINER={container}");
        let variables: Vec<&str> =
            [Some(container.as_str()), visible].into_iter().flatten().collect();
        let expected: Vec<(u8, u64)> =
            expected.into_iter().map(|(gpu, gib)| (gpu, gib * 1024)).collect();
        assert_eq!(limits(&variables, gpus), expected, "{variables:?}");
    }
}

#[test]
fn list_of_totals_gives_each_gpu_its_share() {
    let gpus = gpus(&[15109, 23028]);
    let variables = ["ALIYUN_COM_GPU_MEM_CONTAINER=6,8", "ALIYUN_COM_GPU_MEM_DEV=15,22"];
    assert_eq!(limits(&variables, &gpus), [(0, 6043), (1, 8373)]);
}

#[test]
fn gpus_are_ordered_by_pci_address() {
    let mut shuffled = gpus(&[20480; 3]);
    shuffled.rotate_left(1);
    assert_eq!(
        limits(&["ALIYUN_COM_GPU_MEM_CONTAINER=3,4,5"], &shuffled),
        [(0, 3072), (1, 4096), (2, 5120)]
    );
}

#[test]
fn only_selected_gpus_are_limited_at_their_positions() {
    let gpus = gpus(&[20480; 3]);
    for (sliced, visible, expected) in [
        ("all", "all", vec![(0, 3072), (1, 4096), (2, 5120)]),
        ("1", "all", vec![(1, 4096)]),
        ("2,0", "0,1,2", vec![(0, 3072), (2, 5120)]),
        ("7", "9,8,7", vec![(0, 5120)]),
        ("GPU-11", "all", vec![(1, 4096)]),
        ("GPU-11,2", "0,1,2", vec![(1, 4096), (2, 5120)]),
    ] {
        let variables = [
            format!("ALIYUN_COM_GPU_VISIBLE_DEVICES={sliced}"),
            format!("NVIDIA_VISIBLE_DEVICES={visible}"),
        ];
        let variables = ["ALIYUN_COM_GPU_MEM_CONTAINER=3,4,5", &variables[0], &variables[1]];
        assert_eq!(limits(&variables, &gpus), expected, "{variables:?}");
    }
    let none = decide(
        &["ALIYUN_COM_GPU_MEM_CONTAINER=3", "ALIYUN_COM_GPU_VISIBLE_DEVICES=none"],
        &gpus,
        true,
    );
    assert_eq!(none, Ok(Decision::Off(Reason::NoGpus)));
}

/// Returns a whole GPU, a GPU partitioned into two instances (numbered 4 and 5), and another whole
/// GPU.
fn with_instances() -> Vec<GpuInfo> {
    let mut gpus = gpus(&[20480; 3]);
    let instance = |number: u8, mib, number_in_gpu| GpuInfo {
        uuid: uuid(number),
        total: Bytes::from_mib(mib),
        order: gpus[1].order | number_in_gpu,
    };
    let instances = [instance(4, 4864, 1), instance(5, 9856, 2)];
    gpus.splice(1..2, instances);
    gpus
}

#[test]
fn instances_are_listed_by_their_own_uuids() {
    let gpus = with_instances();
    let mig = |number: u8| uuid(number).to_string().replace("GPU-", "MIG-");
    let both = format!("{},{}", mig(5), mig(4));
    let older = format!("MIG-{}/1/0", uuid(4));
    for (container, visible, sliced, expected) in [
        // In the list of all, they take the position of their GPU.
        ("3,4,5,6", "all", "all", vec![(0, 3), (2, 6), (4, 4), (5, 5)]),
        ("3,4,5,6", "void", "all", vec![(0, 3), (2, 6), (4, 4), (5, 5)]),
        ("3,4", both.as_str(), "all", vec![(4, 4), (5, 3)]),
        ("3,4", "MIG-14,MIG-1515", "all", vec![(4, 3), (5, 4)]),
        ("3", older.as_str(), "all", vec![(4, 3)]),
        // Their GPU keeps its index: 2 is the GPU after it.
        ("3,4", "2,MIG-14", "all", vec![(2, 3), (4, 4)]),
        ("3,4,5", "0,MIG-14,2", "all", vec![(0, 3), (2, 5), (4, 4)]),
        ("3,4,5,6", "all", "2", vec![(2, 6)]),
        ("3,4,5,6", "all", "0,MIG-15", vec![(0, 3), (5, 5)]),
    ] {
        let variables = [
            format!("ALIYUN_COM_GPU_MEM_CONTAINER={container}"),
            format!("NVIDIA_VISIBLE_DEVICES={visible}"),
            format!("ALIYUN_COM_GPU_VISIBLE_DEVICES={sliced}"),
        ];
        let variables: Vec<&str> = variables.iter().map(String::as_str).collect();
        let expected: Vec<(u8, u64)> =
            expected.into_iter().map(|(gpu, gib)| (gpu, gib * 1024)).collect();
        assert_eq!(limits(&variables, &gpus), expected, "{variables:?}");
    }
    for (visible, expected) in [
        ("1", "is `1`, but GPU 1 is partitioned into MIG instances; name those by their own UUID"),
        ("3", "is `3`, but there is no GPU 3: 4 are visible"),
        ("MIG-1", "which fits more than one GPU"),
        ("MIG-GPU-14/1", "expected `all`, or indexes and UUIDs"),
        ("1:0", "MIG devices go by their own UUID"),
    ] {
        let visible = format!("NVIDIA_VISIBLE_DEVICES={visible}");
        let said = message(&["ALIYUN_COM_GPU_MEM_CONTAINER=3", &visible], &gpus, true);
        assert!(said.contains(expected), "\n said:     {said}\n expected: {expected}");
    }
    // A count of GPUs includes no instance.
    let said = message(&["ALIYUN_COM_GPU_MEM_CONTAINER=3,5"], &gpus[1..2], true);
    assert!(said.contains("2 entries for 1 GPUs"), "{said}");
}

#[test]
fn limit_of_a_gpu_is_the_same_when_others_are_hidden() {
    let all = gpus(&[20480; 3]);
    let seen = [all[2], all[1]];
    let named = format!("NVIDIA_VISIBLE_DEVICES={},{},{}", uuid(0), uuid(1), uuid(2));
    let with_uuids = ["ALIYUN_COM_GPU_MEM_CONTAINER=3,4,5", &named];
    let Ok(Decision::On(settings)) = decide(&with_uuids, &seen, false) else {
        panic!("UUIDs need no NVML")
    };
    let limits: Vec<_> =
        settings.gpus.iter().map(|gpu| (gpu.uuid, gpu.limit.0 >> 30, gpu.ordinal)).collect();
    assert_eq!(limits, [(uuid(1), 4, 1), (uuid(2), 5, 2)]);
    // One amount for all: positions do not matter.
    let Ok(Decision::On(settings)) = decide(&["ALIYUN_COM_GPU_MEM_CONTAINER=3"], &seen, false)
    else {
        panic!("one amount needs no positions")
    };
    assert_eq!(settings.gpus.len(), 2);
    // Different amounts by index: refused.
    for variables in [
        &["ALIYUN_COM_GPU_MEM_CONTAINER=3,4,5"][..],
        &["ALIYUN_COM_GPU_MEM_CONTAINER=3,4,5", "NVIDIA_VISIBLE_DEVICES=0,1,2"],
        &["ALIYUN_COM_GPU_MEM_CONTAINER=3", "ALIYUN_COM_GPU_VISIBLE_DEVICES=1"],
    ] {
        assert!(
            message(variables, &seen, false).contains("CUDA_VISIBLE_DEVICES hides some"),
            "{variables:?}"
        );
    }
}

#[test]
fn compute_settings_are_read() {
    let variables = [
        "ALIYUN_COM_GPU_MEM_CONTAINER=3",
        "ALIYUN_COM_GPU_SCHD_WEIGHT=4",
        "ALIYUN_COM_GPU_CORE_PERCENTAGE=30",
        "ALIYUN_COM_GPU_HIGH_PRIO=1",
    ];
    let Ok(Decision::On(settings)) = decide(&variables, &gpus(&[15109]), true) else {
        panic!("well-formed")
    };
    assert_eq!(
        (settings.weight, settings.core_percentage, settings.high_priority),
        (4, Some(30), true)
    );
    let Ok(Decision::On(settings)) = decide(&variables[..1], &gpus(&[15109]), true) else {
        panic!("well-formed")
    };
    assert_eq!(
        (settings.weight, settings.core_percentage, settings.high_priority),
        (1, None, false)
    );
}

#[test]
fn no_gpu_is_off() {
    assert_eq!(
        decide(&["ALIYUN_COM_GPU_MEM_CONTAINER=3"], &[], true),
        Ok(Decision::Off(Reason::NoGpus))
    );
}

/// The table of `docs/settings.md`: value, and message.
#[test]
fn every_malformed_value_is_refused_with_its_message() {
    let two = gpus(&[15109, 23028]);
    let container = "ALIYUN_COM_GPU_MEM_CONTAINER";
    let numbers = "expected whole numbers joined by commas, one for each GPU, such as `3` or \
                   `3,1`; correct it, or unset ALIYUN_COM_GPU_MEM_CONTAINER to run without a limit";
    for value in [
        "abc",
        "-1",
        "+1",
        "1.5",
        "3GiB",
        "3,",
        ",3",
        "3,,1",
        "3;1",
        "1,x,0",
        "0x3",
        "18446744073709551616",
    ] {
        let said = message(&[&format!("{container}={value}")], &two, true);
        assert_eq!(said, format!("{container} is `{value}`, {numbers}"));
        let said = message(
            &[&format!("{container}=3"), &format!("ALIYUN_COM_GPU_MEM_DEV={value}")],
            &two,
            true,
        );
        assert_eq!(said, format!("ALIYUN_COM_GPU_MEM_DEV is `{value}`, {numbers}"));
    }
    let many = (0..GPUS + 1).map(|_| 15109).collect::<Vec<u64>>();
    let twins = [two[0], GpuInfo { uuid: Uuid([0x10; 16]), ..two[1] }];
    for (variables, gpus, expected) in [
        (&[][..], &two[..], "is empty, expected whole numbers"),
        (
            &["CGPU_MEM_UNIT=GB"],
            &two,
            "CGPU_MEM_UNIT is `GB`, expected `GiB`, `MiB` or `128MiB`; set one of these",
        ),
        (&["CGPU_MEM_UNIT="], &two, "CGPU_MEM_UNIT is empty, expected"),
        (
            &["CGPU_MEM_UNIT=gib", "ALIYUN_COM_GPU_MEM_DEV=15"],
            &two,
            "CGPU_MEM_UNIT is `gib`, expected",
        ),
        (
            &["ALIYUN_COM_GPU_MEM_DEV=0"],
            &two,
            "ALIYUN_COM_GPU_MEM_DEV is `0`, expected the memory of a GPU",
        ),
        (
            &["ALIYUN_COM_GPU_MEM_DEV=15,0"],
            &two,
            "ALIYUN_COM_GPU_MEM_DEV is `15,0`, expected the memory of a GPU",
        ),
        (
            &["ALIYUN_COM_GPU_MEM_DEV="],
            &two,
            "ALIYUN_COM_GPU_MEM_DEV is empty, expected whole numbers",
        ),
        (
            &["ALIYUN_COM_GPU_MEM_DEV=15,22,22"],
            &two,
            "ALIYUN_COM_GPU_MEM_DEV is `15,22,22`, which has 3 entries for 2 GPUs",
        ),
        (
            &["ALIYUN_COM_GPU_MEM_CONTAINER=1,2,3"],
            &two,
            "is `1,2,3`, which has 3 entries for 2 GPUs; give at most one",
        ),
        (
            &["ALIYUN_COM_GPU_MEM_CONTAINER=15"],
            &two,
            "is `15`, of which 15 GiB is 15360 MiB, more than GPU 0 has (15109 MiB); lower it",
        ),
        (
            &["ALIYUN_COM_GPU_MEM_CONTAINER=14,23"],
            &two,
            "is `14,23`, of which 23 GiB is 23552 MiB, more than GPU 1 has (23028 MiB)",
        ),
        (
            &["ALIYUN_COM_GPU_MEM_CONTAINER=16", "ALIYUN_COM_GPU_MEM_DEV=15"],
            &two,
            "of which 16 of ALIYUN_COM_GPU_MEM_DEV `15` is 16116 MiB, more than GPU 0 has",
        ),
        (
            &["ALIYUN_COM_GPU_MEM_CONTAINER=119", "CGPU_MEM_UNIT=128MiB"],
            &two,
            "of which 119 times 128 MiB is 15232 MiB, more than GPU 0 has",
        ),
        (
            &["ALIYUN_COM_GPU_MEM_CONTAINER=24576", "CGPU_MEM_UNIT=MiB"],
            &two,
            "is `24576`, of which 24576 MiB is more than GPU 0 has (15109 MiB); lower it (cgpu run: --mem)",
        ),
        (
            &["ALIYUN_COM_GPU_MEM_CONTAINER=18446744073709551615"],
            &two,
            "is more than GPU 0 has (15109 MiB)",
        ),
        (
            &["ALIYUN_COM_GPU_MEM_CONTAINER=1", "ALIYUN_COM_GPU_MEM_DEV=99999"],
            &two,
            "is less than 1 MiB of GPU 0 (15109 MiB)",
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES=2"],
            &two,
            "NVIDIA_VISIBLE_DEVICES is `2`, but there is no GPU 2: 2 are visible",
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES=0,1,2"],
            &two,
            "NVIDIA_VISIBLE_DEVICES is `0,1,2`, which names 3 GPUs, but 2 are visible",
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES=0,0"],
            &two,
            "NVIDIA_VISIBLE_DEVICES is `0,0`, which names a GPU twice",
        ),
        (&["NVIDIA_VISIBLE_DEVICES=GPU-10,GPU-1010"], &two, "which names a GPU twice"),
        (
            &["NVIDIA_VISIBLE_DEVICES=GPU-77"],
            &two,
            "NVIDIA_VISIBLE_DEVICES is `GPU-77`, which names a GPU that is not visible",
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES=GPU-1"],
            &twins,
            "which fits more than one GPU; give more digits",
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES=first"],
            &two,
            "NVIDIA_VISIBLE_DEVICES is `first`, expected `all`, or indexes and UUIDs",
        ),
        (&["NVIDIA_VISIBLE_DEVICES=-1"], &two, "NVIDIA_VISIBLE_DEVICES is `-1`, expected"),
        (&["NVIDIA_VISIBLE_DEVICES=0:0"], &two, "MIG devices go by their own UUID"),
        (&["NVIDIA_VISIBLE_DEVICES=0,,1"], &two, "NVIDIA_VISIBLE_DEVICES is `0,,1`, expected"),
        (
            &["NVIDIA_VISIBLE_DEVICES=GPU-xyz"],
            &two,
            "NVIDIA_VISIBLE_DEVICES is `GPU-xyz`, expected",
        ),
        (
            &["ALIYUN_COM_GPU_VISIBLE_DEVICES=5"],
            &two,
            "ALIYUN_COM_GPU_VISIBLE_DEVICES is `5`, which names a GPU that NVIDIA_VISIBLE_DEVICES does not",
        ),
        (
            &["ALIYUN_COM_GPU_VISIBLE_DEVICES=GPU-77"],
            &two,
            "which names a GPU that NVIDIA_VISIBLE_DEVICES does not",
        ),
        (
            &["ALIYUN_COM_GPU_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=GPU-10"],
            &two,
            "which names a GPU that NVIDIA_VISIBLE_DEVICES does not",
        ),
        (
            &["ALIYUN_COM_GPU_VISIBLE_DEVICES=x"],
            &two,
            "ALIYUN_COM_GPU_VISIBLE_DEVICES is `x`, expected `all`",
        ),
        (
            &["ALIYUN_COM_GPU_VISIBLE_DEVICES="],
            &two,
            "ALIYUN_COM_GPU_VISIBLE_DEVICES is empty, expected",
        ),
        (
            &["ALIYUN_COM_GPU_SCHD_WEIGHT=0"],
            &two,
            "ALIYUN_COM_GPU_SCHD_WEIGHT is `0`, expected a whole number from 1 to 25; correct it, or unset it for 1",
        ),
        (&["ALIYUN_COM_GPU_SCHD_WEIGHT=26"], &two, "expected a whole number from 1 to 25"),
        (&["ALIYUN_COM_GPU_SCHD_WEIGHT=heavy"], &two, "expected a whole number from 1 to 25"),
        (&["ALIYUN_COM_GPU_SCHD_WEIGHT=-2"], &two, "expected a whole number from 1 to 25"),
        (
            &["ALIYUN_COM_GPU_CORE_PERCENTAGE=0"],
            &two,
            "ALIYUN_COM_GPU_CORE_PERCENTAGE is `0`, expected a whole number from 1 to 100",
        ),
        (&["ALIYUN_COM_GPU_CORE_PERCENTAGE=101"], &two, "expected a whole number from 1 to 100"),
        (&["ALIYUN_COM_GPU_CORE_PERCENTAGE=30%"], &two, "expected a whole number from 1 to 100"),
        (
            &["ALIYUN_COM_GPU_HIGH_PRIO=2"],
            &two,
            "ALIYUN_COM_GPU_HIGH_PRIO is `2`, expected a whole number from 0 to 1",
        ),
        (&["ALIYUN_COM_GPU_HIGH_PRIO=yes"], &two, "ALIYUN_COM_GPU_HIGH_PRIO is `yes`, expected"),
        (
            &["CGPU_DISABLE=yes"],
            &two,
            "CGPU_DISABLE is `yes`, expected `true` or `1` to switch cgpu off, `false` or `0` to leave it on",
        ),
        (&["CGPU_DISABLE="], &two, "CGPU_DISABLE is empty, expected"),
        (&["CGPU_DIR=here"], &two, "CGPU_DIR is `here`, expected an absolute path"),
        (&["CGPU_DIR="], &two, "CGPU_DIR is empty, expected an absolute path"),
        (
            &["CGPU_LOG=loud"],
            &two,
            "CGPU_LOG is `loud`, expected `warn`, `info`, `debug` or `trace`",
        ),
        (
            &["CGPU_KEEP_DEEPBIND=yes"],
            &two,
            "CGPU_KEEP_DEEPBIND is `yes`, expected `true` or `1` to keep RTLD_DEEPBIND",
        ),
        (&["CGPU_LOG_FILE=here"], &two, "CGPU_LOG_FILE is `here`, expected an absolute path"),
        (
            &[],
            &self::gpus(&many),
            "17 GPUs are to be sliced, expected at most 16; name fewer in ALIYUN_COM_GPU_VISIBLE_DEVICES",
        ),
    ] {
        let empty = variables.is_empty() && gpus.len() == 2;
        let given =
            if empty { "ALIYUN_COM_GPU_MEM_CONTAINER=" } else { "ALIYUN_COM_GPU_MEM_CONTAINER=3" };
        let said = message(&[&[given], variables].concat(), gpus, true);
        assert!(said.contains(expected), "{variables:?}\n said:     {said}\n expected: {expected}");
        assert!(!said.contains('\n') && said.contains("; "), "one line, with a remedy: {said}");
    }
}

#[test]
fn documented_messages_are_the_ones_written() {
    let documented = include_str!("../../../docs/settings.md").replace("\\`", "`");
    let two = gpus(&[15109, 23028]);
    for variables in [
        &["ALIYUN_COM_GPU_MEM_CONTAINER=abc"][..],
        &["ALIYUN_COM_GPU_MEM_CONTAINER=15"],
        &["ALIYUN_COM_GPU_MEM_CONTAINER=1,2,3"],
        &["ALIYUN_COM_GPU_MEM_CONTAINER=1", "ALIYUN_COM_GPU_MEM_DEV=99999"],
        &["ALIYUN_COM_GPU_MEM_DEV=0"],
        &["CGPU_MEM_UNIT=GB"],
        &["NVIDIA_VISIBLE_DEVICES=first"],
        &["NVIDIA_VISIBLE_DEVICES=2"],
        &["NVIDIA_VISIBLE_DEVICES=0,1,2"],
        &["NVIDIA_VISIBLE_DEVICES=0,0"],
        &["NVIDIA_VISIBLE_DEVICES=GPU-77"],
        &["ALIYUN_COM_GPU_VISIBLE_DEVICES=5"],
        &["ALIYUN_COM_GPU_SCHD_WEIGHT=26"],
        &["ALIYUN_COM_GPU_CORE_PERCENTAGE=30%"],
        &["ALIYUN_COM_GPU_HIGH_PRIO=yes"],
        &["CGPU_DISABLE=yes"],
        &["CGPU_DIR=here"],
        &["CGPU_LOG=loud"],
        &["CGPU_LOG_FILE=here"],
        &["CGPU_KEEP_DEEPBIND=yes"],
    ] {
        let said = message(&[&["ALIYUN_COM_GPU_MEM_CONTAINER=3"], variables].concat(), &two, true);
        assert!(documented.contains(&format!("| {said} |")), "docs/settings.md lacks: {said}");
    }
}

#[test]
fn log_without_a_file_is_none() {
    let log = |variables: &[&str]| Variables::read(&Declared::with(variables)).log();
    assert_eq!(log(&[]), Ok(None));
    assert_eq!(log(&["CGPU_LOG=debug"]), Ok(None));
    let file = PathBuf::from("/tmp/log");
    for (variables, level) in [
        (&["CGPU_LOG_FILE=/tmp/log"][..], LogLevel::Info),
        (&["CGPU_LOG_FILE=/tmp/log", "CGPU_LOG=trace"], LogLevel::Trace),
    ] {
        assert_eq!(log(variables), Ok(Some(Log { level, file: file.clone() })));
    }
}

#[test]
fn bytes_that_are_not_text_are_escaped() {
    let mut environment = Declared::default();
    let raw = OsString::from_vec(b"3\xff\n\x1b[31m".to_vec());
    environment.variables.insert("ALIYUN_COM_GPU_MEM_CONTAINER".to_owned(), raw);
    let gpus = gpus(&[15109]);
    let refusal = Variables::read(&environment).decide(Inventory {
        gpus: &gpus,
        partitioned: &[],
        complete: true,
    });
    let said = refusal.expect_err("not text").to_string();
    assert_eq!(
        said,
        r"ALIYUN_COM_GPU_MEM_CONTAINER is `3\xff\n\x1b[31m`, expected text; correct or unset it"
    );
}

proptest! {
    /// Whatever the variables contain: a limit within the GPU, off, or one line that begins with
    /// the name of the variable.
    #[test]
    fn any_value_gives_a_valid_limit_or_a_message(
        container in "[0-9,x -]{0,6}|\\PC{0,80}",
        device in proptest::option::of("[0-9,]{0,4}|\\PC{0,8}"),
        visible in proptest::option::of("(all|[0-9]|GPU-1[0-9a]|,){0,4}|\\PC{0,8}"),
        sliced in proptest::option::of("(all|[0-9]|GPU-1[0-9a]|,){0,4}"),
        complete: bool,
    ) {
        let mut environment = Declared::default();
        let mut set = |name: &str, value: Option<String>| {
            environment
                .variables
                .extend(value.map(|value| (name.to_owned(), OsString::from(value))));
        };
        set("ALIYUN_COM_GPU_MEM_CONTAINER", Some(container));
        set("ALIYUN_COM_GPU_MEM_DEV", device);
        set("NVIDIA_VISIBLE_DEVICES", visible);
        set("ALIYUN_COM_GPU_VISIBLE_DEVICES", sliced);
        let gpus = gpus(&[15109, 23028, 15109]);
        match Variables::read(&environment).decide(Inventory {
            gpus: &gpus,
            partitioned: &[],
            complete,
        }) {
            Ok(Decision::Off(_)) => {}
            Ok(Decision::On(settings)) => {
                prop_assert!(!settings.gpus.is_empty());
                for gpu in settings.gpus {
                    prop_assert!(gpu.limit > Bytes::ZERO && gpu.limit <= gpu.total);
                }
            }
            Err(refusal) => {
                let said = refusal.message();
                prop_assert!(
                    said.starts_with("ALIYUN_COM_GPU_")
                        || said.starts_with("NVIDIA_VISIBLE_DEVICES")
                );
                prop_assert!(!said.contains('\n'));
            }
        }
    }
}

#[test]
fn misspelt_variable_is_explained() {
    let message = misspelling("ALIYUN_COM_GPU_MEM").expect("a message");
    assert!(message.starts_with("cgpu has no variable ALIYUN_COM_GPU_MEM, "), "{message}");
    assert!(message.contains("MEM_CONTAINER, MEM_DEV, VISIBLE_DEVICES, SCHD_WEIGHT"), "{message}");
    for name in ["ALIYUN_COM_GPU_MEM_CONTAINER", "ALIYUN_COM_GPU_MEM_IDX", "CGPU_X", "PATH"] {
        assert_eq!(misspelling(name), None);
    }
}
