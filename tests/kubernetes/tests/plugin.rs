//! The real device plugin and the real `cgpu-runtime`, between a kubelet, an API server and an engine that are played, on simulated GPUs.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use cgpu_e2e::{Child, Monitor, Outcome, Runtime, Scene, Yard, contained};
use cgpu_kubernetes_tests::api_server::{ApiServer, Key};
use cgpu_kubernetes_tests::engine::{Container, Engine};
use cgpu_kubernetes_tests::extender::Extender;
use cgpu_kubernetes_tests::kubelet::{Given, Kubelet};
use cgpu_kubernetes_tests::objects;
use cgpu_kubernetes_tests::wait::until_holds;
use serde_json::{Value, json};

const MEMORY: &str = "aliyun.com/gpu-mem";
const CORE: &str = "aliyun.com/gpu-core.percentage";
const COUNT: &str = "aliyun.com/gpu-count";
const NODE: &str = "n1";

/// A node with a kubelet and an engine, and the API server that knows it. What lives longer than a test's own things comes first.
struct Host<'a> {
    scene: &'a Scene,
    server: ApiServer,
    kubelet: Kubelet,
    engine: Engine<'a>,
}

impl<'a> Host<'a> {
    fn new(scene: &'a Scene, gpus: &str) -> Self {
        Self::labelled(scene, gpus, &json!({}))
    }

