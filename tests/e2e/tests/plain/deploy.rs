//! Installation into a scratch root: install, upgrade, uninstall.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cgpu_e2e::{Child, Dist, Outcome, skip};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn script(name: &str, root: &Path, arguments: &[&str]) -> Outcome {
    let mut command = command(name, root, arguments);
    // The tests' shim is built for this system.
    command.env("NEW_GLIBC", "allow");
    Child::start(command).finish()
}

fn command(name: &str, root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.arg(deploy().join(name)).args(arguments).env("DESTDIR", root);
    command
}

fn all(folder: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path())
    {
        if entry.is_dir() && !entry.is_symlink() {
            found.extend(all(&entry));
            found.insert(entry, None);
        } else {
            let text = fs::read(&entry).ok();
            found.insert(entry, text);
        }
    }
    found
}

#[test]
fn uninstall_removes_exactly_what_was_installed() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    for path in ["usr/bin/other", "etc/other"] {
        fs::create_dir_all(root.join(path).parent().expect("a parent")).expect("a folder");
        fs::write(root.join(path), "not ours").expect("a file");
    }
    let before = all(root);
    let dist = Dist::find();
    let built = dist.folder().to_string_lossy().into_owned();
    script("install.sh", root, &[&built]).exits(0);
    for (path, mode) in [
        ("usr/bin/cgpu", 0o755),
        ("usr/lib/cgpu/libcgpu.so", 0o755),
        ("etc/cgpu/monitor.toml", 0o644),
    ] {
        let about = fs::metadata(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(
            std::os::unix::fs::PermissionsExt::mode(&about.permissions()) & 0o777,
            mode,
            "{path}"
        );
    }
    for (name, program) in
        [("cgpu-smi", "cgpu"), ("kubectl-inspect-cgpu", "kubectl-inspect-gpushare")]
    {
        let link = fs::read_link(root.join("usr/bin").join(name)).expect("a link");
        assert_eq!(link, Path::new(program));
    }
    let mut command = Command::new(root.join("usr/bin/cgpu-monitor"));
    command.arg("--version");
    assert!(Child::start(command).finish().exits(0).stdout.starts_with("cgpu-monitor "));

    // An upgrade replaces files and does not write into them, so running programs go on. It keeps
    // the host's configuration.
    let number = |path: &str| {
        std::os::unix::fs::MetadataExt::ino(&fs::metadata(root.join(path)).expect("a file"))
    };
    let (library, installed) = (number("usr/lib/cgpu/libcgpu.so"), all(root));
    script("upgrade.sh", root, &[&built]).exits(0);
    assert_ne!(number("usr/lib/cgpu/libcgpu.so"), library);
    assert!(all(root).keys().eq(installed.keys()));
    fs::create_dir_all(root.join("run/cgpu/containers/a")).expect("a container");
    let refused = script("upgrade.sh", root, &["--cold", &built]).exits(1);
    assert!(refused.stderr.contains("container a is there"), "{refused:?}");
    fs::remove_dir_all(root.join("run")).expect("no container");
    script("upgrade.sh", root, &["--cold", &built]).exits(0);

    script("uninstall.sh", root, &[]).exits(0);
    assert_eq!(all(root), before);
    script("uninstall.sh", root, &[]).exits(1);

    // Uninstalling removes the runtime from engines' configurations first.
    let said = script("install.sh", root, &[&built]).exits(0).stderr;
    for part in ["installed; the monitor was not started", "no container engine was changed"] {
        assert!(said.contains(part), "{said}");
    }
    for (engine, file) in
        [("docker", "etc/docker/daemon.json"), ("containerd", "etc/containerd/config.toml")]
    {
        let file = root.join(file);
        fs::create_dir_all(file.parent().expect("a parent")).expect("a folder");
        let text =
            if engine == "docker" { "{\n  \"live-restore\": true\n}\n" } else { "version = 2\n" };
        fs::write(&file, text).expect("a configuration");
        let mut setup = Command::new(root.join("usr/bin/cgpu"));
        setup.args(["setup", engine, "--file"]).arg(&file);
        Child::start(setup).finish().exits(0);
        assert!(fs::read_to_string(&file).expect("a configuration").contains("cgpu-runtime"));
    }
    // CRI-O has a file of ours among its own.
    let crio = root.join("etc/crio/crio.conf.d/99-cgpu.conf");
    let mut setup = Command::new(root.join("usr/bin/cgpu"));
    setup.args(["setup", "crio", "--default", "--file"]).arg(&crio);
    Child::start(setup).finish().exits(0);
    assert!(
        fs::read_to_string(&crio).expect("a configuration").contains("default_runtime = \"cgpu\"")
    );
    script("uninstall.sh", root, &[]).exits(0);
    assert!(!crio.exists());
    fs::remove_dir_all(root.join("etc/crio")).expect("the folder");
    for (folder, file, text) in [
        ("etc/docker", "daemon.json", "{\n  \"live-restore\": true\n}\n"),
        ("etc/containerd", "config.toml", "version = 2\n"),
    ] {
        assert_eq!(
            fs::read_to_string(root.join(folder).join(file)).expect("a configuration"),
            text
        );
        fs::remove_dir_all(root.join(folder)).expect("the folder");
    }
    assert_eq!(all(root), before);

    // A changed configuration is kept unless its removal is requested.
    script("install.sh", root, &[&built]).exits(0);
    let toml = root.join("etc/cgpu/monitor.toml");
    fs::write(&toml, "base_slice_ms = 2\n").expect("a configuration");
    script("install.sh", root, &[&built]).exits(0);
    assert_eq!(fs::read_to_string(&toml).expect("a configuration"), "base_slice_ms = 2\n");
    let mut own = Command::new("sh");
    own.arg(root.join("usr/lib/cgpu/uninstall.sh")).env("DESTDIR", root);
    let said = Child::start(own).finish().exits(0).stderr;
    assert!(said.contains("left: /etc/cgpu/monitor.toml, which was changed"), "{said}");
    assert!(toml.exists());
    fs::remove_dir_all(root.join("etc/cgpu")).expect("the configuration");
    assert_eq!(all(root), before);
}

