//! Containers of containerd, by its own command line and by CRI as the kubelet starts them.

use std::process::Command;
use std::time::{Duration, Instant};

use cgpu_e2e::{Child, furnish, python, skip};
use tempfile::TempDir;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);
const IMAGE: &str = "localhost/cuda:latest";

/// NVIDIA's runtime as the default, for a configuration: its program comes first.
const NVIDIA: &str = "[plugins.\"io.containerd.grpc.v1.cri\".containerd]
  default_runtime_name = \"nvidia\"
[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]
  runtime_type = \"io.containerd.runc.v2\"
[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]
  BinaryName = ";

struct Containerd {
    folder: TempDir,
    daemon: Option<Child>,
    /// Its configuration before that of cgpu.
    before: String,
}

impl Containerd {
    /// Starts it with simulated GPUs. Returns None, after recording the skip, where it is missing
    /// or does not start.
    fn start(test: &str, fixture: &Fixture) -> Option<Self> {
        Self::start_with(test, fixture, false)
    }

    /// Starts it with the image, if it has its plugin for Kubernetes; and the Python that calls
    /// that.
    fn for_pods(test: &str, fixture: &Fixture, nvidia: bool) -> Option<(Self, PathBuf)> {
        let containerd = Self::start_with(test, fixture, nvidia)?;
        if containerd.plugin().is_none_or(|state| state != "ok") {
            skip(test, "containerd", "this containerd has no plugin for Kubernetes");
            return None;
        }
        let python = python(test)?;
        containerd.import();
        Some((containerd, python))
    }

