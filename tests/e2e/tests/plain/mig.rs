//! MIG instances: each is a device with its own UUID and limit.

use std::fs;

use cgpu_e2e::{Container, Fixture, MIB, Monitor, Outcome, Worker};
use serde_json::Value;

use crate::tree::{Tree, has_fuse};

const PARTITIONED: &str = "T4:15109,A100:40960/mig=3g.20gb,1g.5gb";

/// Returns UUID and size in MiB of what the program sees: one instance, or the whole GPUs.
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

#[test]
fn instances_have_their_own_limits() {
    let fixture = Fixture::new(PARTITIONED);
    let container = fixture.container("a").with("ALIYUN_COM_GPU_MEM_CONTAINER", "3,4,2");
    // Without a UUID a program sees whole GPUs only. The accounting has the instances in their
    // GPU's place.
    let whole: Vec<u64> = seen(&fixture, &container).into_iter().map(|(_, mib)| mib).collect();
    assert_eq!(whole, [3072]);
    let accounting = fixture.accounting(&container);
    let gpus: Vec<String> = (accounting["gpus"].as_array().expect("gpus").iter())
        .map(|gpu| gpu["uuid"].as_str().expect("a UUID").to_owned())
        .collect();
    assert_eq!(gpus.len(), 3, "{accounting:#}");
    for (uuid, mib) in gpus[1..].iter().zip([4096, 2048]) {
        for name in [uuid.replacen("GPU", "MIG", 1), uuid[..12].replacen("GPU", "MIG", 1)] {
            let rank = container.clone().with("CUDA_VISIBLE_DEVICES", &name);
            assert_eq!(seen(&fixture, &rank), [(uuid.clone(), mib)], "{name}");
        }
    }
    let (first, second) =
        (gpus[1].replacen("GPU", "MIG", 1), gpus[2][..12].replacen("GPU", "MIG", 1));
    let named = fixture
        .container("b")
        .with("ALIYUN_COM_GPU_MEM_CONTAINER", "1,2")
        .with("NVIDIA_VISIBLE_DEVICES", &format!("{second},{first}"))
        .with("CUDA_VISIBLE_DEVICES", &first);
    assert_eq!(seen(&fixture, &named), [(gpus[1].clone(), 2048)]);
    // A fraction is one of the instance, not of its GPU.
    let fraction = fixture
        .container("c")
        .with("ALIYUN_COM_GPU_MEM_CONTAINER", "1")
        .with("ALIYUN_COM_GPU_MEM_DEV", "2")
        .with("CUDA_VISIBLE_DEVICES", &first);
    assert_eq!(seen(&fixture, &fraction), [(gpus[1].clone(), 20480 / 2)]);
}

#[test]
fn partitioned_gpu_cannot_be_named_by_index() {
    let fixture = Fixture::new(PARTITIONED);
    let container = fixture
        .container("a")
        .with("ALIYUN_COM_GPU_MEM_CONTAINER", "3")
        .with("NVIDIA_VISIBLE_DEVICES", "1");
    let outcome = Outcome::of(fixture.program_in(&container, "init")).exits(0);
    assert_eq!(outcome.number("init"), 1);
    assert!(outcome.stderr.contains("GPU 1 is partitioned into MIG instances"), "{outcome:?}");
}

fn cgpu(fixture: &Fixture, arguments: &[&str]) -> Outcome {
    let mut command = fixture.cgpu(arguments);
    command.arg("--root").arg(fixture.root());
    Outcome::of(command)
}

/// Creates a container with one instance of the second GPU, half of the larger one's memory, and a
/// program that computes there.
fn tenant(fixture: &Fixture, name: &str, instance: &str) -> (Container, Worker) {
    let container = fixture
        .limited(name, 4096)
        .with("NVIDIA_VISIBLE_DEVICES", instance)
        .with("CUDA_VISIBLE_DEVICES", instance);
    let worker = Worker::start(fixture, &container);
    (container, worker)
}