    fn labelled(scene: &'a Scene, gpus: &str, labels: &Value) -> Self {
        let server = ApiServer::start();
        server.put("nodes", json!({"metadata": {"name": NODE, "labels": labels}, "status": {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"}}}));
        let engine = Engine::new(scene, gpus, &scene.path("cdi"));
        Self { scene, server, kubelet: Kubelet::start(&scene.path("plugins")), engine }
    }

    fn command(&self, options: &[&str]) -> std::process::Command {
        let dist = self.scene.dist();
        let mut command = self.scene.native(&dist.file("cgpu-device-plugin"));
        command.arg("--kubeconfig").arg(self.server.kubeconfig(&self.scene.path("")));
        command.args(["--node-name", NODE]);
        for (option, path) in [
            ("--kubelet-dir", self.scene.path("plugins")),
            ("--root", self.scene.root()),
            ("--cdi-dir", self.scene.path("cdi")),
            ("--runtime", dist.file("cgpu-runtime")),
        ] {
            command.arg(option).arg(path);
        }
        command.args(options);
        command
    }

    /// Starts the plugin; it may not have registered yet.
    fn plugin(&self, options: &[&str]) -> Child {
        Child::start_for(self.command(options), self.scene.lifetime())
    }

    fn node(&self) -> Value {
        self.server.object(&Key::node(NODE)).expect("the node")
    }

    /// The GPUs as they stand on the node.
    fn gpus(&self) -> Vec<Value> {
        let text = self.node()["metadata"]["annotations"]["cgpu.dev/gpus"].as_str().map(str::to_owned);
        let told: Value = serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default();
        told["gpus"].as_array().cloned().unwrap_or_default()
    }

    /// Whether GPUs are well, as it stands on the node.
    fn stands(&self, healthy: [bool; 2]) {
        self.scene.eventually("what stands on the node", || {
            let gpus = self.gpus();
            (gpus[0]["healthy"] == healthy[0] && gpus[1]["healthy"] == healthy[1]).then_some(())
        });
    }

    /// A GPU reports an error (XID).
    fn report(&self, gpu: &str, code: &str) {
        let mut command = self.scene.native(&self.scene.dist().file("cgpu-sim"));
        command.args(["xid", gpu, code]);
        Outcome::of(command).exits(0);
    }

    fn uuid(&self, gpu: usize) -> String {
        self.gpus()[gpu]["uuid"].as_str().expect("a UUID").to_owned()
    }

    /// A pod on the node, as somebody placed it: containers with their limits, and who has what of which GPU. Null: it was placed past the extender.
    fn pod(&self, name: &str, containers: &[(&str, &[(&str, &str)])], allocation: &Value) -> Value {
        let containers: Vec<Value> =
            containers.iter().map(|(name, limits)| container(name, limits)).collect();
        self.put(name, &json!({ "nodeName": NODE, "containers": containers }), allocation)
    }

    fn put(&self, name: &str, spec: &Value, allocation: &Value) -> Value {
        let mut annotations = json!({});
        if !allocation.is_null() {
            annotations = json!({
                "scheduler.framework.gpushare.allocation": allocation.to_string(),
                "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
                "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1",
                "cgpu.dev/node": NODE,
            });
        }
        self.server.put(
            "pods",
            json!({
                "metadata": {"name": name, "namespace": "test", "annotations": annotations},
                "spec": spec, "status": {"phase": "Pending"},
            }),
        )
    }

    fn admit(&self, pod: &Value) -> Vec<Given> {
        self.kubelet.admit(pod).expect("devices for the pod")
    }

    fn create(&self, pod: &Value, given: &Given) -> Container {
        self.engine.create(pod, given).expect("a container")
    }

    /// Waits for what stands on a pod.
    fn annotated(&self, pod: &str, name: &str, text: &str) {
        self.scene.eventually(&format!("{name} of {pod} is {text}"), || {
            let pod = self.server.object(&Key::pod("test", pod))?;
            (pod["metadata"]["annotations"][name] == text).then_some(())
        });
    }
}

fn container(name: &str, limits: &[(&str, &str)]) -> Value {
    let limits: BTreeMap<&str, &str> = limits.iter().copied().collect();
    json!({"name": name, "resources": {"limits": limits, "requests": limits}})
}

/// What a container's `limits` say: bytes by GPU.
fn limits(container: &Container) -> BTreeMap<String, u64> {
    let text = container.limits.as_deref().expect("limits");
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    words
        .filter_map(|words| match words[..] {
            ["gpu", uuid, bytes] => Some((uuid.to_owned(), bytes.parse().expect("a number"))),
            _ => None,
        })
        .collect()
}

const MIB: u64 = 1 << 20;

#[test]
fn containers_of_equal_size_in_one_pod_get_the_slices_that_were_chosen_for_them() {
    let scene = Scene::new("T4:15109,T4:15109");
    let host = Host::new(&scene, "T4:15109,T4:15109");
    let plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 28, 28);
    host.kubelet.offers(CORE, 200, 200);
    host.scene.eventually("the number of GPUs", || {
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
    let given = host.admit(&pod);
    // What comes first is not what was asked for first.
    for place in [2, 1, 0] {
        let gpu = usize::from(place != 1);
        let made = host.create(&pod, &given[place]);
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
        assert_eq!(percent, (place == 1).then_some("30"));
        assert_eq!(limits(&made), [(host.uuid(gpu), 15109 * 2 / 14 * MIB)].into());
        // Whoever looks by `kubectl exec ... env`, as the documents do, sees the same.
        assert_eq!(host.engine.exec(&pod, &given[place], &made), made.variables);
    }
    host.annotated("p", "ALIYUN_COM_GPU_MEM_ASSIGNED", "true");
    // A container that restarts is given the same, and told the same.
    let again = host.admit(&pod);
    assert_eq!(again, given);
    assert_eq!(limits(&host.create(&pod, &again[1])), [(host.uuid(0), 15109 * 2 / 14 * MIB)].into());
    assert_eq!(host.kubelet.complaints(), Vec::<String>::new());
    drop(plugin);
}

#[test]
fn pods_of_equal_size_are_told_apart_whatever_the_order() {
    let scene = Scene::new("T4:15109,A10:23028");
    let host = Host::new(&scene, "T4:15109,A10:23028");
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

    // Whoever shows another's token gets nothing by it.
    let third = host.pod("third", main, &json!({"0": {"1": 8}}));
    let mut of_third = host.admit(&third);
    of_third[0].variables.clone_from(&of_second[0].variables);
    of_third[0].devices.clone_from(&of_second[0].devices);
    let refusal = host.engine.create(&third, &of_third[0]).unwrap_err();
    assert!(
        refusal.contains("container `main` of test/third gets no slice of a GPU: the slice")
            && refusal.contains(&format!(
                "is container `main`'s of pod {}",
                second["metadata"]["uid"].as_str().unwrap()
            )),
        "{refusal}"
    );
}

#[test]
fn a_pod_over_unequal_gpus_has_a_part_of_each() {
    let scene = Scene::new("T4:15109,A10:23028");
    let host = Host::new(&scene, "T4:15109,A10:23028");
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 36, 36);
    host.kubelet.offers(CORE, 200, 200);
    let mut pod = host.pod("p", &[("main", &[(MEMORY, "8"), (CORE, "50")])], &json!({"0": {"0": 4, "1": 4}}));
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
fn small_units_fit_the_kubelets_message_or_are_refused_with_the_numbers() {
    let gpus = |count: usize| vec!["A100:81920"; count].join(",");
    let scene = Scene::new(&gpus(2));
    let host = Host::new(&scene, &gpus(2));
    let plugin = host.plugin(&["--memory-unit", "MiB"]);
    host.kubelet.offers(MEMORY, 163_840, 163_840);
    let pod = host.pod("p", &[("main", &[(MEMORY, "20000")])], &json!({"0": {"1": 20000}}));
    let made = host.create(&pod, &host.admit(&pod)[0]);
    assert_eq!(limits(&made), [(host.uuid(1), 20000 * MIB)].into());
    drop(plugin);

    let scene = Scene::new(&gpus(8));
    let host = Host::new(&scene, &gpus(8));
    let outcome = Outcome::of(host.command(&["--memory-unit", "MiB"])).exits(1);
    assert!(
        outcome.stderr.contains(
            "the node's 8 GPUs have 655360 units of MiB, which take a message of 12403852 bytes, and the kubelet takes 4194304; count in units of 128MiB instead"
        ),
        "{outcome:?}"
    );
    assert_eq!(host.kubelet.registrations(MEMORY), 0);
    let _plugin = host.plugin(&["--memory-unit", "128MiB"]);
    host.kubelet.offers(MEMORY, 5120, 5120);
    let pod = host.pod("p", &[("main", &[(MEMORY, "24")])], &json!({"0": {"7": 24}}));
    let made = host.create(&pod, &host.admit(&pod)[0]);
    assert_eq!(limits(&made), [(host.uuid(7), 24 * 128 * MIB)].into());
}

#[test]
fn kubelet_and_plugin_come_and_go() {
    let scene = Scene::new("T4:15109");
    let mut host = Host::new(&scene, "T4:15109");
    let plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 14, 14);
    let main: &[(&str, &[(&str, &str)])] = &[("main", &[(MEMORY, "2")])];
    let old = host.pod("old", main, &json!({"0": {"0": 2}}));
    let of_old = host.admit(&old);
    host.create(&old, &of_old[0]);
    let waiting = host.pod("waiting", main, &json!({"0": {"0": 2}}));
    let of_waiting = host.admit(&waiting);

    host.kubelet.restart();
    host.kubelet.offers(MEMORY, 14, 14);
    assert_eq!(host.kubelet.registrations(MEMORY), 2);
    assert_eq!(host.admit(&old), of_old);
    // Its socket alone was removed.
    std::fs::remove_file(scene.path("plugins/cgpu-mem.sock")).expect("the plugin's socket");
    host.scene.eventually("registered again", || (host.kubelet.registrations(MEMORY) == 3).then_some(()));
    host.kubelet.offers(MEMORY, 14, 14);

    // Who has what is known to the next plugin, from the pods.
    host.annotated("old", "ALIYUN_COM_GPU_MEM_ASSIGNED", "true");
    plugin.kill();
    host.scene
        .eventually("the kubelet's knowledge", || (host.kubelet.offer(MEMORY)?.healthy == 0).then_some(()));
    let refusal = host.engine.create(&waiting, &of_waiting[0]).unwrap_err();
    assert!(refusal.contains("the node's device plugin does not answer at"), "{refusal}");
    let plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 14, 14);
    host.create(&waiting, &of_waiting[0]);
    host.create(&old, &of_old[0]);
    let thief = host.pod("thief", main, &json!({"0": {"0": 2}}));
    let mut stolen = host.admit(&thief)[0].clone();
    stolen.variables.clone_from(&of_old[0].variables);
    stolen.devices.clone_from(&of_old[0].devices);
    let refusal = host.engine.create(&thief, &stolen).unwrap_err();
    assert!(refusal.contains("'s of pod"), "{refusal}");

    // One that is told to end leaves nothing behind.
    plugin.signal(15);
    assert_eq!(plugin.end().code(), Some(0));
    for left in [
        scene.path("plugins/cgpu-mem.sock"),
        scene.path("plugins/cgpu-core.sock"),
        scene.root().join("plugin.sock"),
    ] {
        assert!(!left.exists(), "{} is left", left.display());
    }
}

#[test]
fn a_gpu_falls_sick_and_is_well_again() {
    let scene = Scene::new("T4:15109,A10:23028");
    let host = Host::new(&scene, "T4:15109,A10:23028");
    let plugin = host.plugin(&["--recovery", "3600"]);
    host.kubelet.offers(MEMORY, 36, 36);
    // A page fault is a program's own; an uncorrected memory error is not.
    host.report("0", "31");
    host.report("1", "48");
    host.kubelet.offers(MEMORY, 14, 36);
    host.kubelet.offers(CORE, 100, 200);
    host.stands([true, false]);
    // Another plugin takes over what one has seen, and is done with it when the GPU was quiet.
    plugin.kill();
    let registrations = host.kubelet.registrations(MEMORY);
    let plugin = host.plugin(&["--recovery", "3600"]);
    host.scene.eventually("another registration", || {
        (host.kubelet.registrations(MEMORY) > registrations).then_some(())
    });
    host.kubelet.offers(MEMORY, 14, 36);
    plugin.kill();
    let _plugin = host.plugin(&["--recovery", "1"]);
    host.kubelet.offers(MEMORY, 36, 36);
    host.stands([true, true]);
}

#[test]
fn beside_a_gpu_that_is_lost_the_others_are_heard() {
    let scene = Scene::new("T4:15109,A10:23028,T4:15109");
    let host = Host::new(&scene, "T4:15109,A10:23028,T4:15109");
    let mut command = host.command(&["--recovery", "3600"]);
    // The first wait is told of the loss. The first GPU's name is not told any more, nor can it be listened to: of three GPUs those are the fourth calls.
    command.env(
        "CGPU_SIM_FAULT",
        "nvmlEventSetWait*:1:NVML_ERROR_GPU_IS_LOST,nvmlDeviceGetUUID:4+:NVML_ERROR_GPU_IS_LOST,nvmlDeviceRegisterEvents:4:NVML_ERROR_GPU_IS_LOST",
    );
    let _plugin = Child::start_for(command, scene.lifetime());
    host.kubelet.offers(MEMORY, 50, 50);
    let healthy = || host.gpus().iter().map(|gpu| gpu["healthy"] == true).collect::<Vec<_>>();
    host.scene.eventually("the last GPU's error", || {
        host.report("2", "48");
        (healthy() == [true, true, false]).then_some(())
    });
    // It can be listened to again: one more goes through, and so is heard beside the others.
    host.scene.eventually("the first GPU's error", || {
        host.report("0", "48");
        (healthy() == [false, true, false]).then_some(())
    });
    host.kubelet.offers(MEMORY, 22, 50);
}

#[test]
fn instances_are_gpus_of_their_own_and_as_well_as_their_gpu() {
    let gpus = "T4:15109,A100:40960/mig=3g.20gb,1g.5gb";
    let scene = Scene::new(gpus);
    let host = Host::new(&scene, gpus);
    let _plugin = host.plugin(&["--recovery", "3600"]);
    host.kubelet.offers(MEMORY, 14 + 20 + 5, 14 + 20 + 5);
    assert!(host.uuid(0).starts_with("GPU-") && host.uuid(1).starts_with("MIG-"), "{:?}", host.gpus());
    let pod = host.pod("p", &[("main", &[(MEMORY, "2")])], &json!({"0": {"1": 2}}));
    let made = host.create(&pod, &host.admit(&pod)[0]);
    let limited = host.uuid(1).replacen("MIG", "GPU", 1);
    assert_eq!(limits(&made), [(limited, 2048 * MIB)].into());
    host.report("1", "48");
    host.kubelet.offers(MEMORY, 14, 14 + 20 + 5);
}

#[test]
fn a_pod_that_came_past_the_extender_is_not_started() {
    let scene = Scene::new("T4:15109");
    let host = Host::new(&scene, "T4:15109");
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 14, 14);
    let main: &[(&str, &[(&str, &str)])] = &[("main", &[(MEMORY, "2")])];
    let refused = |pod: &Value, given: &Given, why: &str| {
        let refusal = host.engine.create(pod, given).unwrap_err();
        assert!(refusal.contains(why), "{refusal}");
    };
    let bypassed = host.pod("bypassed", main, &Value::Null);
    refused(
        &bypassed,
        &host.admit(&bypassed)[0],
        "container `main` of test/bypassed gets no slice of a GPU: no GPU was chosen for test/bypassed: it came past the scheduler extender",
    );
    // Amounts that do not agree, whoever changed which.
    let edited = host.pod("edited", main, &json!({"0": {"0": 3}}));
    refused(&edited, &host.admit(&edited)[0], "was given 3 units, but asks for 2");
    let small = host.pod("small", main, &json!({"0": {"0": 2}}));
    let mut given = host.admit(&small)[0].clone();
    let larger = host.pod("larger", &[("main", &[(MEMORY, "3")])], &json!({"0": {"0": 3}}));
    let of_larger = host.admit(&larger);
    given.variables.clone_from(&of_larger[0].variables);
    given.devices.clone_from(&of_larger[0].devices);
    refused(&small, &given, "asks for 2 units, but the kubelet counted 3 for it");
    // A pod of the same name that is another.
    let mut other = small.clone();
    other["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    refused(&other, &host.admit(&small)[0], "which has gone");
    // Its author names a limit, or none, or another's slice: none of it counts.
    let mut willing = json!({"nodeName": NODE, "containers": [container("main", &[(MEMORY, "2")])]});
    willing["containers"][0]["env"] = json!([
        {"name": "CGPU_DISABLE", "value": "true"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "ALIYUN_COM_GPU_MEM_CONTAINER", "value": "14"}, {"name": "CGPU_SLICE", "value": "a-2"}]);
    let willing = host.put("willing", &willing, &json!({"0": {"0": 2}}));
    let made = host.create(&willing, &host.admit(&willing)[0]);
    assert_eq!(limits(&made), [(host.uuid(0), 15109 * 2 / 14 * MIB)].into());
    // Variables alone are no claim on a node where claims are kept.
    let mut asking = json!({"nodeName": NODE, "containers": [container("main", &[])]});
    asking["containers"][0]["env"] = json!([{"name": "ALIYUN_COM_GPU_MEM_CONTAINER", "value": "2"}]);
    let asking = host.put("asking", &asking, &Value::Null);
    refused(&asking, &host.admit(&asking)[0], "ask for aliyun.com/gpu-mem");
    // An engine that starts containers by another runtime.
    let elsewhere = host.pod("elsewhere", main, &json!({"0": {"0": 2}}));
    let refusal = host.engine.create_by_another(&elsewhere, &host.admit(&elsewhere)[0]).unwrap_err();
    assert!(refusal.contains("but cgpu-runtime does not start it"), "{refusal}");
}

#[test]
fn engines_without_cdi_get_the_same() {
    let scene = Scene::new("T4:15109");
    let mut host = Host::new(&scene, "T4:15109");
    host.engine = host.engine.without_cdi();
    let _plugin = host.plugin(&["--no-cdi"]);
    host.kubelet.offers(MEMORY, 14, 14);
    let pod = host.pod("p", &[("main", &[(MEMORY, "2")])], &json!({"0": {"0": 2}}));
    let given = host.admit(&pod);
    assert_eq!(given[0].devices, Vec::<String>::new());
    assert_eq!(limits(&host.create(&pod, &given[0])), [(host.uuid(0), 15109 * 2 / 14 * MIB)].into());
    assert!(!scene.path("cdi").exists());
}

#[test]
fn ids_go_on_within_a_pod_and_after_it() {
    let scene = Scene::new("T4:15109");
    let host = Host::new(&scene, "T4:15109");
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 14, 14);
    let spec = json!({
        "nodeName": NODE,
        "initContainers": [container("init", &[(MEMORY, "10")])],
        "containers": [container("main", &[(MEMORY, "6")]), container("other", &[(MEMORY, "4")])],
    });
    let pod = host.put("p", &spec, &json!({"0": {"0": 6}, "1": {"0": 4}, "2": {"0": 10}}));
    let given = host.admit(&pod);
    let ids = |given: &Given| given.ids[MEMORY].clone();
    assert!(ids(&given[1]).iter().chain(&ids(&given[2])).all(|id| ids(&given[0]).contains(id)), "{given:?}");
    for (given, units) in given.iter().zip([10, 6, 4]) {
        let made = host.create(&pod, given);
        assert_eq!(limits(&made), [(host.uuid(0), 15109 * units / 14 * MIB)].into());
        if units == 10 {
            host.engine.delete(&made);
        }
    }
    // The kubelet knows of a pod's end before anybody else.
    host.server.lose_events(1);
    host.server.remove(&Key::pod("test", "p"));
    host.kubelet.end(&pod);
    let next = host.pod("next", &[("main", &[(MEMORY, "14")])], &json!({"0": {"0": 14}}));
    let given = host.admit(&next);
    assert_eq!(ids(&given[0]).len(), 14);
    // The engine has deleted its containers as well.
    for folder in std::fs::read_dir(scene.root().join("containers")).expect("a folder") {
        let folder = folder.expect("a folder").path();
        // It is a file system of its own, where the host sees what is mounted here.
        let _ = std::process::Command::new("umount").arg("--quiet").arg(&folder).status();
        std::fs::remove_dir_all(folder).expect("a folder");
    }
    assert_eq!(limits(&host.create(&next, &given[0])), [(host.uuid(0), 15109 * MIB)].into());
}

#[test]
fn a_nodes_labels_say_how_its_gpus_are_used() {
    let scene = Scene::new("T4:15109");
    let host = Host::labelled(&scene, "T4:15109", &json!({"ack.node.gpu.schedule": "cgpu"}));
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 14, 14);
    host.kubelet.offers(CORE, 0, 0);
    let label = |labels: Value| {
        assert!(host.server.edit(&Key::node(NODE), |node| node["metadata"]["labels"] = labels));
    };
    label(json!({"ack.node.gpu.schedule": "topology"}));
    host.kubelet.offers(MEMORY, 0, 0);
    label(json!({"gpushare": "false"}));
    host.kubelet.offers(CORE, 0, 0);
    label(json!({"gpushare": "true", "cgpu.disable.isolation": "true"}));
    host.kubelet.offers(MEMORY, 14, 14);
    host.kubelet.offers(CORE, 100, 100);
    let pod = host.pod("p", &[("main", &[(MEMORY, "2")])], &json!({"0": {"0": 2}}));
    let made = host.create(&pod, &host.admit(&pod)[0]);
    assert_eq!(made.limits, None);
    assert_eq!(made.variables["CGPU_DISABLE"], "true");
    assert_eq!(made.variables["NVIDIA_VISIBLE_DEVICES"], host.uuid(0));

    // A person who removes what stands on the node has it back.
    let edited = host.server.edit(&Key::node(NODE), |node| {
        node["metadata"]["annotations"] = json!({});
        node["status"]["allocatable"] = json!({});
    });
    assert!(edited);
    host.scene.eventually("the GPUs on the node", || {
        (host.gpus().len() == 1 && host.node()["status"]["allocatable"][COUNT] == "1").then_some(())
    });
}

#[test]
fn hamis_names_are_spoken_where_they_are_switched_on() {
    let scene = Scene::new("T4:15109,A10:23028");
    let host = Host::new(&scene, "T4:15109,A10:23028");
    let _plugin = host.plugin(&["--hami"]);
    host.kubelet.offers("nvidia.com/gpu", 50, 50);
    host.kubelet.offers(MEMORY, 36, 36);
    let pod = host.pod(
        "p",
        &[("main", &[("nvidia.com/gpu", "2"), ("nvidia.com/gpumem", "3000"), ("nvidia.com/gpucores", "30")])],
        &json!({"0": {"0": 3, "1": 3}}),
    );
    let given = host.admit(&pod);
    assert_eq!(given[0].ids["nvidia.com/gpu"].len(), 2);
    let made = host.create(&pod, &given[0]);
    assert_eq!(made.variables["ALIYUN_COM_GPU_CORE_PERCENTAGE"], "30");
    assert_eq!(limits(&made), [(host.uuid(0), 3000 * MIB), (host.uuid(1), 3000 * MIB)].into());
    // Ids are numbers of each resource's own.
    let other = host.pod("q", &[("main", &[(MEMORY, "2")])], &json!({"0": {"0": 2}}));
    assert_eq!(host.create(&other, &host.admit(&other)[0]).variables["ALIYUN_COM_GPU_MEM_IDX"], "0");
}

/// A plugin as in its pod: without the driver's library, and without the node's processes, so that the monitor's has no number there.
fn contained_plugin(host: &Host<'_>, options: &[&str]) -> Child {
    let mut command = host.command(options);
    command.env_remove("LD_LIBRARY_PATH");
    let command = contained(&command, true).unwrap_or(command);
    Child::start_for(command, host.scene.lifetime())
}

#[test]
fn the_monitor_tells_the_gpus_where_nvml_is_not() {
    let scene = Scene::new("T4:15109");
    let host = Host::new(&scene, "T4:15109");
    let _monitor = Monitor::start(&scene);
    let _plugin = contained_plugin(&host, &[]);
    host.kubelet.offers(MEMORY, 14, 14);
    let pod = host.pod("p", &[("main", &[(MEMORY, "2")])], &json!({"0": {"0": 2}}));
    assert_eq!(
        limits(&host.create(&pod, &host.admit(&pod)[0])),
        [(host.uuid(0), 15109 * 2 / 14 * MIB)].into()
    );
}

/// Whether the monitor hears of errors of GPUs; none: it does not tell.
fn listens(scene: &Scene) -> Option<bool> {
    let mut monitor = UnixStream::connect(scene.root().join("monitor.sock")).ok()?;
    monitor.write_all(b"{\"op\":\"health\"}\n").ok()?;
    let mut line = String::new();
    BufReader::new(monitor).read_line(&mut line).ok()?;
    let told: Value = serde_json::from_str(&line).ok()?;
    told["health"]["listens"].as_bool()
}

#[test]
fn the_monitor_lets_go_of_nvml_altogether_when_it_has_lost_its_gpus() {
    let scene = Scene::new("T4:15109");
    // Whoever waits for errors asks once how many GPUs there are, and whoever samples, three times a second.
    let _monitor = Monitor::start_faulty(&scene, "nvmlDeviceGetCount*:20+:NVML_ERROR_GPU_IS_LOST");
    scene.eventually("the monitor listens for errors", || listens(&scene).filter(|listens| *listens));
    scene.eventually("it has opened NVML anew, in vain", || listens(&scene).filter(|listens| !listens));
}

#[test]
fn the_monitor_tells_of_sick_gpus_where_nvml_is_not() {
    let scene = Scene::new("T4:15109,A10:23028");
    let host = Host::new(&scene, "T4:15109,A10:23028");
    let _monitor = Monitor::start(&scene);
    scene.eventually("the monitor listens for errors", || listens(&scene).filter(|listens| *listens));
    let plugin = contained_plugin(&host, &["--recovery", "3600"]);
    host.kubelet.offers(MEMORY, 36, 36);
    // A page fault is a program's own; an uncorrected memory error is not.
    host.report("0", "31");
    host.report("1", "48");
    host.kubelet.offers(MEMORY, 14, 36);
    host.stands([true, false]);
    plugin.kill();
    // What comes while no plugin is there, the monitor has heard.
    host.report("0", "79");
    let plugin = contained_plugin(&host, &["--recovery", "3600"]);
    host.stands([false, false]);
    host.kubelet.offers(MEMORY, 0, 36);
    plugin.kill();
    let _plugin = contained_plugin(&host, &["--recovery", "1"]);
    host.stands([true, true]);
    host.kubelet.offers(MEMORY, 36, 36);
}

#[test]
fn starts_go_on_while_the_api_server_is_away() {
    let scene = Scene::new("T4:15109");
    let mut host = Host::new(&scene, "T4:15109");
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 14, 14);
    let pod = host.pod("p", &[("main", &[(MEMORY, "2")])], &json!({"0": {"0": 2}}));
    let given = host.admit(&pod);
    host.create(&pod, &given[0]);
    host.annotated("p", "ALIYUN_COM_GPU_MEM_ASSIGNED", "true");
    host.server.close();
    host.create(&pod, &given[0]);
    host.server.reopen();
    let other = host.pod("q", &[("main", &[(MEMORY, "2")])], &json!({"0": {"0": 2}}));
    host.create(&other, &host.admit(&other)[0]);
    host.annotated("q", "ALIYUN_COM_GPU_MEM_ASSIGNED", "true");
}

