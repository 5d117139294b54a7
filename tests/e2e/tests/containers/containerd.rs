//! Containers of containerd itself.

use std::process::Command;
use std::time::{Duration, Instant};

use cgpu_e2e::{Child, furnish, skip};

use super::*;

const TEST: &str = "containerd::it_starts_with_what_it_was_told_and_its_containers_have_slices";

/// It is started as `cgpu setup containerd` has set it: the plugin for Kubernetes must come up, and what it then starts by our program has its slice.
#[test]
fn it_starts_with_what_it_was_told_and_its_containers_have_slices() {
    let has =
        |name: &str| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    // SAFETY: no obligations; geteuid cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root || !has("containerd") || !has("ctr") || !has("runc") {
        return skip(TEST, "containerd", "containerd, ctr and runc are not installed, or this is not root");
    }
    let scene = Scene::new(T4);
    let folder = tempfile::Builder::new().prefix("cgpu-containerd-").tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    fs::write(at("runtime.toml"), format!("root = {:?}\nsim = {T4:?}\nruntime = \"runc\"\n", scene.root()))
        .expect("a configuration");
    // containerd gives a runtime no arguments of its own.
    let ours = at("cgpu-runtime");
    let program = scene.dist().file("cgpu-runtime");
    let script =
        format!("#!/bin/sh\nexec {} --cgpu-config {} \"$@\"\n", program.display(), at("runtime.toml"));
    fs::write(&ours, script).expect("a script");
    fs::set_permissions(&ours, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a script");
    let before = format!(
        "version = 2\nroot = {:?}\nstate = {:?}\n[grpc]\n  address = {:?}\n[ttrpc]\n  address = {:?}\n",
        at("root"),
        at("state"),
        at("sock"),
        at("ttrpc")
    );
    fs::write(at("config.toml"), before).expect("a configuration");
    Outcome::of(scene.cgpu(&["setup", "containerd", "--file", &at("config.toml"), "--runtime", &ours]))
        .exits(0);
    let rootfs = folder.path().join("rootfs");
    furnish(&scene, &rootfs);

    let mut command = Command::new("containerd");
    command.args(["--config", &at("config.toml")]);
    let mut daemon = Child::start_for(command, Duration::from_secs(300));
    let ctr = |arguments: &[&str]| {
        let mut command = Command::new("ctr");
        command.args(["--address", &at("sock")]).args(arguments);
        Outcome::of(command)
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while ctr(&["version"]).code() != Some(0) {
        if !daemon.runs() || Instant::now() > deadline {
            return skip(TEST, "containerd", &format!("containerd does not start here: {:?}", daemon.kill()));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let plugins = ctr(&["plugins", "ls"]).exits(0).stdout;
    let cri = plugins.lines().find(|line| line.split_whitespace().nth(1) == Some("cri"));
    assert!(cri.is_none_or(|line| line.contains(" ok")), "{plugins}");

    let run = |id: &str, variables: &[&str], program: &[&str]| {
        let mut words = vec!["run", "--rm", "--rootfs", "--runc-binary", &ours];
        variables.iter().for_each(|variable| words.extend(["--env", variable]));
        let root = rootfs.to_string_lossy();
        words.extend([root.as_ref(), id]);
        words.extend(program);
        ctr(&words)
    };
    let inside = run("six", SIX, &["/bin/meminfo"]).exits(0);
    assert_eq!(inside.number("total"), 6043 * MIB);
    assert!(!run("none", &[], &["/bin/cat", "/proc/self/maps"]).exits(0).stdout.contains("cgpu"));
    let refused = run("bad", &["ALIYUN_COM_GPU_MEM_CONTAINER=six"], &["/bin/true"]);
    assert!(refused.code() != Some(0) && refused.stderr.contains("is `six`, expected"), "{refused:?}");
    is_clean(&scene);
    daemon.signal(libc::SIGTERM);
    let deadline = Instant::now() + Duration::from_secs(60);
    while daemon.runs() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
}