/// Installs below the folder from files that are not run; returns the root.
fn installed_without_programs(folder: &Path) -> PathBuf {
    let (built, root) = (folder.join("built"), folder.join("root"));
    fs::create_dir_all(&root).expect("a folder");
    for name in ["cgpu", "cgpu-monitor", "libcgpu.so"] {
        put(&built, name, "");
    }
    script("install.sh", &root, &[&built.to_string_lossy()]).exits(0);
    root
}

#[test]
fn purge_removes_all_settings_also_after_a_reinstallation() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = installed_without_programs(folder.path());
    put(&root, "etc/cgpu/monitor.toml", "base_slice_ms = 2\n");
    put(&root, "etc/cgpu/runtime.toml", "sim = \"T4\"\n");
    put(&root, "var/lib/cgpu/settings.json", "{}");
    let said = script("uninstall.sh", &root, &[]).exits(0).stderr;
    for left in ["/etc/cgpu/monitor.toml", "/etc/cgpu/runtime.toml", "/var/lib/cgpu"] {
        assert!(said.contains(&format!("left: {left}, ")) && root.join(&left[1..]).exists());
    }
    installed_without_programs(folder.path());
    let said = script("uninstall.sh", &root, &["--purge"]).exits(0).stderr;
    assert!(!said.contains("left: "), "{said}");
    assert!(!root.join("etc/cgpu").exists() && !root.join("var/lib/cgpu").exists());
}

#[test]
fn uninstall_names_the_monitors_that_still_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = installed_without_programs(folder.path());
    for (process, program) in
        [("7", "/usr/bin/cgpu-monitor"), ("8", "/usr/bin/cgpu-monitor (deleted)"), ("9", "/bin/sh")]
    {
        let process = root.join("proc").join(process);
        fs::create_dir_all(&process).expect("a folder");
        std::os::unix::fs::symlink(program, process.join("exe")).expect("a link");
    }
    let said = script("uninstall.sh", &root, &[]).exits(0).stderr;
    let named = |process| said.contains(&format!("monitor runs on, end it: kill {process}\n"));
    assert_eq!([7, 8, 9].map(named), [true, true, false], "{said}");
}

