use cgpu_client::device_id::DeviceId;
use cgpu_client::inventory::HostDevice;
use cgpu_kubernetes_core::quantity::whole;
use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::device::Details;
use crate::fixture::{device, pool};
use crate::owner::OtherOwner;

#[test]
fn gpu_is_published_with_attributes_and_capacity() {
    let mut gpu = device("0");
    gpu.details = Details {
        product_name: Some("Tesla T4".into()),
        architecture: Some("Turing".into()),
        driver_version: Some("535.183.06".into()),
        cuda_driver_version: Some("12.2".into()),
        numa_node: Some(1),
        pcie_root: Some("pci0000:00".into()),
        mig_profile: None,
    };
    let pool = Pool { node: "n1".into(), devices: vec![gpu] };
    let mut slice = slices(&pool, 3).remove(0);
    slice.metadata.resource_version = "7".into();
    assert_eq!(
        slice.to_json("uid-n1"),
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": "n1-gpu.cgpu.dev-0", "resourceVersion": "7", "ownerReferences":
                [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"}]},
            "spec": {
                "driver": "gpu.cgpu.dev", "nodeName": "n1",
                "pool": {"name": "n1", "generation": 3, "resourceSliceCount": 1},
                "devices": [{
                    "name": "gpu-0",
                    "allowMultipleAllocations": true,
                    "attributes": {
                        "uuid": {"string": "GPU-00000000-0000-0000-0000-000000000000"},
                        "index": {"int": 0}, "type": {"string": "gpu"},
                        "mode": {"string": "weight"},
                        "productName": {"string": "Tesla T4"},
                        "architecture": {"string": "Turing"},
                        "driverVersion": {"version": "535.183.6"},
                        "driverVersionText": {"string": "535.183.06"},
                        "cudaDriverVersion": {"version": "12.2.0"},
                        "numaNode": {"int": 1},
                        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
                    },
                    "capacity": {
                        "memory": {"value": "15104Mi", "requestPolicy": {"default": "15104Mi",
                            "validRange": {"min": "128Mi", "step": "128Mi"}}},
                        "weight": {"value": "20", "requestPolicy": {"default": "1",
                            "validRange": {"min": "1", "max": "20", "step": "1"}}},
                    },
                }],
            },
        })
    );
}

#[test]
fn device_shares_by_weight_or_by_cores() {
    let mut gpu = device("0");
    let policies = |gpu: &Device| {
        let capacity = capacity(gpu);
        let policy = |name: &str| {
            let amount = capacity.get(name)?;
            let policy = amount.request_policy.as_ref()?;
            Some((amount.value.clone(), policy.default.clone(), policy.valid_range.max.clone()?))
        };
        [policy("weight"), policy("cores")]
    };
    let of = |texts: [&str; 3]| Some((texts[0].into(), texts[1].into(), texts[2].into()));
    assert_eq!(policies(&gpu), [of(["20", "1", "20"]), None]);
    gpu.mode = Mode::Cores;
    assert_eq!(policies(&gpu), [of(["20", "1", "1"]), of(["100", "5", "100"])]);
    gpu.max_weight = 3;
    assert_eq!(policies(&gpu), [of(["3", "1", "1"]), of(["100", "33", "100"])]);
}

#[test]
fn instance_unhealthy_gpu_and_gpu_of_another_owner_are_told_apart() {
    let mut pool = pool();
    pool.devices[1].healthy = false;
    for device in &mut pool.devices[1..] {
        device.other_owner = Some(OtherOwner::Plugin("nvidia.com/gpu".into()));
    }
    pool.devices.push(Device {
        host: HostDevice { is_partitioned: true, ..device("3").host },
        ..device("3")
    });
    pool.devices.push(Device {
        host: HostDevice { total: Bytes((128 << 20) - 1), ..device("4").host },
        ..device("4")
    });
    let devices = slices(&pool, 1).remove(0).spec.devices;
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["gpu-0", "gpu-1", "gpu-2-mig-0"]);
    let uuid = Attribute::String("MIG-21212121-2121-2121-2121-212121212121".into());
    assert_eq!(devices[2].attributes["uuid"], uuid);
    assert_eq!(devices[2].attributes["type"], Attribute::String("mig".into()));
    let owned = json!({"key": "gpu.cgpu.dev/other-owner", "value": "nvidia.com.gpu",
        "effect": "NoSchedule"});
    let unhealthy = json!({"key": "gpu.cgpu.dev/unhealthy", "effect": "NoSchedule"});
    assert!(devices[0].taints.is_empty());
    assert_eq!(json!(devices[1].taints), json!([unhealthy, owned]));
    assert_eq!(json!(devices[2].taints), json!([owned]));
    // The next driver takes over what was unhealthy, and looks for other owners itself.
    let published = stored(&slices(&pool, 1).remove(0), "1");
    let healthy: Vec<bool> =
        earlier_devices([&published]).iter().map(|device| device.healthy).collect();
    assert_eq!(healthy, [true, false, true]);
}

