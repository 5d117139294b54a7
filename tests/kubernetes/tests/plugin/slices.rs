//! The slice that a container gets.

use cgpu_e2e::Fixture;
use cgpu_kubernetes_tests::api_server::Key;
use cgpu_kubernetes_tests::kubelet::Admitted;
use serde_json::json;

use crate::host::{CORE, COUNT, Host, MEMORY, MIB, NODE, container, limits};

#[test]
fn equal_containers_of_a_pod_get_their_own_slices() {
    let fixture = Fixture::new("T4:15109,T4:15109");
    let host = Host::new(&fixture, "T4:15109,T4:15109");
    let plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 28, 28);
    host.kubelet.offers(CORE, 200, 200);
    host.fixture.eventually("the number of GPUs", || {
        let status = &host.node()["status"];
        (status["capacity"][COUNT] == "2"
            && status["allocatable"][COUNT] == "2"
            && status["capacity"]["cpu"] == "2")
            .then_some(())
    });

    let pod = host.pod(
        "p",
        &[
            ("first", &[(MEMORY, "2")]),
            ("second", &[(MEMORY, "2"), (CORE, "30")]),
            ("third", &[(MEMORY, "2")]),
        ],
        &json!({"0": {"1": 2}, "1": {"0": 2}, "2": {"1": 2}}),
    );
    let admitted = host.admit(&pod);
    // Containers are created in another order than they were admitted.
    for index in [2, 1, 0] {
        let gpu = usize::from(index != 1);
        let made = host.create(&pod, &admitted[index]);
        let expected = [
            ("NVIDIA_VISIBLE_DEVICES", host.uuid(gpu)),
            ("ALIYUN_COM_GPU_MEM_IDX", gpu.to_string()),
            ("ALIYUN_COM_GPU_MEM_POD", "6".to_owned()),
            ("ALIYUN_COM_GPU_MEM_CONTAINER", "2".to_owned()),
            ("ALIYUN_COM_GPU_MEM_DEV", "14".to_owned()),
        ];
        for (name, value) in expected {
            assert_eq!(made.variables.get(name), Some(&value), "{made:?}");
        }
        let percent = made.variables.get("ALIYUN_COM_GPU_CORE_PERCENTAGE").map(String::as_str);
        assert_eq!(percent, (index == 1).then_some("30"));
        assert_eq!(limits(&made), [(host.uuid(gpu), 15109 * 2 / 14 * MIB)].into());
        // `kubectl exec ... env`, as in the documents, shows the same.
        assert_eq!(host.engine.exec(&pod, &admitted[index], &made), made.variables);
    }
    host.wait_for_annotation("p", "ALIYUN_COM_GPU_MEM_ASSIGNED", "true");
    // A container that restarts gets the same slice and variables.
    let again = host.admit(&pod);
    assert_eq!(again, admitted);
    assert_eq!(
        limits(&host.create(&pod, &again[1])),
        [(host.uuid(0), 15109 * 2 / 14 * MIB)].into()
    );
    assert_eq!(host.kubelet.complaints(), Vec::<String>::new());
    drop(plugin);
}

#[test]
fn equal_pods_in_any_order_get_their_own_slices() {
    let fixture = Fixture::new("T4:15109,A10:23028");
    let host = Host::new(&fixture, "T4:15109,A10:23028");
    let _plugin = host.plugin(&[]);
    // Each GPU in its own units: 14 and 22.
    host.kubelet.offers(MEMORY, 36, 36);
    let main: &[(&str, &[(&str, &str)])] = &[("main", &[(MEMORY, "8")])];
    let first = host.pod("first", main, &json!({"0": {"0": 8}}));
    let second = host.pod("second", main, &json!({"0": {"1": 8}}));
    let of_second = host.admit(&second);
    let of_first = host.admit(&first);
    let made = host.create(&first, &of_first[0]);
    assert_eq!(limits(&made), [(host.uuid(0), 15109 * 8 / 14 * MIB)].into());
    let made = host.create(&second, &of_second[0]);
    assert_eq!(made.variables["ALIYUN_COM_GPU_MEM_DEV"], "22");
    assert_eq!(limits(&made), [(host.uuid(1), 23028 * 8 / 22 * MIB)].into());

    // Another pod's token gives no slice.
    let third = host.pod("third", main, &json!({"0": {"1": 8}}));
    let mut of_third = host.admit(&third);
    of_third[0].variables.clone_from(&of_second[0].variables);
    of_third[0].devices.clone_from(&of_second[0].devices);
    let refusal = host.engine.create(&third, &of_third[0]).unwrap_err();
    assert!(
        refusal.contains("container `main` of test/third gets no slice of a GPU: the slice")
            && refusal.contains(&format!(
                "belongs to container `main` of pod {}",
                second["metadata"]["uid"].as_str().unwrap()
            )),
        "{refusal}"
    );
}