/// Programs of older images would ignore it, and have no limit.
#[test]
fn shim_that_needs_a_new_glibc_is_not_installed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (built, root) = (folder.path().join("built"), folder.path().join("root"));
    for made in [&built.join("portable"), &root] {
        fs::create_dir_all(made).expect("a folder");
    }
    let put = |name: &str, text: &[u8]| fs::write(built.join(name), text).expect("a file");
    put("cgpu", b"");
    put("cgpu-monitor", b"");
    put("libcgpu.so", b"\0GLIBC_2.2.5\0GLIBC_2.34\0");
    let built = built.to_string_lossy().into_owned();
    let install = || Child::start(command("install.sh", &root, &[&built])).finish();
    let refused = install().exits(1).stderr;
    assert!(refused.contains("needs glibc 2.34") && refused.contains("--portable"), "{refused}");
    assert_eq!(all(&root), BTreeMap::new());
    let portable = b"\0GLIBC_2.2.5\0GLIBC_2.17\0";
    put("portable/libcgpu.so", portable);
    install().exits(0);
    let installed = fs::read(root.join("usr/lib/cgpu/libcgpu.so")).expect("a file");
    assert_eq!(installed, portable);
}

/// In the layout of `cargo xtask package` the scripts find the files beside them, and the installed
/// script uninstalls everything.
#[test]
fn package_installs_from_its_own_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let (package, root) = (folder.path().join("cgpu-1"), folder.path().join("root"));
    fs::create_dir(&root).expect("a folder");
    let sources = deploy().join("..");
    let dist = Dist::find();
    let built = ["libcgpu.so", "cgpu", "cgpu-monitor", "cgpu-runtime", "sim/libcuda.so.1"]
        .map(|name| (dist.file(name), name));
    let scripts = [
        "install.sh",
        "upgrade.sh",
        "uninstall.sh",
        "files.sh",
        "monitor.toml",
        "cgpu-monitor.service",
    ]
    .map(|name| format!("deploy/{name}"));
    let texts = scripts
        .iter()
        .map(String::as_str)
        .chain(["docs/operation.md"])
        .map(|name| (sources.join(name), name));
    for (from, name) in built.into_iter().chain(texts) {
        let to = package.join(name);
        fs::create_dir_all(to.parent().expect("a parent")).expect("a folder");
        fs::copy(from, to).expect("a copy");
    }
    let shipped = |name: &str, arguments: &[&str]| {
        let mut command = Command::new("sh");
        command.arg(package.join("deploy").join(name)).args(arguments).env("DESTDIR", &root);
        command.env("NEW_GLIBC", "allow");
        Child::start(command).finish()
    };
    shipped("install.sh", &[]).exits(0);
    for name in ["usr/bin/cgpu-runtime", "usr/lib/cgpu/libcgpu.so", "usr/lib/cgpu/sim/libcuda.so.1"]
    {
        assert!(root.join(name).is_file(), "{name}");
    }
    shipped("upgrade.sh", &[]).exits(0);
    let mut own = Command::new("sh");
    own.arg(root.join("usr/lib/cgpu/uninstall.sh")).env("DESTDIR", &root);
    Child::start(own).finish().exits(0);
    assert!(all(&root).is_empty(), "{:?}", all(&root).keys());
}

/// Writes a file below a root, with the folders above it.
fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
    fs::write(path, text).expect("a file");
}

fn put_program(root: &Path, path: &str, text: &str) {
    put(root, path, text);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(root.join(path), mode).expect("a program");
}

