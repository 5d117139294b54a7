use proptest::prelude::*;
use serde_json::json;

use super::*;

fn additions() -> Additions {
    Additions {
        mounts: vec![
            bind(Path::new("/run/cgpu/containers/a"), "/run/cgpu", &["ro", "noexec"]),
            bind(Path::new("/usr/lib/cgpu/libcgpu.so"), "/run/cgpu/libcgpu.so", &["ro"]),
        ],
        hooks: [("createRuntime", "created"), ("poststart", "started"), ("poststop", "stopped")]
            .map(|(list, what)| (list, hook(Path::new("/usr/bin/cgpu-runtime"), &[what])))
            .into(),
        preload: None,
    }
}

fn parse(document: &Value) -> Result<Configuration, Refusal> {
    Configuration::parse(document.to_string().as_bytes())
}

#[test]
fn additions_come_last_and_once() {
    let document = json!({
        "ociVersion": "1.0.2",
        "process": {"env": ["PATH=/bin", "A=1"], "args": ["sh"], "noNewPrivileges": true},
        "root": {"path": "rootfs", "readonly": true},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "hooks": {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}]},
        "linux": {"seccomp": {"defaultAction": "SCMP_ACT_ERRNO"}, "novelty":
            {"big": 18_446_744_073_709_551_615_u64}}
    });
    let once = parse(&document).unwrap().with(&additions());
    let mut again = Configuration::parse(&once.text()).unwrap();
    assert!(again.remove_former());
    assert_eq!(once, again.with(&additions()));
    let text: Value = serde_json::from_slice(&once.text()).unwrap();
    assert_eq!(text["linux"], document["linux"]);
    assert_eq!(text["process"], document["process"]);
    assert_eq!(text["hooks"]["prestart"], document["hooks"]["prestart"]);
    assert_eq!(text["mounts"][0], document["mounts"][0]);
    assert_eq!(
        text["mounts"][1],
        json!({"destination": "/run/cgpu", "type": "bind", "source": "/run/cgpu/containers/a",
               "options": ["bind", "nosuid", "nodev", "ro", "noexec"]})
    );
    assert_eq!(
        text["hooks"]["poststop"],
        json!([{"path": "/usr/bin/cgpu-runtime", "args": ["cgpu-runtime", "hook", "stopped"]}])
    );
}

/// The bundle of an earlier start, under another id, with another root and shim.
#[test]
fn additions_of_an_earlier_start_are_removed() {
    let document = json!({
        "process": {"env": ["PATH=/bin", "LD_PRELOAD=/x.so"]},
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            // What users mount, in the forms of engines and CDI.
            {"destination": "/run/cgpu", "type": "bind", "source": "/run/cgpu",
                "options": ["rbind", "rprivate", "rw"]},
            {"destination": "/etc/ld.so.preload", "type": "bind", "source": "/x",
                "options": ["ro", "nosuid", "nodev", "bind"]},
            {"destination": "/data", "type": "bind", "source": "/data",
                "options": ["bind", "nosuid", "nodev", "ro"]},
        ],
        "hooks": {
            "createRuntime": [{"path": "/b/cgpu-runtime", "args": ["cgpu-runtime", "hook", "plan"]}],
            "poststart": [],
            "poststop": [{"path": "/bin/sh", "args": ["sh", "hook", "stopped"]}]
        }
    });
    let mut original = parse(&document).unwrap();
    assert!(!original.remove_former());
    assert_eq!(original, parse(&document).unwrap());
    let mut additions = additions();
    additions.preload = Some(SHIM.into());
    additions.mounts.extend([
        bind(Path::new("/old/containers/b/ld.so.preload"), "/etc/ld.so.preload", &["ro", "noexec"]),
        bind(Path::new("/old/sim/libcuda.so.1"), "/usr/lib64/libcuda.so.1", &["ro"]),
    ]);
    let mut edited = original.clone().with(&additions).with(&additions);
    assert!(edited.remove_former());
    assert_eq!(edited, original);
    // The variable goes with its last library.
    let mut alone = parse(&json!({"process": {"env": ["A=1"]}})).unwrap().with(&additions);
    assert!(alone.remove_former());
    assert_eq!(alone.variables(), ["A=1"]);
}

#[test]
fn shares_are_named_by_hooks_alone() {
    let hook = |arguments: &[&str]| json!({"path": "/b/cgpu-runtime", "args": arguments});
    let plan = |share: &str| hook(&["cgpu-runtime", "hook", "share", "plan", share]);
    let document = json!({
        "process": {"env": ["CGPU_SHARE=x"]},
        "hooks": {
            "createRuntime": [
                hook(&["sh", "hook", "share", "plan", "y"]),
                hook(&["cgpu-runtime", "hook", "plan", "--config", "/c"]),
                hook(&["cgpu-runtime", "hook", "share", "plan"]),
                plan("b"),
                hook(&["cgpu-runtime", "hook", "share", "plan", "a", "--config", "/c"]),
                plan("b"),
            ],
            "createContainer": [plan("z")],
        }
    });
    let mut configuration = parse(&document).unwrap();
    assert_eq!(configuration.shares(), ["a", "b"]);
    assert!(!configuration.remove_former(), "an engine has added them");
    assert!(parse(&json!({})).unwrap().shares().is_empty());
}