#[test]
fn pod_over_unequal_gpus_gets_a_part_of_each() {
    let fixture = Fixture::new("T4:15109,A10:23028");
    let host = Host::new(&fixture, "T4:15109,A10:23028");
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 36, 36);
    host.kubelet.offers(CORE, 200, 200);
    let mut pod =
        host.pod("p", &[("main", &[(MEMORY, "8"), (CORE, "50")])], &json!({"0": {"0": 4, "1": 4}}));
    pod["metadata"]["labels"] = json!({COUNT: "2"});
    let pod = host.server.put("pods", pod);
    let made = host.create(&pod, &host.admit(&pod)[0]);
    assert_eq!(made.variables["ALIYUN_COM_GPU_MEM_CONTAINER"], "4");
    assert_eq!(made.variables["ALIYUN_COM_GPU_MEM_DEV"], "14,22");
    assert_eq!(made.variables["ALIYUN_COM_GPU_CORE_PERCENTAGE"], "25");
    assert_eq!(
        limits(&made),
        [(host.uuid(0), 15109 * 4 / 14 * MIB), (host.uuid(1), 23028 * 4 / 22 * MIB)].into()
    );
}

#[test]
fn ids_are_reused_within_a_pod_and_after_it() {
    let fixture = Fixture::new("T4:15109");
    let host = Host::new(&fixture, "T4:15109");
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 14, 14);
    let spec = json!({
        "nodeName": NODE,
        "initContainers": [container("init", &[(MEMORY, "10")])],
        "containers": [container("main", &[(MEMORY, "6")]), container("other", &[(MEMORY, "4")])],
    });
    let pod = host.put("p", &spec, &json!({"0": {"0": 6}, "1": {"0": 4}, "2": {"0": 10}}));
    let admitted = host.admit(&pod);
    let ids = |admitted: &Admitted| admitted.ids[MEMORY].clone();
    assert!(
        ids(&admitted[1]).iter().chain(&ids(&admitted[2])).all(|id| ids(&admitted[0]).contains(id)),
        "{admitted:?}"
    );
    for (admitted, units) in admitted.iter().zip([10, 6, 4]) {
        let made = host.create(&pod, admitted);
        assert_eq!(limits(&made), [(host.uuid(0), 15109 * units / 14 * MIB)].into());
        if units == 10 {
            host.engine.delete(&made);
        }
    }
    // The kubelet knows of a pod's end first.
    host.server.lose_events(1);
    host.server.remove(&Key::pod("test", "p"));
    host.kubelet.end(&pod);
    let next = host.pod("next", &[("main", &[(MEMORY, "14")])], &json!({"0": {"0": 14}}));
    let admitted = host.admit(&next);
    assert_eq!(ids(&admitted[0]).len(), 14);
    // The engine has deleted its containers as well.
    for folder in std::fs::read_dir(fixture.root().join("containers")).expect("a folder") {
        let folder = folder.expect("a folder").path();
        // It is a mount of its own, where the host sees mounts of this namespace.
        let _ = std::process::Command::new("umount").arg("--quiet").arg(&folder).status();
        std::fs::remove_dir_all(folder).expect("a folder");
    }
    assert_eq!(limits(&host.create(&next, &admitted[0])), [(host.uuid(0), 15109 * MIB)].into());
}

#[test]
fn hami_resources_are_served_when_enabled() {
    let fixture = Fixture::new("T4:15109,A10:23028");
    let host = Host::new(&fixture, "T4:15109,A10:23028");
    let _plugin = host.plugin(&["--hami"]);
    host.kubelet.offers("nvidia.com/gpu", 50, 50);
    host.kubelet.offers(MEMORY, 36, 36);
    let pod = host.pod(
        "p",
        &[(
            "main",
            &[
                ("nvidia.com/gpu", "2"),
                ("nvidia.com/gpumem", "3000"),
                ("nvidia.com/gpucores", "30"),
            ],
        )],
        &json!({"0": {"0": 3, "1": 3}}),
    );
    let admitted = host.admit(&pod);
    assert_eq!(admitted[0].ids["nvidia.com/gpu"].len(), 2);
    let made = host.create(&pod, &admitted[0]);
    assert_eq!(made.variables["ALIYUN_COM_GPU_CORE_PERCENTAGE"], "30");
    assert_eq!(limits(&made), [(host.uuid(0), 3000 * MIB), (host.uuid(1), 3000 * MIB)].into());
    // Each resource numbers its own IDs.
    let other = host.pod("q", &[("main", &[(MEMORY, "2")])], &json!({"0": {"0": 2}}));
    assert_eq!(
        host.create(&other, &host.admit(&other)[0]).variables["ALIYUN_COM_GPU_MEM_IDX"],
        "0"
    );
}

#[test]
fn engine_without_cdi_gets_the_same_limits() {
    let fixture = Fixture::new("T4:15109");
    let mut host = Host::new(&fixture, "T4:15109");
    host.engine = host.engine.without_cdi();
    let _plugin = host.plugin(&["--no-cdi"]);
    host.kubelet.offers(MEMORY, 14, 14);
    let pod = host.pod("p", &[("main", &[(MEMORY, "2")])], &json!({"0": {"0": 2}}));
    let admitted = host.admit(&pod);
    assert_eq!(admitted[0].devices, Vec::<String>::new());
    assert_eq!(
        limits(&host.create(&pod, &admitted[0])),
        [(host.uuid(0), 15109 * 2 / 14 * MIB)].into()
    );
    assert!(!fixture.path("cdi").exists());
}