/// Containers were once left without `exec`, `stop` and `start`.
#[test]
fn uninstall_keeps_running_containers_manageable() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    put_program(root, "usr/sbin/runc", "#!/bin/sh\necho runc \"$@\"\n");
    // A host has this folder. Otherwise it would be ours, and the script in it would keep it.
    put_program(root, "usr/bin/true", "#!/bin/sh\n");
    let built = Dist::find().folder().to_string_lossy().into_owned();
    let before = all(root);
    script("install.sh", root, &[&built]).exits(0);
    let installed = all(root);
    // Containers of docker (one by docker's script for a runtime with arguments), containerd and
    // podman, and some that are not ours.
    let task = |path: &str, binary: &str| {
        let text = format!("{{\"binary_name\":\"{binary}\",\"systemd_cgroup\":true}}");
        put(root, &format!("run/{path}/options.json"), &text);
    };
    let tasks = "containerd/io.containerd.runtime.v2.task";
    task(&format!("{tasks}/moby/d1"), "/usr/bin/cgpu-runtime");
    task(&format!("{tasks}/moby/d2"), "/var/lib/docker/runtimes/nvidia");
    put(
        root,
        "var/lib/docker/runtimes/nvidia",
        "#!/bin/sh\n/usr/bin/cgpu-runtime --cgpu-next=/n $@\n",
    );
    task(&format!("{tasks}/k8s.io/c1"), "/usr/bin/cgpu-runtime");
    task(&format!("{tasks}/k8s.io/c2"), "/usr/sbin/runc");
    task("docker/containerd/daemon/io.containerd.runtime.v2.task/moby/d3", "/usr/bin/cgpu-runtime");
    let conmon = "/usr/bin/conmon\0-c\0p1\0-r\0/usr/bin/cgpu-runtime\0";
    put(root, "proc/41/cmdline", conmon);
    put(root, "proc/42/cmdline", &conmon.replace("p1", "p2").replace("cgpu-runtime", "crun"));
    put(root, "proc/43/cmdline", "grep\0-r\0/usr/bin/cgpu-runtime\0");

    let present = all(root);
    let refused = script("uninstall.sh", root, &[]).exits(1);
    let listed: Vec<&str> =
        refused.stderr.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    assert_eq!(listed, ["k8s.io c1", "moby d1", "moby d2", "moby d3", "conmon p1"], "{refused:?}");
    assert_eq!(all(root), present, "a refusal changes nothing");

    let forced = script("uninstall.sh", root, &["--force"]).exits(0);
    assert!(
        forced.stderr.contains("left: /usr/bin/cgpu-runtime, a script that runs /usr/sbin/runc"),
        "{forced:?}"
    );
    let left = root.join("usr/bin/cgpu-runtime");
    // The host's path is below the root here.
    let text = fs::read_to_string(&left).expect("a script");
    fs::write(&left, text.replace("/usr/sbin/runc", &root.join("usr/sbin/runc").to_string_lossy()))
        .expect("a script");
    let mut call = Command::new(&left);
    call.args(["--root", "/a b", "--cgpu-config=/c", "delete", "--force", "d1"]);
    assert_eq!(Child::start(call).finish().exits(0).stdout, "runc --root /a b delete --force d1\n");
    put_program(root, "n", "#!/bin/sh\necho vendor \"$@\"\n");
    let mut call = Command::new(&left);
    call.arg(format!("--cgpu-next={}", root.join("n").display())).args(["kill", "d2"]);
    assert_eq!(Child::start(call).finish().exits(0).stdout, "vendor kill d2\n");

    // A container that would have had a limit is not started without one.
    put(root, "b/config.json", r#"{"process":{"env":["ALIYUN_COM_GPU_MEM_CONTAINER=6"]}}"#);
    put(root, "c/config.json", r#"{"process":{"env":["ALIYUN_COM_GPU_MEM_CONTAINER=0"]}}"#);
    let create = |bundle: &str| {
        let mut call = Command::new(&left);
        call.arg("--log").arg(root.join("b/log.json")).args(["--log-format", "json"]);
        call.args(["create", "--bundle"]).arg(root.join(bundle)).arg("d4");
        Child::start(call).finish()
    };
    let refused = create("b").exits(1).stderr;
    assert!(refused.contains("cgpu was uninstalled"), "{refused}");
    // Engines show the message of this file, and not the runtime's stderr.
    let log = fs::read_to_string(root.join("b/log.json")).expect("a log");
    let log: serde_json::Value = serde_json::from_str(&log).expect("JSON");
    assert_eq!(log["level"], "error");
    assert!(refused.contains(log["msg"].as_str().expect("a message")), "{log}");
    assert!(create("c").exits(0).stdout.contains(" create --bundle "));

    // A reinstallation takes the path back. When the containers have ended, nothing is left.
    for path in ["run", "proc", "var", "b", "c"] {
        fs::remove_dir_all(root.join(path)).expect("a folder");
    }
    fs::remove_file(root.join("n")).expect("a file");
    script("install.sh", root, &[&built]).exits(0);
    assert!(all(root) == installed, "the same files");
    script("uninstall.sh", root, &[]).exits(0);
    assert_eq!(all(root), before);
}

/// A daemon that was reloaded calls the removed program for each container, if it was the default.
#[test]
fn uninstall_leaves_a_script_for_the_runtimes_that_docker_remembers() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    put_program(root, "usr/sbin/runc", "#!/bin/sh\n");
    put_program(
        root,
        "docker",
        "#!/bin/sh\necho '{\"cgpu\":{\"path\":\"/usr/bin/cgpu-runtime\"}}'\n",
    );
    let built = Dist::find().folder().to_string_lossy().into_owned();
    script("install.sh", root, &["--no-start", &built]).exits(0);
    let mut uninstall = command("uninstall.sh", root, &[]);
    uninstall.env("DOCKER", root.join("docker"));
    let said = Child::start(uninstall).finish().exits(0).stderr;
    let left = "left: /usr/bin/cgpu-runtime, a script that runs /usr/sbin/runc: remove it when \
                Docker was restarted";
    assert!(said.contains(left), "{said}");
    let left = fs::read_to_string(root.join("usr/bin/cgpu-runtime")).expect("a script");
    assert!(left.contains("next='/usr/sbin/runc'"), "{left}");
}