#[test]
fn seccomp_is_an_object() {
    for (linux, expected) in [
        (json!({"seccomp": {"defaultAction": "SCMP_ACT_ERRNO"}}), true),
        (json!({"seccomp": null}), false),
        (json!({}), false),
    ] {
        assert_eq!(parse(&json!({ "linux": linux })).unwrap().has_seccomp(), expected, "{linux}");
    }
}

#[test]
fn preload_comes_before_other_libraries() {
    let more = Additions { preload: Some("/s".into()), ..additions() };
    for (before, after) in [
        (json!(["A=1"]), json!(["A=1", "LD_PRELOAD=/s"])),
        (json!(["LD_PRELOAD=/x.so"]), json!(["LD_PRELOAD=/s:/x.so"])),
        (json!(["LD_PRELOAD=/s:/x.so"]), json!(["LD_PRELOAD=/s:/x.so"])),
        (json!(null), json!(["LD_PRELOAD=/s"])),
    ] {
        let edited = parse(&json!({"process": {"env": before}})).unwrap().with(&more);
        let text: Value = serde_json::from_slice(&edited.text()).unwrap();
        assert_eq!(text["process"]["env"], after);
    }
}

#[test]
fn exec_gets_the_preload_variable() {
    let process = json!({"args": ["sh"], "env": ["A=1"], "capabilities": {"bounding": []},
        "noNewPrivileges": true});
    let edited: Value =
        serde_json::from_slice(&preloading(process.to_string().as_bytes(), "/s").unwrap()).unwrap();
    assert_eq!(edited["env"], json!(["A=1", "LD_PRELOAD=/s"]));
    for name in ["args", "capabilities", "noNewPrivileges"] {
        assert_eq!(edited[name], process[name]);
    }
    for wrong in ["[]", r#"{"env": [1]}"#, r#"{"Env": []}"#, r#"{"env": [], "env": []}"#] {
        assert!(preloading(wrong.as_bytes(), "/s").is_err(), "{wrong}");
    }
}

/// An image could replace the driver's limit that the monitor sets.
#[test]
fn variables_of_the_vendors_limits_are_removed() {
    let names = ["NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"];
    let both = ["A=1", "NVIDIA_GPU_MEMORY_LIMIT=1Gi", "NVIDIA_GPU_MEMORY_REQUEST=", "B=2"];
    let kept = ["NVIDIA_GPU_MEMORY_LIMITS=1", "A=NVIDIA_GPU_MEMORY_LIMIT=1"];
    for (before, after) in [(&both[..], &["A=1", "B=2"][..]), (&kept[..], &kept[..])] {
        let is_changed = before != after;
        let mut created = parse(&json!({"process": {"env": before}})).unwrap();
        assert_eq!(created.remove_variables(&names), is_changed);
        assert_eq!(created.variables(), after);
        let process = json!({"env": before, "args": ["sh"]}).to_string();
        let exec = without(process.as_bytes(), &names).unwrap();
        assert_eq!(exec.is_some(), is_changed);
        if let Some(exec) = exec {
            let exec: Value = serde_json::from_slice(&exec).unwrap();
            assert_eq!(exec, json!({"env": after, "args": ["sh"]}));
        }
    }
    assert_eq!(without(b"no JSON", &names).unwrap(), None, "another process is not parsed");
}

