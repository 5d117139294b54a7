//! A fake container engine between the kubelet and `cgpu-runtime`. It writes `config.json` as
//! containerd does, resolves the kubelet's CDI devices, and calls the runtime. The next runtime
//! does nothing, so no container runs: tests check the configuration that the next runtime would
//! get.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use cgpu_e2e::{Fixture, Outcome, configuration, furnish};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::kubelet::Admitted;

/// The containers of a node.
pub struct Engine<'a> {
    fixture: &'a Fixture,
    folder: TempDir,
    cdi: PathBuf,
    resolves: bool,
    made: AtomicUsize,
}

/// A created container.
#[derive(Debug)]
pub struct Container {
    /// Its ID.
    pub id: String,
    /// The variables that its program would see.
    pub variables: BTreeMap<String, String>,
    /// The content of its `limits` file, if it has one.
    pub limits: Option<String>,
    bundle: PathBuf,
}

impl Drop for Engine<'_> {
    /// Ends the processes of containers that were not deleted.
    fn drop(&mut self) {
        let bundles = fs::read_dir(self.folder.path()).into_iter().flatten().flatten();
        for bundle in bundles {
            if let Ok(pid) = fs::read_to_string(bundle.path().join("pid")) {
                let _ = Command::new("kill").args(["-9", &pid]).stderr(Stdio::null()).status();
            }
        }
    }
}

impl<'a> Engine<'a> {
    /// Creates an engine for the simulated GPUs of a fixture, which `cgpu-runtime` finds by this
    /// list, with CDI devices of this folder.
    #[must_use]
    pub fn new(fixture: &'a Fixture, gpus: &str, cdi: &Path) -> Self {
        let folder =
            tempfile::Builder::new().prefix("cgpu-engine-").tempdir().expect("a temporary folder");
        furnish(fixture, &folder.path().join("rootfs"));
        let next = folder.path().join("next");
        fs::write(&next, include_str!("next_runtime.py")).expect("a script");
        fs::set_permissions(&next, fs::Permissions::from_mode(0o755)).expect("a script");
        let text = format!("root = {:?}\nsim = {gpus:?}\nruntime = {next:?}\n", fixture.root());
        fs::write(folder.path().join("runtime.toml"), text).expect("a configuration");
        // The fixture's programs and the runtime have the same simulated GPUs, whose state the
        // first of them creates.
        let states = fixture.root().join("gpus");
        fs::create_dir_all(&states).expect("a folder");
        let state = states.join(gpus.replace('/', "+"));
        let mut first = fixture.program("init");
        first.env("CGPU_SIM_STATE", &state);
        Outcome::of(first).exits(0);
        std::os::unix::fs::symlink(state, fixture.path("gpus")).expect("a link");
        Self { fixture, folder, cdi: cdi.to_owned(), resolves: true, made: AtomicUsize::new(0) }
    }

    /// Ignores CDI devices from now on, as an engine that is too old for them or has them disabled.
    #[must_use]
    pub fn without_cdi(mut self) -> Self {
        self.resolves = false;
        self
    }

    /// Creates a container of a pod by `cgpu-runtime`.
    ///
    /// # Errors
    /// The engine's message: that of the runtime, or that a device cannot be resolved.
    pub fn create(&self, pod: &Value, admitted: &Admitted) -> Result<Container, String> {
        let (id, bundle) = self.bundle(pod, admitted)?;
        let mut command = self.runtime();
        command.args(["create", "--bundle"]).arg(&bundle).arg(&id);
        let outcome = Outcome::of(command);
        if outcome.code() != Some(0) {
            let printed = outcome.stderr.trim().to_owned();
            assert!(!printed.is_empty() && printed.lines().count() == 1, "no message: {outcome:?}");
            return Err(printed);
        }
        let config = read(&bundle);
        let variables = variables(&config["process"]);
        let limits =
            fs::read_to_string(self.fixture.root().join("containers").join(&id).join("limits"))
                .ok();
        Ok(Container { id, variables, limits, bundle })
    }