/// As the API server returns a slice: it adds fields and leaves out empty ones.
fn stored(slice: &ResourceSlice, version: &str) -> Existing {
    let mut value = slice.to_json("u");
    value["metadata"]["resourceVersion"] = version.into();
    value["metadata"]["uid"] = "x".into();
    value["spec"]["nodeSelector"] = Value::Null;
    for device in value["spec"]["devices"].as_array_mut().unwrap() {
        for taint in device["taints"].as_array_mut().into_iter().flatten() {
            taint["timeAdded"] = "2026-01-01T00:00:00Z".into();
        }
    }
    serde_json::from_value(value).unwrap()
}

fn apply(changes: Vec<Change>, existing: &mut Vec<Existing>) {
    for change in changes {
        match change {
            Change::Create(slice) => existing.push(stored(&slice, "1")),
            Change::Replace(slice) => {
                let is_known = |known: &Existing| {
                    let of = |of: &Metadata| (of.name.clone(), of.resource_version.clone());
                    of(&known.metadata) == of(&slice.metadata)
                };
                let at = existing.iter().position(is_known).expect("the version that is known");
                existing[at] = stored(&slice, "2");
            }
            Change::Delete(name) => existing.retain(|slice| slice.metadata.name != name),
        }
    }
}

#[test]
fn slices_are_written_when_they_differ() {
    let mut pool = pool();
    let mut existing = Vec::new();
    let generations =
        |existing: &[Existing]| existing.iter().map(Existing::generation).collect::<Vec<_>>();
    apply(changes([], &pool), &mut existing);
    assert_eq!(generations(&existing), [1]);
    assert_eq!(changes(&existing, &pool), []);
    // A GPU fails and recovers.
    for (healthy, generation) in [(false, 2), (true, 3)] {
        pool.devices[0].healthy = healthy;
        apply(changes(&existing, &pool), &mut existing);
        assert_eq!(generations(&existing), [generation]);
        assert_eq!(existing[0].spec["devices"][0]["taints"].is_null(), healthy);
        assert_eq!(earlier_devices(&existing)[0].healthy, healthy);
        assert_eq!(changes(&existing, &pool), []);
    }
    // More devices than a slice holds, and fewer again. All slices have one generation.
    let few = pool.clone();
    pool.devices = (0..65).map(|gpu| numbered(gpu, None)).collect();
    apply(changes(&existing, &pool), &mut existing);
    let sizes: Vec<usize> =
        existing.iter().map(|slice| slice.spec["devices"].as_array().unwrap().len()).collect();
    assert_eq!((sizes, generations(&existing)), (vec![64, 1], vec![4, 4]));
    assert_eq!(existing[0].spec["pool"]["resourceSliceCount"], 2);
    // A writer that is killed before it deletes the second slice leaves one of an older generation,
    // which readers ignore. The next one finishes.
    let fewer = changes(&existing, &few);
    assert_eq!(fewer.len(), 2);
    let mut unfinished = existing.clone();
    apply(fewer[..1].to_vec(), &mut unfinished);
    assert_eq!(generations(&unfinished), [5, 4]);
    apply(changes(&unfinished, &few), &mut unfinished);
    assert_eq!(generations(&unfinished), [6]);
    apply(fewer, &mut existing);
    assert_eq!(generations(&existing), [5]);
    assert_eq!(existing[0].spec["pool"]["resourceSliceCount"], 1);
    // A writer was killed between two slices, or another release has another form.
    pool.devices = (0..65).map(|gpu| numbered(gpu, None)).collect();
    let written = changes(&existing, &pool);
    apply(written.into_iter().take(1).collect(), &mut existing);
    apply(changes(&existing, &pool), &mut existing);
    assert_eq!(generations(&existing), [7, 7]);
    existing[1].spec["devices"] = "x".into();
    apply(changes(&existing, &pool), &mut existing);
    assert_eq!(generations(&existing), [8, 8]);
    assert_eq!(changes(&existing, &pool), []);
}

#[test]
fn slices_stored_without_shares_are_recognized() {
    let pool = pool();
    let mut existing = Vec::new();
    apply(changes([], &pool), &mut existing);
    assert!(!are_unshared(&existing, &pool));
    for device in existing[0].spec["devices"].as_array_mut().unwrap() {
        device.as_object_mut().unwrap().remove("allowMultipleAllocations");
        for amount in device["capacity"].as_object_mut().unwrap().values_mut() {
            amount.as_object_mut().unwrap().remove("requestPolicy");
        }
    }
    assert!(are_unshared(&existing, &pool));
    assert_eq!(changes(&existing, &pool).len(), 1, "they are not what was written");
    let mut other = pool.clone();
    other.devices[0].healthy = false;
    assert!(!are_unshared(&existing, &other));
    assert!(!are_unshared([], &pool));
}

fn numbered(gpu: u32, instance: Option<u32>) -> Device {
    let id = instance.map_or(DeviceId::of_gpu(gpu), |at| DeviceId::of_instance(gpu, at));
    Device { host: HostDevice { id, ..device("0").host }, ..device("0") }
}