/// It was said not to be started while the old one went on.
#[test]
fn install_without_systemd_upgrades_a_running_monitor() {
    for (answers, option, called, said) in [
        ("true", &[][..], "get upgrade", "the new monitor runs, with the state of the old one"),
        ("true", &["--no-start"], "", "the monitor was not started"),
        ("false", &[], "get", "the monitor was not started"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("root");
        fs::create_dir(&root).expect("a folder");
        let log = folder.path().join("log");
        fs::write(&log, "").expect("a log");
        let cgpu = format!("#!/bin/sh\necho \"$1 $3\" >> '{}'\n{answers}\n", log.display());
        put_program(folder.path(), "built/cgpu", &cgpu);
        for name in ["cgpu-monitor", "libcgpu.so"] {
            put(folder.path(), &format!("built/{name}"), "");
        }
        let built = folder.path().join("built").to_string_lossy().into_owned();
        let outcome = script("install.sh", &root, &[option, &[&built]].concat()).exits(0);
        assert!(outcome.stderr.contains(said), "{outcome:?}");
        let calls = called
            .split_whitespace()
            .map(|command| format!("{command} {}/run/cgpu\n", root.display()));
        assert_eq!(fs::read_to_string(&log).expect("a log"), calls.collect::<String>());
    }
}

#[test]
fn uninstall_reloads_engines_or_says_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    put(root, "log", "");
    put_program(
        root,
        "systemctl",
        &format!("#!/bin/sh\necho \"$@\" >> '{}'\n", root.join("log").display()),
    );
    let built = Dist::find().folder().to_string_lossy().into_owned();
    let before = all(root);
    for (engine, file, reload) in [
        // A reload of Docker keeps the removed runtimes, and its containers go on.
        ("docker", "etc/docker/daemon.json", "reload docker"),
        ("containerd", "etc/containerd/config.toml", "restart containerd"),
        ("crio", "etc/crio/crio.conf.d/99-cgpu.conf", "restart crio"),
        ("podman", "etc/containers/containers.conf.d/cgpu.conf", ""),
    ] {
        for with_systemd in [false, true] {
            script("install.sh", root, &["--no-start", &built]).exits(0);
            let setup = || {
                let mut setup = Command::new(root.join("usr/bin/cgpu"));
                setup.args(["setup", engine, "--file"]).arg(root.join(file));
                Child::start(setup).finish().exits(0).stdout
            };
            let (first, again) = (setup(), setup());
            let advice = again.split_once(": nothing to change\n").expect("nothing to change").1;
            assert!(!advice.is_empty() && first.contains(advice), "{first}{again}");
            let mut command = Command::new("sh");
            command.arg(deploy().join("uninstall.sh")).env("DESTDIR", root);
            if with_systemd {
                command.env("SYSTEMCTL", root.join("systemctl"));
            }
            let said = Child::start(command).finish().exits(0).stderr;
            let log = fs::read_to_string(root.join("log")).expect("a log");
            put(root, "log", "");
            assert_eq!(log.lines().any(|line| line == reload), with_systemd && !reload.is_empty());
            assert_eq!(log.starts_with("disable --now cgpu-monitor\n"), with_systemd, "{log}");
            let told = said.contains(&format!("next: restart {engine} with its service manager"));
            assert_eq!(told, !with_systemd && !reload.is_empty(), "{said}");
            assert_eq!(said.matches("next: ").count(), usize::from(told), "{said}");
            assert!(!root.join(file).exists(), "{engine}");
            fs::remove_dir_all(root.join("etc")).expect("the engine's folder");
            assert_eq!(all(root), before, "{engine}");
        }
    }
}

