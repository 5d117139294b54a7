//! A container's `config.json` with any bytes. It is refused, or understood as any parser would
//! understand it. A container that requests a limit is not started without one. All that the engine
//! wrote is passed on unchanged, so that a container never gets less isolation than its engine
//! requested.

use cgpu_kubernetes_core::binding::LIMIT_VARIABLES;
use cgpu_runtime::edit::{
    Additions, Configuration, HOOKS, OWN_HOOKS, bind, hook, preloading,
};
use cgpu_runtime::plan::{Declared, HostGpu, Plan, plan};
use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;
use serde_json::Value;
use std::path::Path;

fn gpu(number: u8) -> HostGpu {
    let name = if number < 3 { number.to_string() } else { format!("3.{}", number - 3) };
    let name = name.parse().expect("a GPU's number");
    HostGpu {
        is_partitioned: number == 2,
        ..HostGpu::new(Uuid([number + 1; 16]), Bytes::from_mib(15109), name)
    }
}

/// Whether the variables request no limit, by a plain reading.
fn is_off(variables: &[String]) -> bool {
    let value = |name: &str| {
        let mut found = variables.iter().filter_map(|variable| variable.split_once('='));
        found.rfind(|(other, _)| *other == name).map(|(_, value)| value.trim_matches([' ', '\t']))
    };
    let zero = |part: &str| {
        let part = part.trim_matches([' ', '\t']);
        !part.is_empty() && part.bytes().all(|byte| byte == b'0')
    };
    value("ALIYUN_COM_GPU_MEM_CONTAINER").is_none_or(|list| list.split(',').any(zero))
        || matches!(value("CGPU_DISABLE"), Some("1" | "true"))
        || matches!(value("ALIYUN_COM_GPU_VISIBLE_DEVICES"), Some("none" | "void"))
}

/// Checks that all of `before` is in `after`. Lists that we extend begin with it.
fn check_kept(path: &str, before: &Value, after: &Value) {
    let ours = |value: &Value| value.to_string().contains("cgpu");
    match (path, before, after) {
        ("" | "/hooks" | "/process", Value::Object(before), Value::Object(after)) => {
            let others = after.keys().filter(|name| !before.contains_key(*name));
            let may = |name: &String| {
                HOOKS.contains(&name.as_str())
                    || matches!(name.as_str(), "mounts" | "hooks" | "process" | "env")
            };
            assert!(others.into_iter().all(may), "{after:?}");
            for (name, value) in before {
                check_kept(&format!("{path}/{name}"), value, &after[name]);
            }
        }
        (
            "/mounts" | "/hooks/createRuntime" | "/hooks/poststart" | "/hooks/poststop",
            Value::Array(before),
            Value::Array(after),
        ) => {
            // Entries of an earlier start of ours may be removed, others not.
            let mut rest = after.iter();
            let kept = |one: &&Value| !ours(one);
            for one in before.iter().filter(kept) {
                assert!(rest.any(|other| other == one), "{one} is lost or has moved");
            }
        }
        ("/process/env", Value::Array(before), Value::Array(after)) => {
            assert!(after.len() >= before.len());
            for (one, other) in before.iter().zip(after) {
                assert!(
                    one == other
                        || one.as_str().is_some_and(|text| text.starts_with("LD_PRELOAD="))
                );
            }
        }
        (
            "/mounts"
            | "/hooks"
            | "/process"
            | "/hooks/createRuntime"
            | "/hooks/poststart"
            | "/hooks/poststop"
            | "/process/env",
            Value::Null,
            _,
        ) => {}
        _ => assert_eq!(before, after, "{path}"),
    }
}

/// Checks that the device plugin's values replace the container's variables for GPUs and limits,
/// whatever those are, and nothing else.
fn check_bound(configuration: &Configuration, document: &Value, gpus: &[HostGpu]) {
    let before = configuration.variables();
    if before.is_empty() {
        return;
    }
    let given = [
        ("NVIDIA_VISIBLE_DEVICES", gpus[1].gpu.uuid.to_string()),
        ("ALIYUN_COM_GPU_MEM_CONTAINER", "6".to_owned()),
        ("ALIYUN_COM_GPU_MEM_DEV", "15".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value));
    let bound = configuration.clone().with_variables(&given, &LIMIT_VARIABLES);
    let bound = Configuration::parse(&bound.text()).expect("what we write can be read");
    let name = |variable: &String| variable.split('=').next().unwrap_or_default().to_owned();
    let is_overruled = |variable: &&String| {
        LIMIT_VARIABLES.contains(&&name(variable)[..])
            || given.iter().any(|own| own.0 == name(variable))
    };
    let others: Vec<&String> = before.iter().filter(|variable| !is_overruled(variable)).collect();
    let after = bound.variables();
    let (kept, added) = after.split_at(others.len());
    assert!(kept.iter().eq(others), "{before:?} {after:?}");
    assert!(added.iter().eq(
        given.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().iter()
    ));
    let mut edited: Value = serde_json::from_slice(&bound.text()).expect("JSON");
    edited["process"]["env"] = document["process"]["env"].clone();
    assert_eq!(edited, *document, "the rest is as it came");
    let Ok(declared) = Declared::new(&after) else { return };
    assert!(declared.request_memory());
    match plan(&declared, "fuzz", || Ok(gpus.to_vec())) {
        Ok(Plan::Slice(limits)) => {
            assert_eq!(limits.gpus, [(gpus[1].gpu.uuid, Bytes::from_mib(6043))])
        }
        Ok(Plan::Native) => panic!("{after:?} has no limit"),
        Err(_) => {}
    }
}

