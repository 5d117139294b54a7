//! Containers of prepared claims, which the engine starts with the CDI devices of the driver.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use cgpu_e2e::{Fixture, Monitor, OciHost, Outcome, Runtime, install, seccomp};
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

/// The command of the pod that `helm test` makes.
fn command_of_helm_test() -> Vec<String> {
    let text = include_str!("../golden/helm-test.yaml");
    let objects: Vec<Value> = serde_saphyr::from_multiple(text).expect("YAML");
    let pod = objects.iter().find(|object| object["kind"] == "Pod").expect("a pod");
    let container = &pod["spec"]["containers"][0];
    let words = [&container["command"], &container["args"]];
    let words = words.into_iter().flat_map(|list| list.as_array()).flatten();
    words.map(|word| word.as_str().expect("a text").to_owned()).collect()
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
        let rootfs = bundle.join("rootfs");
        install(&rootfs, &["cgpu", "cgpu-monitor"].map(|program| fixture.dist().file(program)));
        fs::create_dir_all(rootfs.join("opt")).expect("a folder");
        symlink("/bin", rootfs.join("opt/cgpu")).expect("a link");
        edit(&bundle, &cdi_edits(&fixture, &claim));
        let container = oci.start_bare(name, &bundle);
        let words = command_of_helm_test();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let outcome = container.exec(&words);
        assert_eq!(outcome.code() == Some(0), succeeds, "{name}: {outcome:#?}");
        assert_eq!(outcome.stdout.contains("the limit is what was claimed"), succeeds);
        container.delete();
        host.unprepare(&info, &claim);
    }
}
