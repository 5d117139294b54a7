//! Containers of podman, which has no daemon.

use cgpu_e2e::{furnish, is_reachable, skip};

use super::shares::{SHARE_HOOKS, prepare_share, uuids};
use super::*;

#[test]
fn containers_have_their_slices_and_names() {
    let fixture = Fixture::new(T4);
    let Some(podman) = Podman::open("podman::containers_have_their_slices_and_names", &fixture, T4)
    else {
        return;
    };
    let request = EIGHT.map(|variable| ["-e", variable]).concat();
    podman.run(&[&["--name", "trainer"], &request[..]].concat(), &["sleep", "600"], true).exits(0);
    let inside = podman.command(&["exec", "trainer", "env", "-i", "/bin/init"]).exits(0);
    assert_eq!(inside.number("total"), 8058 * MIB);
    let beside = SIX.iter().flat_map(|variable| ["-e", *variable]).collect::<Vec<_>>();
    let filled = podman.run(&beside, &["env", "-i", "/bin/alloc_fill", "64M"], false).exits(0);
    assert!(filled.number("total") == 6043 * MIB && filled.number("error") == 2, "{filled:?}");
    assert!(filled.number("granted") <= 6043 * MIB, "{filled:?}");
    let shown = fixture.smi();
    let container = &shown["containers"][0];
    assert_eq!(container["name"], "trainer", "{shown:#}");
    assert_eq!(container["image"], "localhost/cuda:latest", "{shown:#}");
    let listed = podman.command(&["ps", "--format", "{{.ID}}"]).exits(0).stdout;
    assert_eq!(container["id"], listed.trim(), "{shown:#}");
    let refused = podman.run(&["-e", "ALIYUN_COM_GPU_MEM_CONTAINER=six"], &["true"], false);
    assert!(
        refused.code() != Some(0) && refused.stderr.contains("is `six`, expected"),
        "{refused:?}"
    );
    let masked = ["--security-opt", "mask=/proc/self/root/etc/ld.so.preload"];
    let hidden = podman.run(&[&beside[..], &masked].concat(), &["init"], false);
    assert!(
        hidden.code() != Some(0) && hidden.stderr.contains("would not open cgpu's file at /etc"),
        "{hidden:?}"
    );
    podman.command(&["rm", "--force", "--time", "0", "trainer"]).exits(0);
    is_clean(&fixture);
    // A container that exits is cleaned up by a process of conmon, which does not pass on the
    // options that podman was called with.
    podman.run(&[&["--name", "short"], &request[..]].concat(), &["true"], true).exits(0);
    is_clean(&fixture);
    podman.command(&["rm", "short"]).exits(0);
}

#[test]
fn cdi_devices_are_slices() {
    let fixture = Fixture::new(T4);
    let Some(podman) = Podman::open("podman::cdi_devices_are_slices", &fixture, T4) else {
        return;
    };
    let config = podman.config().to_string_lossy().into_owned();
    let generated = ["cdi", "generate", "--gib", "6", "--config", &config];
    let specification = Outcome::of(fixture.cgpu(&generated)).silent().stdout;
    let run = |options: &[&str]| {
        let options = [&["--device"], options].concat();
        podman.run_with_devices(&specification, &options, &["env", "-i", "/bin/init"])
    };
    assert_eq!(run(&["cgpu.dev/slice=6GiB"]).exits(0).number("total"), 6144 * MIB);
    let request = EIGHT.map(|variable| ["-e", variable]).concat();
    let all = |request: &[&str]| run(&[&["cgpu.dev/slice=all"], request].concat());
    assert_eq!(all(&request).exits(0).number("total"), 8058 * MIB);
    let refused = all(&["-e", "ALIYUN_COM_GPU_MEM_CONTAINER=six"]);
    assert!(
        refused.code() != Some(0) && refused.stderr.contains("is `six`, expected"),
        "{refused:?}"
    );
    let unknown = run(&["cgpu.dev/slice=7GiB"]);
    assert!(unknown.code() != Some(0), "{unknown:?}");
    is_clean(&fixture);
}