/// Checks that a program started in a running container gets our variable, and all that its engine
/// requested.
fn check_preloading(input: &[u8]) {
    let shim = "/run/cgpu/libcgpu.so";
    let Ok(text) = preloading(input, shim) else { return };
    let before: Value = serde_json::from_slice(input).expect("what was understood is JSON");
    let after: Value = serde_json::from_slice(&text).expect("JSON");
    let (before, after) =
        (before.as_object().expect("an object"), after.as_object().expect("an object"));
    assert!(after.keys().all(|name| name == "env" || before.contains_key(name)));
    for (name, value) in before {
        let path = if name == "env" { "/process/env" } else { name };
        check_kept(path, value, &after[name]);
    }
    let all: Vec<&str> =
        after["env"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    let is_ours = |text: &&&str| {
        text.strip_prefix("LD_PRELOAD=")
            .is_some_and(|list| list.split([':', ' ']).any(|file| file == shim))
    };
    let preloads = all.iter().filter(|text| text.starts_with("LD_PRELOAD="));
    assert!(preloads.clone().count() > 0 && preloads.clone().all(|text| is_ours(&text)), "{all:?}");
    assert_eq!(preloading(&text, shim).as_ref(), Ok(&text), "a second time changes nothing");
}

pub(crate) fn check(input: &[u8]) {
    check_preloading(input);
    let Ok(configuration) = Configuration::parse(input) else { return };
    let document: Value = serde_json::from_slice(input).expect("what was understood is JSON");
    let variables = configuration.variables();
    let gpus: Vec<HostGpu> = (0..5).map(gpu).collect();
    // Masked paths are recognized in any notation.
    if let Some(masked) = document["linux"]["maskedPaths"].as_array() {
        assert_eq!(configuration.masked().count(), masked.len());
    }
    assert!(!configuration.has_own_mounts() || document["linux"]["namespaces"].is_array());
    assert!(configuration.mounts().len() >= configuration.binds().len());
    check_bound(&configuration, &document, &gpus);
    let Ok(declared) = Declared::new(&variables) else { return };
    let planned = plan(&declared, "fuzz", || Ok(gpus.clone()));
    if !declared.request_memory() {
        assert!(is_off(&variables) && planned == Ok(Plan::Native), "{variables:?}");
    }
    let limits = match planned {
        Ok(Plan::Slice(limits)) => limits,
        Ok(Plan::Native) => return assert!(is_off(&variables), "{variables:?}"),
        Err(refusal) => return assert!(!refusal.to_string().contains('\n')),
    };
    assert!(!limits.gpus.is_empty());
    for (uuid, limit) in &limits.gpus {
        let gpu = gpus.iter().find(|gpu| gpu.gpu.uuid == *uuid).expect("a GPU of the host");
        assert!(!gpu.is_partitioned && *limit > Bytes::ZERO && *limit <= gpu.gpu.total);
    }
    let own = ["/run/cgpu", "/run/cgpu/libcgpu.so", "/etc/ld.so.preload"];
    let additions = |preload: Option<&str>| Additions {
        mounts: own.map(|to| bind(Path::new("/run/cgpu/containers/x"), to, &["ro"])).to_vec(),
        hooks: HOOKS
            .into_iter()
            .zip(OWN_HOOKS)
            .map(|(list, what)| (list, hook(Path::new("/usr/bin/cgpu-runtime"), &[what])))
            .collect(),
        preload: preload.map(str::to_owned),
    };
    for preload in [None, Some("/run/cgpu/libcgpu.so")] {
        let additions = additions(preload);
        let edited = configuration.clone().with(&additions);
        let again = Configuration::parse(&edited.text()).expect("what we write can be read");
        assert_eq!(again.variables().len(), edited.variables().len());
        let after: Value = serde_json::from_slice(&edited.text()).expect("JSON");
        check_kept("", &document, &after);
        // Nothing of the container's can cover ours: they come last.
        let mounts = after["mounts"].as_array().expect("a list");
        let last: Vec<_> =
            mounts.iter().rev().take(3).map(|mount| mount["destination"].as_str()).collect();
        assert!(last.iter().rev().eq(own.map(Some).iter()), "{mounts:?}");
        assert!(after["hooks"]["createRuntime"].as_array().is_some_and(|list| !list.is_empty()));
        if preload.is_some() {
            let is_ours = |text: &String| {
                text.starts_with("LD_PRELOAD=") && text.contains("/run/cgpu/libcgpu.so")
            };
            assert!(edited.variables().iter().any(is_ours));
        }
        // A bundle may be used again, any number of times.
        let renewed = |text: &[u8]| {
            let mut former = Configuration::parse(text).expect("what we write can be read");
            assert!(former.remove_former());
            former.with(&additions).text()
        };
        let once = renewed(&edited.text());
        assert_eq!(renewed(&once), once, "another time changes nothing");
    }
}