fn target_of_link(page: &str, link: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[test]
fn installed_pages_link_only_to_installed_files() {
    let list = fs::read_to_string(deploy().join("files.sh")).expect("a list");
    let pages: Vec<&str> = (list.lines().filter_map(|line| line.strip_prefix("docs/")))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    for page in pages.iter().filter(|page| page.ends_with(".md")) {
        let text = fs::read_to_string(deploy().join("../docs").join(page)).expect("a page");
        let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next());
        for link in links.filter(|link| !link.is_empty() && !link.starts_with("http")) {
            let target = target_of_link(page, link);
            assert!(pages.contains(&target.as_str()), "{page} links to {link}");
        }
    }
    assert!(pages.len() > 10);
}

#[test]
fn unknown_script_arguments_change_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let built = Dist::find().folder().to_string_lossy().into_owned();
    script("install.sh", root, &[&built]).exits(0);
    let before = all(root);
    for (name, arguments) in [
        ("install.sh", &["/nowhere"][..]),
        ("install.sh", &["--start"]),
        ("install.sh", &["--no-start", &built, "more"]),
        ("upgrade.sh", &["--check"]),
        ("upgrade.sh", &["--cold", "/nowhere"]),
        ("uninstall.sh", &["--prune"]),
        ("uninstall.sh", &["--purge", "now"]),
        ("uninstall.sh", &["--force", "--now"]),
    ] {
        let outcome = script(name, root, arguments).exits(1);
        assert!(outcome.stderr.contains("usage: "), "{name} {arguments:?}: {outcome:?}");
        assert_eq!(all(root), before, "{name} {arguments:?}");
    }
    for name in ["install.sh", "upgrade.sh", "uninstall.sh"] {
        let outcome = script(name, root, &["--help"]).exits(0);
        assert!(outcome.stdout.contains("usage: ") && outcome.stderr.is_empty(), "{outcome:?}");
    }
    let empty = root.join("usr").to_string_lossy().into_owned();
    for name in ["install.sh", "upgrade.sh"] {
        let outcome = script(name, root, &[&empty]).exits(1);
        assert!(outcome.stderr.contains(&format!("no cgpu in {empty}")), "{outcome:?}");
    }
    assert_eq!(all(root), before);
}