/// A device of a claim, as `cgpu-dra-driver` specifies it.
#[test]
fn cdi_devices_of_claims_are_slices() {
    let fixture = Fixture::new(T4);
    let test = "podman::cdi_devices_of_claims_are_slices";
    let Some(podman) = Podman::open(test, &fixture, T4) else { return };
    prepare_share(&fixture, "u-0", &uuids(&fixture, T4)[0], 4000, 2);
    let (program, config) = (fixture.dist().file("cgpu-runtime"), podman.config());
    let device = |share: &str| {
        let hook = |(stage, step): (&str, &str)| {
            json!({ "hookName": stage, "path": program, "args":
                ["cgpu-runtime", "hook", "share", step, share, "--config", config] })
        };
        let hooks: Vec<Value> = SHARE_HOOKS.into_iter().map(hook).collect();
        json!({ "name": share, "containerEdits": { "hooks": hooks } })
    };
    let specification = json!({ "cdiVersion": "0.5.0", "kind": "cgpu.dev/share",
        "devices": [device("u-0"), device("u-1")] });
    let run = |device: &str, variables: &[&str]| {
        let options = [&["--device", device], variables].concat();
        podman.run_with_devices(&specification.to_string(), &options, &["env", "-i", "/bin/init"])
    };
    let more = EIGHT.map(|variable| ["-e", variable]).concat();
    for variables in [&[][..], &more] {
        assert_eq!(run("cgpu.dev/share=u-0", variables).exits(0).number("total"), 4000 * MIB);
    }
    let refused = run("cgpu.dev/share=u-1", &[]);
    assert!(
        refused.code() != Some(0) && refused.stderr.contains("u-1 is not prepared"),
        "{refused:?}"
    );
    is_clean(&fixture);
}

#[test]
fn rootless_user_has_its_own_slices() {
    let test = "podman::rootless_user_has_its_own_slices";
    // SAFETY: no obligations; geteuid cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return skip(test, "rootless", "only root can become another user");
    }
    let fixture = Fixture::new(T4);
    if !is_reachable(&fixture.dist().file("libcgpu.so")) {
        return skip(test, "rootless", "what was built lies where other users cannot come to");
    }
    let folder =
        tempfile::Builder::new().prefix("cgpu-rootless-").tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name);
    for name in ["home", "run"] {
        fs::create_dir(at(name)).expect("a folder");
    }
    furnish(&fixture, &at("image"));
    fs::write(at("runtime.toml"), format!("sim = {T4:?}\nruntime = \"runc\"\n"))
        .expect("a configuration");
    let storage = format!(
        "[storage]\ndriver = \"vfs\"\ngraphroot = {:?}\nrunroot = {:?}\n",
        at("storage"),
        at("runroot")
    );
    fs::write(at("storage.conf"), storage).expect("a configuration");
    let own = |command: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", command, "sh"]).arg(folder.path());
        Outcome::of(shell)
    };
    own("chown -R daemon:daemon \"$1\" && chmod 755 \"$1\" && chmod 700 \"$1/run\"").exits(0);
    let podman = |runtime: &std::path::Path, arguments: &[&str]| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid=daemon", "--regid=daemon", "--clear-groups", "podman"]);
        command
            .env("HOME", at("home"))
            .env("XDG_RUNTIME_DIR", at("run"))
            .env("CONTAINERS_STORAGE_CONF", at("storage.conf"));
        command
            .args(["--cgroup-manager=cgroupfs", "--events-backend=none", "--runtime"])
            .arg(runtime);
        command.args(arguments).current_dir(folder.path());
        Outcome::of(command)
    };
    own("tar --owner=0 --group=0 -C \"$1/image\" -cf \"$1/image.tar\" .").exits(0);
    let imported =
        podman("runc".as_ref(), &["import", &at("image.tar").to_string_lossy(), "localhost/cuda"]);
    let run = ["run", "--rm", "--network=none", "--pull=never"];
    let probe = podman("runc".as_ref(), &[&run[..], &["localhost/cuda", "true"]].concat());
    if imported.code() != Some(0) || probe.code() != Some(0) {
        let printed = probe.stderr.trim();
        return skip(
            test,
            "rootless",
            &format!("podman starts no containers for users without rights here: {printed}"),
        );
    }
    let ours = fixture.dist().file("cgpu-runtime");
    let config = format!("--runtime-flag=cgpu-config={}", at("runtime.toml").display());
    let request = EIGHT.map(|variable| ["-e", variable]).concat();
    let inside = podman(
        &ours,
        &[&[&config[..]], &run[..], &request, &["localhost/cuda", "env", "-i", "/bin/init"]]
            .concat(),
    );
    assert_eq!(inside.exits(0).number("total"), 8058 * MIB);
    let refused = podman(
        &ours,
        &[
            &[&config[..]],
            &run[..],
            &["-e", "ALIYUN_COM_GPU_MEM_CONTAINER=six", "localhost/cuda", "true"],
        ]
        .concat(),
    );
    assert!(
        refused.code() != Some(0) && refused.stderr.contains("is `six`, expected"),
        "{refused:?}"
    );
    let containers = at("run/cgpu/containers");
    fixture.wait_until_none("folders", || {
        let all = fs::read_dir(&containers).expect("the user's own folder").flatten();
        all.map(|one| one.file_name().to_string_lossy().into_owned()).collect()
    });
}