/// Document 001's four deployments, from the extender to the limits.
#[test]
fn what_the_extender_chose_is_what_containers_get() {
    let scene = Scene::new("T4:15109,T4:15109");
    let host = Host::new(&scene, "T4:15109,T4:15109");
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 28, 28);
    host.scene.eventually("the GPUs on the node", || (host.gpus().len() == 2).then_some(()));
    let extender = Extender::start(&host.server, &scene.path(""), &[] as &[&str]);
    let mut over_both = objects::pod("test", "both", 2);
    over_both["metadata"]["labels"][COUNT] = json!("2");
    let named = [("a", 2), ("b-0", 8), ("b-1", 8), ("c", 2), ("d", 5)];
    let pods = named.map(|(name, units)| objects::pod("test", name, units));
    let mut held: BTreeMap<String, u64> = BTreeMap::new();
    for pod in pods.into_iter().chain([over_both]) {
        let pod = host.server.put("pods", pod);
        let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
        until_holds("the node is there for it", || {
            extender.filter(&pod, &[NODE])["NodeNames"].as_array().is_some_and(|nodes| !nodes.is_empty())
        });
        let reply = extender.bind(&pod, NODE);
        assert_eq!(reply.status, 200, "{reply:?}");
        let pod = host.server.object(&Key::pod("test", &name)).expect("the pod");
        let made = host.create(&pod, &host.admit(&pod)[0]);
        for (gpu, bytes) in limits(&made) {
            *held.entry(gpu).or_default() += bytes / MIB;
        }
    }
    let part = |units: &[u64]| units.iter().map(|units| 15109 * units / 14).sum::<u64>();
    assert_eq!(held, [(host.uuid(0), part(&[2, 8, 2, 1])), (host.uuid(1), part(&[8, 5, 1]))].into(),);
}

/// A container that runs, where runc is installed.
#[test]
fn a_pods_program_sees_its_slice() {
    const GPUS: &str = "T4:15109";
    let scene = Scene::new(GPUS);
    let host = Host::new(&scene, GPUS);
    let Some(yard) = Yard::open("a_pods_program_sees_its_slice", &scene, Runtime::Runc, GPUS) else {
        return;
    };
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 14, 14);
    let pod = host.pod("p", &[("main", &[(MEMORY, "6")])], &json!({"0": {"0": 6}}));
    let told = host.engine.configuration(&pod, &host.admit(&pod)[0]).expect("devices that are there");
    let bundle = yard.bundle("p", &[], &["sleep", "600"]);
    let file = bundle.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file).expect("a file")).expect("JSON");
    for part in ["annotations", "hooks"] {
        config[part] = told[part].clone();
    }
    config["process"]["env"] = told["process"]["env"].clone();
    std::fs::write(&file, config.to_string()).expect("a file");
    let boxed = yard.start_bundle("p", &bundle);
    assert_eq!(boxed.exec(&["meminfo"]).silent().number("total"), 15109 * 6 / 14 * MIB);
    boxed.delete();
}
