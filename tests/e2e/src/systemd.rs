//! A real systemd: the host's own files below a temporary overlay, booted in systemd-nspawn.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::Duration;

use crate::Child;

/// Returns why this machine cannot boot systemd, or None if it can.
#[must_use]
pub fn systemd_obstacle() -> Option<&'static str> {
    let is_there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    // SAFETY: no obligations; geteuid cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        Some("only root can start a container of systemd's")
    } else if !is_there("systemd-nspawn") || !Path::new("/lib/systemd/systemd").exists() {
        Some("systemd-nspawn is not installed")
    } else {
        None
    }
}

/// The unit that is booted. Its service does what an administrator would and prints the results,
/// line by line.
const UNIT: &str = "\
[Unit]
DefaultDependencies=no
Wants=basic.target
After=basic.target
[Service]
Type=oneshot
ExecStart=/bin/sh -e /cgpu/administrator
ExecStopPost=/bin/systemctl exit
";

/// Where hierarchies of control groups may be that systemd uses.
const HIERARCHIES: [&str; 3] =
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"];

/// Makes groups for a systemd, which removes empty groups of the group that it begins in, also
/// those of other tests. Returns their folders.
fn own_groups() -> Vec<PathBuf> {
    let roots = HIERARCHIES.iter().filter(|root| Path::new(root).join("cgroup.procs").exists());
    let groups = roots.map(|root| Path::new(root).join(format!("cgpu-boot-{}", process::id())));
    groups.filter(|group| fs::create_dir(group).is_ok()).collect()
}

/// Boots systemd, with folders of the host below `/cgpu`, and runs the administrator's script
/// there. Returns the lines that it has written, and the errors.
///
/// # Panics
/// If a file cannot be written.
#[must_use]
pub fn boot(administrator: &str, folders: &[(&Path, &str)]) -> (Vec<String>, String) {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let place = |name: &str| folder.path().join(name);
    for name in ["upper", "work", "root", "cgpu"] {
        fs::create_dir(place(name)).expect("a folder");
    }
    fs::write(place("cgpu/administrator"), administrator).expect("a file");
    fs::write(place("administrator.service"), UNIT).expect("a file");
    let bind = |what: &Path, at: &str| format!("--bind-ro={}:{at}", what.display());
    let shown = folder.path().display();
    // The mounts end with the namespace, also if the test is killed.
    let layers = format!(
        "mount -t overlay overlay -o lowerdir=/,upperdir={shown}/upper,workdir={shown}/work {shown}/root"
    );
    let groups = own_groups();
    let enter: String = groups
        .iter()
        .map(|group| format!("echo $$ > {}/cgroup.procs\n", group.display()))
        .collect();
    let mut boot = Command::new("unshare");
    boot.args(["--mount", "sh", "-ec"])
        .arg(format!("{enter}{layers}; exec systemd-nspawn \"$@\""))
        .arg("sh");
    boot.args(["--quiet", "--register=no", "--keep-unit", "--bind=/dev/fuse", "-b"]);
    boot.arg(format!("--machine=cgpu-{}", process::id())).arg(format!("--directory={shown}/root"));
    boot.arg(format!("--bind={}:/cgpu", place("cgpu").display()));
    for (from, name) in folders {
        fs::create_dir(place("cgpu").join(name)).expect("a folder");
        boot.arg(bind(from, &format!("/cgpu/{name}")));
    }
    boot.arg(bind(&place("administrator.service"), "/etc/systemd/system/administrator.service"));
    boot.arg("systemd.unit=administrator.service");
    let outcome = Child::start_for(boot, Duration::from_secs(280)).finish();
    let _ = Command::new("find").args(&groups).args(["-depth", "-type", "d", "-delete"]).status();
    let read = |name: &str| fs::read_to_string(place("cgpu").join(name)).unwrap_or_default();
    let lines = read("said").lines().map(|line| line.trim_end().to_owned()).collect();
    (lines, format!("{}\n{outcome:?}", read("errors")))
}