    /// Starts it; with `nvidia` as its default runtime before it is configured for cgpu, which
    /// then becomes the default.
    fn start_with(test: &str, fixture: &Fixture, nvidia: bool) -> Option<Self> {
        let has = |name: &str| {
            Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
        };
        // SAFETY: no obligations; geteuid cannot fail.
        let is_root = unsafe { libc::geteuid() } == 0;
        if !is_root || !has("containerd") || !has("ctr") || !has("runc") {
            skip(
                test,
                "containerd",
                "containerd, ctr and runc are not installed, or this is not root",
            );
            return None;
        }
        let folder = tempfile::Builder::new()
            .prefix("cgpu-containerd-")
            .tempdir()
            .expect("a temporary folder");
        let mut containerd = Self { folder, daemon: None, before: String::new() };
        let at = |name: &str| containerd.at(name);
        let script = |path: &str, text: &str| {
            fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("a script");
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .expect("a script");
        };
        let next = if nvidia { at("nvidia-container-runtime") } else { "runc".to_owned() };
        if nvidia {
            script(&next, &format!("echo \"$@\" >> {next}.log\nexec runc \"$@\""));
        }
        // The files of the host, as `--below` finds them.
        for folder in ["host/etc/cgpu", "host/etc/containerd", &format!("host{}", at(""))] {
            fs::create_dir_all(at(folder)).expect("a folder");
        }
        fs::write(
            at("host/etc/cgpu/runtime.toml"),
            format!("root = {:?}\nsim = {T4:?}\nruntime = {next:?}\n", fixture.root()),
        )
        .expect("a configuration");
        // containerd passes a runtime no arguments of its own.
        let program = fixture.dist().file("cgpu-runtime");
        let settings = at("host/etc/cgpu/runtime.toml");
        let run = format!("exec {} --cgpu-config {settings} \"$@\"", program.display());
        script(&containerd.runtime(), &run);
        script(&at(&format!("host{}", containerd.runtime())), &run);
        // A confined daemon may not lower a process's OOM score below its own.
        let mut before = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\n[grpc]\n  address = {:?}\n[ttrpc]\n  address = {:?}\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = {IMAGE:?}\n  restrict_oom_score_adj = true\n\
             [plugins.\"io.containerd.grpc.v1.cri\".cni]\n  conf_dir = {:?}\n",
            at("root"),
            at("state"),
            at("sock"),
            at("ttrpc"),
            at("cni")
        );
        if nvidia {
            before.push_str(&format!("{NVIDIA}{next:?}\n"));
        }
        fs::write(containerd.config(), &before).expect("a configuration");
        let default: &[&str] = if nvidia { &["--default"] } else { &[] };
        containerd.set_up(fixture, default);
        containerd.before = before;
        furnish(fixture, &containerd.rootfs());

        let mut command = Command::new("containerd");
        command.args(["--config", &containerd.config()]);
        let mut daemon = Child::start_for(command, Duration::from_secs(300));
        let deadline = Instant::now() + TIMEOUT;
        while containerd.ctr(&["version"]).code() != Some(0) {
            if !daemon.runs() || Instant::now() > deadline {
                skip(
                    test,
                    "containerd",
                    &format!("containerd does not start here: {:?}", daemon.kill()),
                );
                return None;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        containerd.daemon = Some(daemon);
        Some(containerd)
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn runtime(&self) -> String {
        self.at("cgpu-runtime")
    }

    fn config(&self) -> String {
        self.at("host/etc/containerd/config.toml")
    }

    /// Runs `cgpu setup containerd` with these options for its files.
    fn set_up(&self, fixture: &Fixture, options: &[&str]) {
        let (below, runtime) = (self.at("host"), self.runtime());
        let words = ["setup", "containerd", "--below", &below, "--runtime", &runtime];
        Outcome::of(fixture.cgpu(&[&words[..], options].concat())).exits(0);
    }

    fn rootfs(&self) -> PathBuf {
        self.folder.path().join("rootfs")
    }

    fn ctr(&self, arguments: &[&str]) -> Outcome {
        let mut command = Command::new("ctr");
        command.args(["--address", &self.at("sock")]).args(arguments);
        Outcome::of(command)
    }

    /// Calls CRI as the kubelet does.
    fn cri(&self, python: &Path, words: &[&str]) -> Outcome {
        let mut command = Command::new(python);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/cri.py");
        command.arg(script).arg(self.at("sock")).args(words);
        Outcome::of(command)
    }

    fn plugin(&self) -> Option<String> {
        let plugins = self.ctr(&["plugins", "ls"]).exits(0).stdout;
        let line = plugins.lines().find(|line| line.split_whitespace().nth(1) == Some("cri"))?;
        line.split_whitespace().last().map(str::to_owned)
    }

    /// Builds the image from its root file system in the format of `docker save`, and imports it
    /// into Kubernetes' namespace.
    fn import(&self) {
        let script = "cd \"$1\" && tar -C rootfs -cf layer.tar . && sum=$(sha256sum layer.tar | cut -d' ' -f1) \
             && printf '{\"architecture\":\"%s\",\"os\":\"linux\",\"config\":{\"Cmd\":[\"sleep\",\"600\"],\"Env\":[\"PATH=/bin\"]},\
             \"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"sha256:%s\"]}}' \"$3\" \"$sum\" > image.json \
             && printf '[{\"Config\":\"image.json\",\"RepoTags\":[\"%s\"],\"Layers\":[\"layer.tar\"]}]' \"$2\" > manifest.json \
             && tar -cf image.tar manifest.json image.json layer.tar";
        let machine = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
        let mut make = Command::new("sh");
        make.args(["-c", script, "sh"]).arg(self.folder.path()).args([IMAGE, machine]);
        Outcome::of(make).exits(0);
        self.ctr(&["--namespace", "k8s.io", "images", "import", &self.at("image.tar")]).exits(0);
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let Some(mut daemon) = self.daemon.take() else { return };
        daemon.signal(libc::SIGTERM);
        let deadline = Instant::now() + TIMEOUT;
        while daemon.runs() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The CRI plugin must come up, and a container that it starts by `cgpu-runtime` has its slice.
#[test]
fn configured_containerd_starts_containers_with_slices() {
    let fixture = Fixture::new(T4);
    let test = "containerd::configured_containerd_starts_containers_with_slices";
    let Some(containerd) = Containerd::start(test, &fixture) else { return };
    let state = containerd.plugin();
    assert!(state.as_deref().is_none_or(|state| state == "ok"), "{state:?}");
    let run = |id: &str, variables: &[&str], program: &[&str]| {
        let ours = containerd.runtime();
        let mut words = vec!["run", "--rm", "--rootfs", "--runc-binary", &ours];
        variables.iter().for_each(|variable| words.extend(["--env", variable]));
        let root = containerd.rootfs();
        let root = root.to_string_lossy();
        words.extend([root.as_ref(), id]);
        words.extend(program);
        containerd.ctr(&words)
    };
    let inside = run("six", SIX, &["/bin/meminfo"]).exits(0);
    assert_eq!(inside.number("total"), 6043 * MIB);
    assert!(!run("none", &[], &["/bin/cat", "/proc/self/maps"]).exits(0).stdout.contains("cgpu"));
    let refused = run("bad", &["ALIYUN_COM_GPU_MEM_CONTAINER=six"], &["/bin/true"]);
    assert!(
        refused.code() != Some(0) && refused.stderr.contains("is `six`, expected"),
        "{refused:?}"
    );
    is_clean(&fixture);
}

/// A pod on the host's network, whose runtime class has the handler `cgpu`. The host's network
/// needs no CNI plugin.
#[test]
fn pods_of_the_runtime_class_have_slices_and_names() {
    let test = "containerd::pods_of_the_runtime_class_have_slices_and_names";
    let fixture = Fixture::new(T4);
    let Some((containerd, python)) = Containerd::for_pods(test, &fixture, false) else { return };
    let cri = |words: &[&str]| containerd.cri(&python, words);
    let printed = |outcome: Outcome| outcome.exits(0).stdout.trim().to_owned();

    let pod = printed(cri(&["pod", "trainer", "cgpu"]));
    // Its first container holds the network and requests no GPU.
    assert!(folders(&fixture).is_empty(), "{:?}", folders(&fixture));
    let container_id =
        printed(cri(&[&["container", &pod, "trainer", "main", IMAGE], SIX].concat()));
    cri(&["start", &container_id]).exits(0);
    assert_eq!(
        cri(&["exec", &container_id, "env", "-i", "/bin/meminfo"]).exits(0).number("total"),
        6043 * MIB
    );
    let filled = cri(&["exec", &container_id, "/bin/alloc_fill", "64M"]).exits(0);
    assert!(filled.number("error") == 2 && filled.number("granted") <= 6043 * MIB, "{filled:?}");
    let shown = fixture.smi();
    let container = &shown["containers"][0];
    assert_eq!(container["name"], "default/trainer/main", "{shown:#}");
    assert_eq!(container["image"], IMAGE, "{shown:#}");
    assert_eq!(container["id"], container_id[..12], "{shown:#}");
    let bad = ["container", &pod, "trainer", "bad", IMAGE, "ALIYUN_COM_GPU_MEM_CONTAINER=six"];
    let bad = printed(cri(&bad));
    let refused = cri(&["start", &bad]);
    assert!(
        refused.code() == Some(1) && refused.stderr.contains("is `six`, expected"),
        "{refused:?}"
    );

    let plain = printed(cri(&["pod", "plain", ""]));
    let native = printed(cri(&[&["container", &plain, "plain", "main", IMAGE], SIX].concat()));
    cri(&["start", &native]).exits(0);
    let maps = cri(&["exec", &native, "cat", "/proc/self/maps"]).exits(0).stdout;
    assert!(!maps.contains("cgpu"), "{maps}");
    for pod in [pod, plain] {
        cri(&["remove", &pod]).exits(0);
    }
    is_clean(&fixture);
}

/// cgpu takes the place of NVIDIA's runtime as the default and hands over to it. Its removal leaves
/// the configuration as it was.
#[test]
fn default_runtime_of_nvidia_is_handed_over_to_and_restored() {
    let test = "containerd::default_runtime_of_nvidia_is_handed_over_to_and_restored";
    let fixture = Fixture::new(T4);
    let Some((containerd, python)) = Containerd::for_pods(test, &fixture, true) else { return };
    let cri = |words: &[&str]| containerd.cri(&python, words);
    let printed = |outcome: Outcome| outcome.exits(0).stdout.trim().to_owned();
    let log =
        || fs::read_to_string(containerd.at("nvidia-container-runtime.log")).unwrap_or_default();
    let created = |id: &str| log().lines().any(|line| line.contains("create") && line.contains(id));

    let pod = printed(cri(&["pod", "trainer", ""]));
    let six = printed(cri(&[&["container", &pod, "trainer", "main", IMAGE], SIX].concat()));
    let plain = printed(cri(&["container", &pod, "trainer", "plain", IMAGE]));
    let named = printed(cri(&["pod", "named", "nvidia"]));
    let own = printed(cri(&["container", &named, "named", "main", IMAGE]));
    for container in [&six, &plain, &own] {
        cri(&["start", container]).exits(0);
        assert!(created(container), "{}", log());
    }
    let inside = cri(&["exec", &six, "env", "-i", "/bin/meminfo"]).exits(0);
    assert_eq!(inside.number("total"), 6043 * MIB);
    for container in [&plain, &own] {
        let maps = cri(&["exec", container, "cat", "/proc/self/maps"]).exits(0).stdout;
        assert!(!maps.contains("cgpu"), "{maps}");
    }
    for pod in [pod, named] {
        cri(&["remove", &pod]).exits(0);
    }
    is_clean(&fixture);
    containerd.set_up(&fixture, &["--undo"]);
    assert_eq!(
        fs::read_to_string(containerd.config()).expect("a configuration"),
        containerd.before
    );
}