/// Checks a slice by the rules of the API server.
fn check_valid(slice: &ResourceSlice) {
    let is_label = |text: &str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !text.is_empty()
            && text.len() <= 63
            && text.chars().all(plain)
            && !text.starts_with('-')
            && !text.ends_with('-')
    };
    let is_identifier = |text: &str| {
        let (domain, name) = text.rsplit_once('/').unwrap_or(("a", text));
        let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        starts && name.len() <= 32 && name.chars().all(plain) && domain.len() <= 63
    };
    let is_semantic = |text: &str| {
        let numbers: Vec<&str> = text.split('+').next().unwrap_or_default().split('.').collect();
        let number = |text: &&str| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty();
            digits && (*text == "0" || !text.starts_with('0'))
        };
        numbers.len() == 3 && numbers.iter().all(number) && text.len() <= 64
    };
    let devices = &slice.spec.devices;
    let tainted = devices.iter().any(|device| !device.taints.is_empty());
    assert!(devices.len() <= if tainted { 64 } else { 128 });
    let mut names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), devices.len());
    for device in devices {
        assert!(is_label(&device.name), "{}", device.name);
        assert!(device.attributes.len() + device.capacity.len() <= 32);
        for (name, value) in &device.attributes {
            assert!(is_identifier(name), "{name}");
            match value {
                Attribute::String(text) => assert!(text.len() <= 64, "{text}"),
                Attribute::Version(text) => assert!(is_semantic(text), "{text}"),
                Attribute::Int(_) | Attribute::Bool(_) => {}
            }
        }
        for (name, amount) in &device.capacity {
            assert!(is_identifier(name), "{name}");
            let value = whole(&amount.value).unwrap();
            let policy = amount.request_policy.as_ref().unwrap();
            let default = whole(&policy.default).unwrap();
            let range = &policy.valid_range;
            let (min, step) = (whole(&range.min).unwrap(), range.step.as_deref().map(whole));
            let step = step.unwrap().unwrap();
            let max = range.max.as_deref().map_or(value, |max| whole(max).unwrap());
            assert!(min <= default && default <= max && max <= value && min > 0, "{amount:?}");
            assert!((default - min).is_multiple_of(step) && (max - min).is_multiple_of(step));
        }
    }
}

proptest! {
    #[test]
    fn slices_of_any_inventory_are_valid(
        gpus in proptest::collection::btree_set(
            (0..70_u32, proptest::option::of(0..7_u32)),
            0..200,
        ),
        total in 0..1_u64 << 40,
        texts in proptest::option::of("\\PC{0,100}"),
        version in proptest::option::of("[0-9.]{0,70}"),
        (cores, max_weight) in (any::<bool>(), 1..=25_u32),
        broken in any::<bool>(),
    ) {
        let devices = gpus.into_iter().enumerate().map(|(at, (gpu, instance))| {
            let mut device = numbered(gpu, instance);
            device.host.total = Bytes(total);
            device.host.uuid = Uuid([u8::try_from(at).unwrap(); 16]);
            device.mode = if cores { Mode::Cores } else { Mode::Weight };
            device.max_weight = max_weight;
            device.healthy = !broken || at % 5 > 0;
            device.details = Details {
                product_name: texts.clone(), architecture: texts.clone(),
                mig_profile: texts.clone(), driver_version: version.clone(),
                cuda_driver_version: version.clone(), numa_node: Some(gpu),
                pcie_root: texts.clone(),
            };
            device
        });
        let pool = Pool { node: "n1".into(), devices: devices.collect() };
        let offered = pool.devices.iter().filter(|device| device.is_offered()).count();
        let slices = slices(&pool, 1);
        slices.iter().for_each(check_valid);
        let published: usize = slices.iter().map(|slice| slice.spec.devices.len()).sum();
        prop_assert_eq!(published, offered);
        let count = i64::try_from(slices.len()).unwrap();
        prop_assert!(slices.iter().all(|slice| slice.spec.pool.resource_slice_count == count));
        let existing: Vec<Existing> = slices.iter().map(|slice| stored(slice, "1")).collect();
        prop_assert_eq!(changes(&existing, &pool), []);
        // A driver that knows only these slices publishes the same.
        let earlier: Vec<Earlier> = earlier_devices(&existing);
        let devices = pool.devices.iter().filter(|device| device.is_offered()).zip(earlier);
        let devices = devices.map(|(device, Earlier { host, details, healthy })| {
            Device { host, details, healthy, ..device.clone() }
        });
        let again = Pool { node: "n1".into(), devices: devices.collect() };
        prop_assert_eq!(again.devices.len(), offered);
        prop_assert_eq!(changes(&existing, &again), []);
    }

    #[test]
    fn written_quantity_is_read_back(bytes in 0..i64::MAX.cast_unsigned()) {
        prop_assert_eq!(whole(&written(bytes)), Ok(bytes));
    }
}

#[test]
fn quantity_is_written_as_the_api_server_writes_it() {
    for (bytes, text) in [
        (0, "0"),
        (1023, "1023"),
        (1024, "1Ki"),
        (128 << 20, "128Mi"),
        (15104 << 20, "15104Mi"),
        (24 << 30, "24Gi"),
        (1 << 40, "1Ti"),
        (1 << 60, "1Ei"),
    ] {
        assert_eq!(written(bytes), text);
    }
}