    /// Creates a container of a pod by another runtime, which only runs hooks.
    ///
    /// # Errors
    /// A hook's message.
    pub fn create_by_another(&self, pod: &Value, admitted: &Admitted) -> Result<(), String> {
        let (id, bundle) = self.bundle(pod, admitted)?;
        let config = read(&bundle);
        for hook in config["hooks"]["createRuntime"].as_array().into_iter().flatten() {
            let words =
                hook["args"].as_array().into_iter().flatten().skip(1).filter_map(Value::as_str);
            let mut command = Command::new(hook["path"].as_str().expect("a path"));
            command.args(words).stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::null());
            let mut process = command.spawn().expect("a hook that is there");
            let state = json!({"ociVersion": "1.0.2", "id": id, "status": "creating", "pid": 1, "bundle": bundle});
            let mut input = process.stdin.take().expect("its input");
            let _ = input.write_all(state.to_string().as_bytes());
            drop(input);
            let output = process.wait_with_output().expect("its end");
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
            }
        }
        Ok(())
    }

    /// Returns the variables of a program that is started in a container later (`kubectl exec`).
    /// Engines use their own record, not the runtime's changes.
    pub fn exec(
        &self,
        pod: &Value,
        admitted: &Admitted,
        container: &Container,
    ) -> BTreeMap<String, String> {
        let remembered = self.configuration(pod, admitted).expect("a configuration");
        let file = self.folder.path().join(format!("{}-process.json", container.id));
        fs::write(&file, remembered["process"].to_string()).expect("a process");
        let mut command = self.runtime();
        command.args(["exec", "--process"]).arg(&file).args(["--detach", &container.id]);
        Outcome::of(command).exits(0);
        let reported: Value =
            serde_json::from_slice(&fs::read(&file).expect("a process")).expect("JSON");
        variables(&reported)
    }

    /// Returns whether the first process of a container is alive.
    #[must_use]
    pub fn is_alive(&self, container: &Container) -> bool {
        let pid = fs::read_to_string(container.bundle.join("pid")).expect("a process");
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"))
    }

    /// Ends a container and deletes it.
    pub fn delete(&self, container: &Container) {
        let mut command = self.runtime();
        command.args(["delete", &container.id]);
        Outcome::of(command).exits(0);
        fs::remove_dir_all(&container.bundle).expect("a bundle");
    }

    fn runtime(&self) -> Command {
        let mut command = self.fixture.native(&self.fixture.dist().file("cgpu-runtime"));
        for name in ["LD_LIBRARY_PATH", "CGPU_SIM_GPUS", "CGPU_SIM_STATE", "CGPU_SIM_TIME_SCALE"] {
            command.env_remove(name);
        }
        command.arg("--cgpu-config").arg(self.folder.path().join("runtime.toml"));
        command.arg("--root").arg(self.folder.path().join("state"));
        command
    }

    fn bundle(&self, pod: &Value, admitted: &Admitted) -> Result<(String, PathBuf), String> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let id = format!("{name}-{}-{number}", admitted.container);
        let config = self.configuration(pod, admitted)?;
        let bundle = self.folder.path().join(&id);
        fs::create_dir(&bundle).expect("a folder");
        fs::write(bundle.join("config.json"), config.to_string()).expect("a configuration");
        Ok((id, bundle))
    }

    /// Returns the configuration that a runtime gets for a pod's container.
    ///
    /// # Errors
    /// A device cannot be resolved.
    pub fn configuration(&self, pod: &Value, admitted: &Admitted) -> Result<Value, String> {
        let text = |name: &str| pod["metadata"][name].as_str().unwrap_or_default().to_owned();
        // The pod's variables override the plugin's.
        let mut variables: BTreeMap<String, String> =
            [("PATH".to_owned(), "/bin".to_owned())].into();
        variables.extend(admitted.variables.clone());
        let containers = ["initContainers", "containers"].map(|name| pod["spec"][name].as_array());
        let own = containers
            .into_iter()
            .flatten()
            .flatten()
            .find(|own| own["name"] == admitted.container);
        for variable in own.into_iter().filter_map(|own| own["env"].as_array()).flatten() {
            let text = |name: &str| variable[name].as_str().unwrap_or_default().to_owned();
            variables.insert(text("name"), text("value"));
        }
        let mut hooks = Vec::new();
        for device in admitted.devices.iter().filter(|_| self.resolves) {
            let edits = self.resolve(device)?;
            for variable in edits["env"].as_array().into_iter().flatten().filter_map(Value::as_str)
            {
                let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
                variables.insert(name.to_owned(), value.to_owned());
            }
            hooks.extend(edits["hooks"].as_array().cloned().unwrap_or_default());
        }
        let list: Vec<String> =
            variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let list: Vec<&str> = list.iter().map(String::as_str).collect();
        let mut config = configuration(&list, &["sleep", "600"]);
        config["root"]["path"] = json!(self.folder.path().join("rootfs"));
        config["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_ALLOW"});
        config["annotations"] = json!({
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.container-name": admitted.container,
            "io.kubernetes.cri.sandbox-id": format!("sandbox-of-{}", text("name")),
            "io.kubernetes.cri.sandbox-name": text("name"),
            "io.kubernetes.cri.sandbox-namespace": text("namespace"),
            "io.kubernetes.cri.sandbox-uid": text("uid"),
        });
        let mut by_name = Map::new();
        for mut hook in hooks {
            let name = hook["hookName"].as_str().expect("a hook's name").to_owned();
            hook.as_object_mut().expect("a hook").remove("hookName");
            by_name.entry(name).or_insert(json!([])).as_array_mut().expect("a list").push(hook);
        }
        if !by_name.is_empty() {
            config["hooks"] = Value::Object(by_name);
        }
        Ok(config)
    }

    fn resolve(&self, device: &str) -> Result<Value, String> {
        let unresolvable = || format!("unresolvable CDI devices {device}");
        let (kind, name) = device.split_once('=').ok_or_else(unresolvable)?;
        assert!(device.len() <= 63 + kind.len() + 1, "the name of {device} is too long");
        let files = fs::read_dir(&self.cdi).map_err(|_| unresolvable())?;
        let mut found = Vec::new();
        for file in files {
            let path = file.expect("a file").path();
            if path.extension().is_none_or(|end| end != "json") {
                continue;
            }
            let text = fs::read_to_string(&path).expect("a specification");
            let reported: Value = serde_json::from_str(&text).expect("a whole specification");
            let devices = reported["devices"].as_array().into_iter().flatten();
            if reported["kind"] == kind {
                found.extend(devices.filter(|device| device["name"] == name).cloned());
            }
        }
        match &found[..] {
            [one] => Ok(one["containerEdits"].clone()),
            // A device in two specifications is a conflict and cannot be resolved.
            _ => Err(unresolvable()),
        }
    }
}

fn variables(process: &Value) -> BTreeMap<String, String> {
    let variables = process["env"].as_array().into_iter().flatten();
    let variables = variables.filter_map(|variable| variable.as_str()?.split_once('='));
    variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn read(bundle: &Path) -> Value {
    let text = fs::read_to_string(bundle.join("config.json")).expect("a configuration");
    serde_json::from_str(&text).expect("JSON")
}