#[test]
fn foreign_file_stops_the_installation() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    fs::create_dir_all(root.join("usr/bin")).expect("a folder");
    fs::write(root.join("usr/bin/cgpu-monitor"), "another's").expect("a file");
    let before = all(root);
    let built = Dist::find().folder().to_string_lossy().into_owned();
    let outcome = script("install.sh", root, &[&built]).exits(1);
    assert!(outcome.stderr.contains("/usr/bin/cgpu-monitor is there and not ours"), "{outcome:?}");
    // The files that it had installed until then are recorded, and are removed.
    script("uninstall.sh", root, &[]).exits(0);
    assert_eq!(all(root), before);
}

#[test]
fn service_unit_keeps_the_tree_visible_and_starts_installed_programs() {
    let unit = fs::read_to_string(deploy().join("cgpu-monitor.service")).expect("a unit");
    let lines: Vec<&str> = unit.lines().filter(|line| !line.starts_with('#')).collect();
    // Each of these gives the service its own mount namespace.
    for setting in [
        "ProtectSystem",
        "ProtectHome",
        "PrivateTmp",
        "PrivateDevices",
        "PrivateMounts",
        "ProtectKernel",
        "ProtectControlGroups",
        "ProtectProc",
        "ReadOnlyPaths",
        "ReadWritePaths",
        "InaccessiblePaths",
        "BindPaths",
        "TemporaryFileSystem",
        "RootDirectory",
        "DynamicUser",
        "MountFlags",
        "ProtectHostname",
    ] {
        assert!(
            !lines.iter().any(|line| line.starts_with(setting)),
            "{setting}= would hide the tree"
        );
    }
    let start = lines.iter().find_map(|line| line.strip_prefix("ExecStart=")).expect("a program");
    let program = start.split_whitespace().next().expect("a program");
    let list = fs::read_to_string(deploy().join("files.sh")).expect("a list");
    assert!(list.contains(&format!(" {program} ")), "{program} is not installed");
}

#[test]
fn every_line_of_the_installed_configuration_is_valid() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = fs::read_to_string(deploy().join("monitor.toml")).expect("a configuration");
    // Every line enabled, and an invalid last one: the first error must be about that.
    let on = text.lines().filter_map(|line| line.strip_prefix("# "));
    let on = on
        .filter(|line| line.contains(" = ") || *line == "[gpu.0]")
        .map(|line| format!("{line}\n"));
    let on = on.collect::<String>() + "[gpu.1]\nmax_inst = 99\n";
    let file = folder.path().join("monitor.toml");
    fs::write(&file, &on).expect("a file");
    let mut command = Command::new(Dist::find().file("cgpu-monitor"));
    command.arg("--root").arg(folder.path()).arg("--config").arg(&file);
    let outcome = Child::start(command).finish().exits(1);
    let last = format!("line {}: max_inst: expected 1 to 25, found 99", on.lines().count());
    assert!(outcome.stderr.contains(&last) && on.lines().count() == 24, "{on}{outcome:?}");
}

#[test]
fn service_unit_is_accepted_by_systemd() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        skip("deploy", "systemd", "systemd-analyze is not installed");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let unit = fs::read_to_string(deploy().join("cgpu-monitor.service")).expect("a unit");
    let built = Dist::find().file("cgpu-monitor");
    let file = folder.path().join("cgpu-monitor.service");
    fs::write(&file, unit.replace("/usr/bin/cgpu-monitor", &built.to_string_lossy()))
        .expect("a file");
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no"]).arg(&file);
    // Each unknown key is a line on standard error.
    Child::start(command).finish().silent();
    // In tenths. A right that is added by mistake raises the figure of docs/operation.md by one or
    // more; other versions of systemd weigh the same unit a little differently.
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=true", "--threshold=46", "--no-pager"]).arg(&file);
    let outcome = Child::start(command).finish();
    if !outcome.stderr.contains("unrecognized option") {
        outcome.exits(0);
    }
}