#[test]
fn each_instance_has_its_own_folder_and_settings() {
    let fixture = Fixture::new(PARTITIONED).walled("dmem");
    let tree = has_fuse("mig").then(|| Tree::of(&fixture));
    let start =
        || Monitor::start_with(&fixture, if tree.is_some() { "" } else { "tree = \"none\"\n" });
    let mut monitor = start();
    // The partitioned GPU itself computes nothing: its instances are listed in its place.
    assert_eq!(
        cgpu(&fixture, &["ls"]).silent().stdout,
        "version\ndefault_memsize\n0/\n1.0/\n1.1/\n"
    );
    let gpus = fixture.smi()["gpus"].clone();
    let index_and_size =
        |gpu: &Value| (gpu["index"].clone(), gpu["memory_total"].as_u64().expect("a size") / MIB);
    let gpus: Vec<_> = gpus.as_array().expect("gpus").iter().map(index_and_size).collect();
    assert_eq!(gpus, [(0.into(), 15109), ("1.0".into(), 20480), ("1.1".into(), 5120)]);
    let uuid = |at: usize| fixture.smi()["gpus"][at]["uuid"].as_str().expect("a UUID").to_owned();
    assert!(uuid(0).starts_with("GPU-") && uuid(1).starts_with("MIG-") && uuid(1) != uuid(2));

    let (big, small) = (uuid(1), uuid(2));
    let tenants =
        [tenant(&fixture, "a", &big), tenant(&fixture, "b", &big), tenant(&fixture, "c", &small)];
    for (container, _) in &tenants {
        let known = || {
            fixture.accounting(container)["gpus"].as_array().is_some_and(|gpus| !gpus.is_empty())
        };
        fixture.eventually("a container with its instance", || known().then_some(()));
    }
    let of = |at: usize| fixture.accounting(&tenants[at].0)["gpus"][0]["gpu"].clone();
    assert_eq!([of(0), of(1), of(2)], ["1.0", "1.0", "1.1"].map(Value::from));
    // The driver could limit a control group on the whole GPU alone.
    for (container, _) in &tenants {
        let wall = &fixture.accounting(container)["gpus"][0]["wall"];
        assert_eq!((&wall["state"], &wall["absent"]), (&"shim".into(), &"mig".into()), "{wall:#}");
    }

    for (node, value, before) in [
        ("1.0/policy", "2", "1"),
        ("1.0/a/weight", "3", "1"),
        ("1.1/max_inst", "7", "20"),
        ("1.1/prio_ratio", "55", "80"),
        ("1.1/c/memsize", "1073741824", "4294967296"),
        ("1.0/b/highprio", "1", "0"),
    ] {
        assert_eq!(cgpu(&fixture, &["get", node]).silent().stdout, format!("{before}\n"), "{node}");
        match &tree {
            Some(tree) => fs::write(tree.path(node), format!("{value}\n")).expect(node),
            None => fixture.set(node, value),
        }
        assert_eq!(cgpu(&fixture, &["get", node]).silent().stdout, format!("{value}\n"), "{node}");
        if let Some(tree) = &tree {
            assert_eq!(tree.read(node).expect(node), format!("{value}\n"), "{node}");
        }
    }
    for (arguments, errno) in [
        (&["get", "1/policy"][..], "ENOENT"),
        (&["get", "1.2/policy"], "ENOENT"),
        (&["get", "1.0/c/weight"], "ENOENT"),
        (&["get", "01.0/policy"], "ENOENT"),
        (&["set", "1.0/policy", "6"], "EINVAL"),
        (&["set", "1.0/a/weight", "26"], "EINVAL"),
        (&["set", "1.0/free_weight", "1"], "EACCES"),
        (&["set", "1.1/c/memsize", "6442450944"], "EINVAL"),
    ] {
        let outcome = cgpu(&fixture, arguments).exits(1);
        assert!(outcome.stderr.contains(errno), "{arguments:?}: {outcome:?}");
    }
    if let Some(tree) = &tree {
        for (node, errno) in [("1/policy", libc::ENOENT), ("1.2/policy", libc::ENOENT)] {
            assert_eq!(tree.read(node).expect_err(node).raw_os_error(), Some(errno), "{node}");
        }
        let read_only = fs::write(tree.path("1.1/c/id"), "x").expect_err("read-only");
        assert_eq!(read_only.raw_os_error(), Some(libc::EACCES));
        let mut names: Vec<_> =
            fs::read_dir(tree.path("1.0")).expect("a folder").flatten().collect();
        names.retain(|entry| entry.path().is_dir());
        assert_eq!(names.len(), 2, "{names:?}");
    }
    for (node, value) in
        [("1.1/policy", "1"), ("0/policy", "1"), ("1.0/max_inst", "20"), ("0/max_inst", "20")]
    {
        assert_eq!(cgpu(&fixture, &["get", node]).silent().stdout, format!("{value}\n"), "{node}");
    }

    monitor.process.kill();
    monitor = start();
    for (node, value) in [("1.0/policy", "2"), ("1.1/max_inst", "7"), ("1.0/a/weight", "3")] {
        let so = || cgpu(&fixture, &["get", node]).stdout == format!("{value}\n");
        fixture.eventually(node, || so().then_some(()));
    }
    drop(monitor);
    for (_, worker) in tenants {
        worker.finish();
    }
}

#[test]
fn turns_are_taken_within_one_instance_only() {
    let fixture = Fixture::new(PARTITIONED);
    let _monitor = Monitor::start_with(&fixture, "tree = \"none\"\n[gpu.\"1.0\"]\npolicy = 2\n");
    let uuid = |at: usize| fixture.smi()["gpus"][at]["uuid"].as_str().expect("a UUID").to_owned();
    let (big, small) = (uuid(1), uuid(2));
    let mut tenants =
        [tenant(&fixture, "a", &big), tenant(&fixture, "b", &big), tenant(&fixture, "c", &small)];
    for (_, worker) in &mut tenants {
        worker.begin(60.0);
    }
    let sharing = |at: usize| fixture.smi()["gpus"][at]["sharing"].clone();
    fixture.eventually("turns on the instance that two have", || {
        (sharing(1) == "contended").then_some(())
    });
    assert_eq!(sharing(2), "open");
    assert_eq!(fixture.smi()["gpus"][1]["policy"], 2, "as its configuration wants");
    let turns =
        |at: usize| fixture.accounting(&tenants[at].0)["gpus"][0]["turns"].as_u64().expect("turns");
    fixture.eventually("turns of both", || (turns(0) > 0 && turns(1) > 0).then_some(()));
    assert_eq!(turns(2), 0, "alone on its instance");
    for (_, worker) in tenants {
        worker.process.kill();
    }
}
