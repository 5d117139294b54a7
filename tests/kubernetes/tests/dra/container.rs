//! Containers of prepared claims, which the engine starts with the CDI devices of the driver.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use cgpu_e2e::{Fixture, Monitor, OciHost, Outcome, Runtime, find, install, seccomp};
use serde_json::{Value, json};

use crate::{Host, uid};

const T4: &str = "T4:15109";

/// Returns the edits of the only CDI device of a claim.
fn cdi_edits(fixture: &Fixture, claim: &Value) -> Value {
    let file = fixture.path("cdi").join(format!("cgpu-dra-{}.json", uid(claim)));
    let text = fs::read(file).expect("a specification");
    let mut specification: Value = serde_json::from_slice(&text).expect("JSON");
    specification["devices"][0]["containerEdits"].take()
}

/// Changes a bundle as an engine does for a CDI device, and gives it a seccomp profile.
fn edit(bundle: &Path, edits: &Value) {
    let file = bundle.join("config.json");
    let text = fs::read(&file).expect("a configuration");
    let mut config: Value = serde_json::from_slice(&text).expect("JSON");
    for hook in edits["hooks"].as_array().expect("hooks") {
        let stage = hook["hookName"].as_str().expect("a stage");
        let mut hooks = config["hooks"][stage].as_array().cloned().unwrap_or_default();
        hooks.push(json!({"path": hook["path"], "args": hook["args"]}));
        config["hooks"][stage] = hooks.into();
    }
    config["linux"]["seccomp"] = seccomp();
    fs::write(file, config.to_string()).expect("a configuration");
}

const CLAIM: &str = include_str!("../golden/helm-test.yaml");
const UNITS: &str = include_str!("../golden/helm-test-units.yaml");

/// Returns the command of the first pod that `helm test` makes.
fn command_of_helm_test(text: &str) -> Vec<String> {
    let read: Vec<Value> = serde_saphyr::from_multiple(text).expect("YAML");
    let items = read.iter().flat_map(|list| list["items"].as_array()).flatten();
    let pod = read.iter().chain(items).find(|object| object["kind"] == "Pod").expect("a pod");
    let container = &pod["spec"]["containers"][0];
    let words = [&container["command"], &container["args"]];
    let words = words.into_iter().flat_map(|list| list.as_array()).flatten();
    words.map(|word| word.as_str().expect("a text").to_owned()).collect()
}

/// Adds the programs that the pods of `helm test` run, where our image has them.
fn add_programs(fixture: &Fixture, bundle: &Path) {
    let rootfs = bundle.join("rootfs");
    install(&rootfs, &["cgpu", "cgpu-monitor"].map(|program| fixture.dist().file(program)));
    fs::create_dir_all(rootfs.join("opt")).expect("a folder");
    symlink("/bin", rootfs.join("opt/cgpu")).expect("a link");
}

#[test]
fn helm_test_succeeds_with_the_claimed_limit_only() {
    let test = "helm_test_succeeds_with_the_claimed_limit_only";
    let fixture = Fixture::new(T4);
    let Some(oci) = OciHost::open(test, &fixture, Runtime::Runc, T4) else { return };
    // The GPUs of containers, which the monitor and the driver observe.
    let gpus = fixture.root().join("gpus");
    fs::create_dir_all(&gpus).expect("a folder");
    let mut list = fixture.native(&fixture.dist().file("cgpu-monitor"));
    list.arg("--list-gpus").env("CGPU_SIM_STATE", gpus.join(T4));
    Outcome::of(list).exits(0);
    let _monitor = Monitor::start(&fixture);
    let host = Host::new(&fixture);
    let config = oci.config();
    let _driver = host.driver(&["--runtime-config", config.to_str().expect("a path")]);
    let info = host.registered();
    host.published("a GPU", |devices| devices.len() == 1);
    for (name, memory, succeeds) in [("claimed", "256Mi", true), ("other", "384Mi", false)] {
        let claim = host.claim(name, &[("gpu-0", memory, 1)]);
        host.prepare(&info, &claim).expect("prepared");
        let bundle = oci.bundle(name, &[], &["sleep", "600"]);
        add_programs(&fixture, &bundle);
        edit(&bundle, &cdi_edits(&fixture, &claim));
        let container = oci.start_bare(name, &bundle);
        let words = command_of_helm_test(CLAIM);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let outcome = container.exec(&words);
        assert_eq!(outcome.code() == Some(0), succeeds, "{name}: {outcome:#?}");
        assert_eq!(outcome.stdout.contains("the limit is what was claimed"), succeeds);
        container.delete();
        host.unprepare(&info, &claim);
    }
}

/// A script answers for the API server: both pods run and have the same GPU.
#[test]
fn helm_test_of_units_succeeds_with_the_requested_limit_only() {
    let test = "helm_test_of_units_succeeds_with_the_requested_limit_only";
    let fixture = Fixture::new(T4);
    let Some(oci) = OciHost::open(test, &fixture, Runtime::Runc, T4) else { return };
    let account = "var/run/secrets/kubernetes.io/serviceaccount";
    let answer = "#!/bin/sh\n\
                  echo '{\"phase\": \"Running\", \"ALIYUN_COM_GPU_MEM_IDX\": \"0\"}'\n";
    let command = command_of_helm_test(UNITS);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let of_gpu = "ALIYUN_COM_GPU_MEM_DEV=14";
    for (name, variables, printed) in [
        (
            "requested",
            &["ALIYUN_COM_GPU_MEM_CONTAINER=1", of_gpu][..],
            Some("two pods share GPU 0 of n1; the limit of this one is 1131413504 bytes\n"),
        ),
        (
            "larger",
            &["ALIYUN_COM_GPU_MEM_CONTAINER=2", of_gpu],
            Some("no GPU has the limit that was requested: 1 GiB\n"),
        ),
        (
            "whole",
            &["ALIYUN_COM_GPU_MEM_CONTAINER=14", of_gpu],
            Some("no GPU has the limit that was requested: 1 GiB\n"),
        ),
        // Without a slice there is no driver either.
        ("none", &[], None),
    ] {
        let bundle = oci.bundle(name, &[&["NODE=n1"], variables].concat(), &["sleep", "600"]);
        add_programs(&fixture, &bundle);
        let rootfs = bundle.join("rootfs");
        let tools = ["sed", "grep", "head"].map(|tool| find(tool).expect("a tool"));
        install(&rootfs, &tools);
        fs::create_dir_all(rootfs.join(account)).expect("a folder");
        fs::write(rootfs.join(account).join("token"), "secret").expect("a file");
        let curl = rootfs.join("bin/curl");
        fs::write(&curl, answer).expect("a file");
        fs::set_permissions(&curl, Permissions::from_mode(0o755)).expect("a program");
        let container = oci.start_bundle(name, &bundle);
        let outcome = container.exec(&command);
        let succeeds = name == "requested";
        assert_eq!(outcome.code() == Some(0), succeeds, "{name}: {outcome:#?}");
        assert!(printed.is_none_or(|text| outcome.stdout.ends_with(text)), "{name}: {outcome:#?}");
        container.delete();
    }
}