/// runc would merge both values.
#[test]
fn duplicate_names_are_refused() {
    for text in [
        r#"{"process": {"env": ["ALIYUN_COM_GPU_MEM_CONTAINER=1"]}, "process": {"args": ["sh"]}}"#,
        r#"{"linux": {"seccomp": {"defaultAction": "SCMP_ACT_ERRNO"}},
            "linux": {"namespaces": []}}"#,
    ] {
        assert!(Configuration::parse(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn ambiguous_names_are_refused() {
    for document in [
        json!([]),
        json!({"Process": {"env": ["ALIYUN_COM_GPU_MEM_CONTAINER=1"]}}),
        json!({"process": {"Env": ["ALIYUN_COM_GPU_MEM_CONTAINER=1"]}}),
        json!({"process": []}),
        json!({"process": {"env": "A=1"}}),
        json!({"process": {"env": [1]}}),
        json!({"mounts": {}}),
        json!({"hooks": {"poststop": {}}}),
        json!({"hooks": {"PostStop": []}}),
        json!({"proce\u{17f}s": {"env": ["ALIYUN_COM_GPU_MEM_CONTAINER=1"]}}),
        json!({"mounts": [{"Destination": "/etc", "type": "bind", "source": "/x"}]}),
        json!({"Linux": {"maskedPaths": ["/etc/ld.so.preload"]}}),
        json!({"linux": {"Seccomp": {}}}),
        json!({"hooks": {"Poststart": []}}),
        json!({"linux": {"MaskedPaths": ["/etc/ld.so.preload"]}}),
        json!({"linux": {"maskedPaths": "/etc/ld.so.preload"}}),
        json!({"linux": {"maskedPaths": [["/etc"]]}}),
        json!({"linux": {"namespaces": {"type": "mount"}}}),
        json!({"linux": {"namespaces": [{"type": "mount", "Path": "/proc/1/ns/mnt"}]}}),
        json!({"linux": []}),
    ] {
        assert!(parse(&document).is_err(), "{document}");
    }
    assert!(Configuration::parse(b"{\"process\":").is_err());
    assert!(parse(&json!({})).unwrap().variables().is_empty());
    assert!(parse(&json!({"process": null, "mounts": null, "hooks": null})).is_ok());
}

#[test]
fn bind_mount_is_recognized_by_type_or_option() {
    let mounts = json!({"mounts": [
        {"destination": "/a", "type": "bind", "source": "/x"},
        {"destination": "/b", "type": "none", "source": "/y", "options": ["rbind", "ro"]},
        {"destination": "/c", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/d", "type": "bind"}, 7
    ]});
    let found = parse(&mounts).unwrap().binds();
    assert_eq!(found, [("/a".into(), "/x".into()), ("/b".into(), "/y".into())]);
    let all = parse(&mounts).unwrap().mounts();
    assert_eq!(all[2..], [("/c".into(), None), ("/d".into(), None)]);
}

#[test]
fn own_mounts_need_a_mount_namespace() {
    for (namespaces, own) in [
        (json!([{"type": "pid"}, {"type": "mount"}]), true),
        (json!([{"type": "mount", "path": ""}]), true),
        (json!([{"type": "mount", "path": "/proc/1/ns/mnt"}]), false),
        (json!([{"type": "pid"}]), false),
        (json!(null), false),
    ] {
        let configuration = parse(&json!({"linux": {"namespaces": namespaces}})).unwrap();
        assert_eq!(configuration.has_own_mounts(), own, "{namespaces}");
    }
    assert!(!parse(&json!({})).unwrap().has_own_mounts());
}

/// Returns any JSON.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        "[a-zA-Z/=._0-9]{0,12}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        proptest::sample::select(vec![
            "process",
            "env",
            "Env",
            "args",
            "root",
            "path",
            "mounts",
            "hooks",
            "createRuntime",
            "poststart",
            "poststop",
            "prestart",
            "linux",
            "seccomp",
            "destination",
            "source",
            "options",
            "annotations",
        ])
        .prop_map(str::to_owned),
        "[a-z]{1,5}",
    ];
    leaf.prop_recursive(5, 60, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::vec((key.clone(), inner), 0..6)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any configuration is refused, or keeps all of its contents, with the additions at the end.
    #[test]
    fn edits_keep_the_rest_of_the_configuration(document in any_json()) {
        let Ok(configuration) = parse(&document) else { return Ok(()) };
        let text = configuration.with(&additions()).text();
        let edited: Value = serde_json::from_slice(&text).unwrap();
        for (name, before) in document.as_object().unwrap() {
            let after = &edited[name];
            match name.as_str() {
                "mounts" => {
                    let before = before.as_array().cloned().unwrap_or_default();
                    prop_assert_eq!(&after.as_array().unwrap()[..before.len()], &before[..]);
                }
                "hooks" => {
                    for (kind, hooks) in before.as_object().into_iter().flatten() {
                        let before = hooks.as_array().cloned().unwrap_or_default();
                        if HOOKS.contains(&kind.as_str()) {
                            let after = after[kind].as_array().unwrap();
                            prop_assert_eq!(&after[..before.len()], &before[..]);
                        } else {
                            prop_assert_eq!(&after[kind], hooks);
                        }
                    }
                }
                _ => prop_assert_eq!(after, before),
            }
        }
        let mounts = edited["mounts"].as_array().unwrap();
        prop_assert_eq!(&mounts[mounts.len() - 1]["destination"], "/run/cgpu/libcgpu.so");
    }

    /// Arbitrary bytes are refused without a panic.
    #[test]
    fn parse_of_any_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Configuration::parse(&bytes);
    }
}

#[test]
fn exec_gets_the_variables_of_the_first_process() {
    let first = json!({"process": {"env": ["PATH=/bin", "GPU=GPU-1", "UNIT=MiB", "SLICE=7-2"]}});
    let first = Configuration::parse(first.to_string().as_bytes()).unwrap();
    let process =
        json!({"args": ["env"], "env": ["GPU=provisional", "TERM=x", "OFF=1", "SLICE=7-2"]});
    let text = bound_as(process.to_string().as_bytes(), &first, &["GPU", "UNIT", "OFF"]).unwrap();
    let process: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(
        process,
        json!({"args": ["env"], "env": ["TERM=x", "SLICE=7-2", "GPU=GPU-1", "UNIT=MiB"]})
    );
    assert!(bound_as(b"[]", &first, &[]).is_err());
}
