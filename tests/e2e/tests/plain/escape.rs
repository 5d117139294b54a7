//! Limits from outside hold however a process of the container is started: they are in a file that
//! it cannot write, and the shim is in /etc/ld.so.preload.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use cgpu_e2e::{Fixture, MIB, Outcome, mounted, skip};

/// A minimal container in a mount namespace. The built files are at /run/stage, the simulated
/// driver on the loader's own path, the shim in ld.so.preload, and the simulated GPUs and regions
/// in its own /dev/shm. None of it needs a variable.
const CONTAINER: &str = "
    mount -t tmpfs none /mnt && cp -a /etc /mnt/etc && mount --bind /mnt/etc /etc && mount -t tmpfs none /run &&
    mkdir -p /run/stage /run/cgpu && cp {dist}/libcgpu.so {dist}/programs/init {dist}/sim/*.so.1 {ways} /run/stage &&
    cp {limits} /run/cgpu/limits && {protect} && chmod 777 /run/cgpu && mount -t tmpfs -o mode=1777 none /dev/shm &&
    echo /run/stage > /etc/ld.so.conf.d/cgpu.conf && ldconfig && echo /run/stage/libcgpu.so > /etc/ld.so.preload && cd /";

const READ_ONLY: &str =
    "mount --bind /run/cgpu/limits /run/cgpu/limits && mount -o remount,bind,ro /run/cgpu/limits";

/// Returns the GPU's size as each command sees it, one line each; the limit is 3 GiB.
fn totals(protect: &str, ways: &[&str]) -> Option<Vec<String>> {
    let fixture = Fixture::new("A10:23028");
    let mut native = fixture.program("visible");
    native.env("NATIVE", "all");
    let gpu = Outcome::of(native).silent().json();
    let limits = fixture.path("limits");
    fs::write(
        &limits,
        format!(
            "version 1\nname a\ngpu {} {}\n",
            gpu["uuid"].as_str().expect("a UUID"),
            3072 * MIB
        ),
    )
    .expect("a limits file");
    let script = fixture.path("ways");
    let lines: Vec<String> = ways
        .iter()
        .map(|way| format!("{} || echo failed", way.replace("INIT", "/run/stage/init")))
        .collect();
    fs::write(&script, lines.join("\n")).expect("a script");
    for path in [&limits, &script] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("ours");
    }
    let setup = CONTAINER
        .replace("{protect}", protect)
        .replace("{dist}", &fixture.dist().folder().to_string_lossy())
        .replace("{limits}", &limits.to_string_lossy())
        .replace("{ways}", &script.to_string_lossy());
    let mut shell = fixture.native(std::path::Path::new("/bin/sh"));
    shell
        .arg("/run/stage/ways")
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("CGPU_SIM_GPUS")
        .env_remove("CGPU_SIM_STATE");
    let Some(command) = mounted(&shell, &setup) else {
        skip("escape", "unshare", "mounting needs root or user namespaces");
        return None;
    };
    let outcome = Outcome::of(command).silent();
    Some(outcome.stdout.lines().map(str::to_owned).collect())
}

fn holds(ways: &[&str]) {
    hold_with(READ_ONLY, ways);
}

fn hold_with(protect: &str, ways: &[&str]) {
    let Some(lines) = totals(protect, ways) else { return };
    let expected = format!("{{\"init\": 0, \"device\": 0, \"total\": {}}}", 3072 * MIB);
    assert_eq!(lines.len(), ways.len(), "{lines:?}");
    for (way, line) in ways.iter().zip(lines) {
        assert_eq!(line, expected, "{way}");
    }
}

#[test]
fn limits_hold_with_an_empty_environment() {
    holds(&[
        "INIT",
        "env -i INIT",
        "env -i sh -c 'exec INIT'",
        "setsid env -i INIT",
        "env -i CGPU_DISABLE=1 ALIYUN_COM_GPU_MEM_CONTAINER=0 INIT",
        "CGPU_DIR=/dev/shm ALIYUN_COM_GPU_MEM_CONTAINER=20 NVIDIA_VISIBLE_DEVICES=none INIT",
        "LD_PRELOAD= INIT",
        "env -i nohup INIT",
        "(INIT & wait)",
    ]);
}

#[test]
fn limits_hold_in_login_shells() {
    // SAFETY: no obligations; geteuid cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return skip("escape", "root", "becoming another user needs root");
    }
    holds(&[
        // A login shell starts with a fresh environment, as the sessions of sshd and sudo do.
        "su - root -c INIT",
        "su daemon -s /bin/sh -c INIT",
        "su daemon -s /bin/sh -c 'env -i INIT'",
        "setpriv --reuid 65534 --regid 65534 --clear-groups env -i INIT",
        "setpriv --reuid 1000 --regid 1000 --clear-groups env -i ALIYUN_COM_GPU_MEM_CONTAINER=0 INIT",
    ]);
}

#[test]
fn limits_hold_in_user_namespaces() {
    let ways: &[&str] = &[
        "unshare -Ur INIT",
        "unshare -U INIT",
        "unshare -Urm INIT",
        "unshare -Urm sh -c 'mount -o remount,bind,rw /run/cgpu/limits 2>/dev/null; INIT'",
        "unshare -Urm sh -c 'umount /run/cgpu/limits 2>/dev/null; INIT'",
    ];
    let probe = std::process::Command::new("unshare").args(["-Urm", "true"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        return skip("escape", "unshare", "no user namespaces here");
    }
    holds(ways);
}

/// In a user namespace without a mapping for the file's owner, the owner is the overflow ID, and so
/// is the process itself.
#[test]
fn unmapped_owner_is_not_taken_for_the_process() {
    let unmapped =
        ["--reuid", "1000", "--regid", "1000", "--clear-groups", "unshare", "-U", "true"];
    let probe = std::process::Command::new("setpriv").args(unmapped).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        return skip(
            "escape",
            "unshare",
            "becoming a user without a name needs root and user namespaces",
        );
    }
    hold_with(
        "chmod 644 /run/cgpu/limits",
        &[
            "setpriv --reuid 1000 --regid 1000 --clear-groups INIT",
            "setpriv --reuid 1000 --regid 1000 --clear-groups unshare -U INIT",
            "setpriv --reuid 1000 --regid 1000 --clear-groups unshare -Ur INIT",
        ],
    );
}
