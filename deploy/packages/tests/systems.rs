//! Packages in clean root file systems: installed, upgraded while a container runs, refused,
//! removed and purged. The tarball: installed and removed there, and the nodes' image of it.
//!
//! `cargo xtask test --full --only packages` makes the root file systems, and names them in
//! CGPU_SYSTEM_ROOTS (separated by colons). No systemd runs in them; `service` of the end-to-end
//! tests has one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cgpu_e2e::{
    Child, Dist, Docker, Elf, Fixture, boot, mounted, readme_commands, skip, systemd_obstacle,
};
use cgpu_packages::files::Sources;
use cgpu_packages::scripts::LAYOUT;
use cgpu_packages::{Made, Release};

/// The version of the built programs, and versions of other packages, which have the same programs.
const VERSION: &str = env!("CARGO_PKG_VERSION");
const FORMER: &str = "0.0.9";
const LATER: &str = "999.0.0";
const ADMINISTRATOR: &str = include_str!("administrator.sh");
/// Programs that run in the systems. The others are texts, which are packed faster.
const RUN: [&str; 6] = [
    "cgpu",
    "cgpu-monitor",
    "cgpu-runtime",
    "libcgpu.so",
    "sim/libcuda.so.1",
    "sim/libnvidia-ml.so.1",
];

/// How a package manager does what the administrator wants.
struct Manager {
    /// Its program; systems without it are left out.
    program: &'static str,
    /// The end of the packages' names, and what makes them.
    end: &'static str,
    make: fn(&Release, &Path, &str, &Path) -> anyhow::Result<Made>,
    functions: &'static str,
    /// The lines in which managers differ.
    installed: &'static str,
    after_removal: &'static [&'static str],
}

const DPKG: Manager = Manager {
    program: "usr/bin/dpkg",
    end: ".deb",
    make: Release::deb,
    functions: "\
install_package() { dpkg --force-confold --install $1.deb; }
remove_package() { dpkg --remove cgpu; }
purge_package() { dpkg --purge cgpu; }
verify() { [ -z \"$(dpkg --verify cgpu)\" ]; }
version() { dpkg-query --show --showformat '${Version} ${db:Status-Status}' cgpu; }
",
    installed: " installed",
    after_removal: &["removed: /etc/cgpu /var/lib/cgpu", "purged:"],
};

/// Without dependencies: RPM's database is empty, since dpkg installed the system.
const RPM: Manager = Manager {
    program: "usr/bin/rpm",
    end: ".rpm",
    make: Release::rpm,
    functions: "\
install_package() { rpm --nodeps --upgrade $1.rpm; }
remove_package() { rpm --erase cgpu; }
purge_package() { return 1; }
verify() { [ -z \"$(rpm --verify --nodeps cgpu)\" ]; }
version() { rpm --query --queryformat '%{VERSION}' cgpu; }
",
    installed: "",
    after_removal: &["removed: /etc/cgpu /var/lib/cgpu"],
};

/// Returns the root file systems that have a program.
fn roots(test: &str, program: &str) -> Vec<PathBuf> {
    let named = std::env::var_os("CGPU_SYSTEM_ROOTS").unwrap_or_default();
    let roots = std::env::split_paths(&named).filter(|root| root.join(program).exists());
    let roots: Vec<PathBuf> = roots.collect();
    if roots.is_empty() {
        let reason = format!("CGPU_SYSTEM_ROOTS names no root file system with {program}");
        skip(test, "systems", &reason);
    } else if mounted(&Command::new("true"), "true").is_none() {
        skip(test, "systems", "nothing can be mounted here");
        return Vec::new();
    }
    roots
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Makes a folder of built files, some of which are programs.
fn built(folder: &Path) -> PathBuf {
    let (dist, built) = (Dist::find(), folder.join("built"));
    let put = |name: &str, bytes: &[u8]| {
        let path = built.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, bytes).expect("a file");
    };
    let table = Sources(&sources()).table().expect("a table");
    let names = table.iter().map(|line| line.from.as_str());
    for name in names.chain(["cgpu-dra-controller", "cgpu-dra-driver"]) {
        if RUN.contains(&name) {
            put(name, &fs::read(dist.file(name)).expect("a program"));
            // Debug information takes longer to pack than all else.
            let mut strip = Command::new("strip");
            strip.arg("--strip-debug").arg(built.join(name));
            Child::start(strip).finish().exits(0);
        } else {
            put(name, name.as_bytes());
        }
    }
    built
}

/// Makes the packages of a former release, this one, and one with another layout.
fn packages(folder: &Path, manager: &Manager) {
    let (sources, built) = (sources(), built(folder));
    fs::create_dir(folder.join("packages")).expect("a folder");
    for (name, version, layout) in
        [("former", FORMER, LAYOUT), ("new", VERSION, LAYOUT), ("other-layout", LATER, LAYOUT + 1)]
    {
        let release = Release::at(&sources, 1_700_000_000).expect("a release");
        let release = release.renamed(version, layout);
        let made = (manager.make)(&release, &sources, std::env::consts::ARCH, &built);
        let path = folder.join(format!("packages/{name}{}", manager.end));
        fs::write(path, made.expect("a package").1).expect("a file");
    }
}

/// Makes all files of this release.
fn release(folder: &Path) {
    let machine = (std::env::consts::ARCH.to_owned(), built(folder));
    let release = Release::at(&sources(), 1_700_000_000).expect("a release");
    release.make(&sources(), &[machine], &folder.join("packages")).expect("the files of a release");
}

/// Runs a script in an overlay of a root file system, with the folder `packages` that `make` puts
/// into a folder; returns what it tells.
fn work(root: &Path, script: &str, make: impl FnOnce(&Path)) -> (Vec<String>, String) {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    make(folder.path());
    for name in ["upper", "work", "root", "said"] {
        fs::create_dir(folder.path().join(name)).expect("a folder");
    }
    fs::write(folder.path().join("said/administrator"), script).expect("a script");
    let (lower, here) = (root.display(), folder.path().display());
    let programs = Dist::find().folder().join("programs");
    let setup = format!(
        "mount -t overlay overlay -o lowerdir={lower},upperdir={here}/upper,workdir={here}/work \
             {here}/root && cd {here}/root && mkdir -p packages programs said && \
         mount --bind {here}/packages packages && mount --bind {here}/said said && \
         mount --bind {} programs && mount --rbind /dev dev && mount -t tmpfs none run",
        programs.display()
    );
    let mut inside = Command::new("unshare");
    inside.args(["--pid", "--fork", "--kill-child", "chroot"]).arg(folder.path().join("root"));
    inside.args(["sh", "-c", "mount -t proc proc /proc && exec sh /said/administrator"]);
    inside.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("DEBIAN_FRONTEND", "noninteractive");
    inside.env_remove("LD_LIBRARY_PATH");
    let command = mounted(&inside, &setup).expect("it could be mounted before");
    let outcome = Child::start_for(command, Duration::from_secs(280)).finish();
    let read =
        |name: &str| fs::read_to_string(folder.path().join("said").join(name)).unwrap_or_default();
    let lines = outcome.stdout.lines().map(str::to_owned).collect();
    (lines, format!("{outcome:?}\n{}\n{}", read("log"), read("monitor")))
}

fn is_managed(test: &str, manager: &Manager) {
    for root in roots(test, manager.program) {
        let script = format!("set -e\n{}\n{ADMINISTRATOR}", manager.functions);
        let (lines, errors) = work(&root, &script, |folder| packages(folder, manager));
        let state = manager.installed;
        let mut expected = vec![
            format!("installed: {FORMER}{state}, cgpu {VERSION}, cgpu-monitor {VERSION}"),
            "page: cgpu".to_owned(),
            format!("upgraded: {VERSION}{state}, the container runs on"),
            "configuration: # changed".to_owned(),
            format!(
                "another layout: container a has files of layout {LAYOUT}, this release uses {}: \
                 end it first",
                LAYOUT + 1
            ),
            format!("still: {VERSION}{state}"),
            "a container of the runtime: stop them, or use the variable CGPU_FORCE=yes: a script \
             then runs the next runtime for them"
                .to_owned(),
            format!("still: {VERSION}{state}"),
            "forced: runc --root /r kill c1, left: /usr/bin/cgpu-runtime /etc/cgpu /var/lib/cgpu"
                .to_owned(),
            format!("installed again: {VERSION}{state}"),
        ];
        expected.extend(manager.after_removal.iter().map(|&line| line.to_owned()));
        expected.push(
            "beside install.sh: install.sh installed cgpu on this host: run \
             /usr/lib/cgpu/uninstall.sh, then install the package; changed settings stay"
                .to_owned(),
        );
        assert_eq!(lines, expected, "{}: {errors}", root.display());
    }
}

#[test]
fn programs_of_the_packages_need_glibc_2_17_at_most() {
    let test = "systems::programs_of_the_packages_need_glibc_2_17_at_most";
    if roots(test, "usr/bin/env").is_empty() {
        return;
    }
    for name in RUN {
        let Some(file) = Elf::read(&Dist::find().file(name)) else {
            return skip(test, "readelf", "readelf is not installed");
        };
        for version in file.versions() {
            let Some(number) = version.strip_prefix("GLIBC_2.") else { continue };
            let minor: u32 = number.split('.').next().unwrap_or_default().parse().expect(&version);
            assert!(minor <= 17, "{name} needs {version}");
        }
    }
}

#[test]
fn debian_package_is_installed_upgraded_and_removed() {
    is_managed("systems::debian_package_is_installed_upgraded_and_removed", &DPKG);
}

#[test]
fn rpm_package_is_installed_upgraded_and_removed() {
    is_managed("systems::rpm_package_is_installed_upgraded_and_removed", &RPM);
}

/// What an administrator does with a tarball, from the sums to the removal.
const WITH_TARBALL: &str = r#"set -e
exec 3>&1 >/said/log 2>&1
tell() { echo "$*" >&3; }
everything() { find / -xdev -path /said -prune -o -path /tmp -prune -o -print | sort; }
cd /packages
sha256sum --check SHA256SUMS
tell "sums: $(wc -l <SHA256SUMS)"
cd /tmp
tar -xzf /packages/cgpu-*.tar.gz
everything >/said/before
cgpu-*/deploy/install.sh
tell "installed: $(cgpu --version), $(cgpu-monitor --version), $(ls /usr/share/man/man1/cgpu.1)"
/usr/lib/cgpu/uninstall.sh --purge
everything >/said/after
tell "left: $(diff /said/before /said/after | grep '^[<>]' | tr '\n' ' ')"
"#;

#[test]
fn tarball_is_installed_and_removed() {
    for root in roots("systems::tarball_is_installed_and_removed", "usr/bin/env") {
        let (lines, errors) = work(&root, WITH_TARBALL, release);
        let expected = [
            "sums: 7".to_owned(),
            format!(
                "installed: cgpu {VERSION}, cgpu-monitor {VERSION}, /usr/share/man/man1/cgpu.1"
            ),
            "left: ".to_owned(),
        ];
        assert_eq!(lines, expected, "{}: {errors}", root.display());
    }
}

/// In the nodes' image: its own programs, those of Debian that `node.sh` calls, and that script.
/// `cgpu-runtime` answers by the next runtime, which the image does not have.
const IN_THE_IMAGE: &str = "\
for program in cgpu cgpu-monitor; do /opt/cgpu/$program --version || exit 1; done
nsenter --version && curl --version && test -x /opt/cgpu/deploy/node.sh && echo all";

/// By the commands of README.md. Debian 12 stands for its image of the registry, which has the same
/// packages.
#[test]
fn image_of_the_nodes_is_built_and_its_programs_start() {
    let test = "systems::image_of_the_nodes_is_built_and_its_programs_start";
    let roots = roots(test, "usr/bin/apt-get");
    let is_bookworm = |root: &&PathBuf| {
        let about = fs::read_to_string(root.join("etc/os-release")).unwrap_or_default();
        about.lines().any(|line| line == "VERSION_CODENAME=bookworm")
    };
    let Some(root) = roots.iter().find(is_bookworm) else {
        return skip(test, "systems", "CGPU_SYSTEM_ROOTS names no root file system of Debian 12");
    };
    let gpus = "T4:15109";
    let Some(docker) = Docker::start_opt_in(test, &Fixture::new(gpus), gpus) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    release(folder.path());
    let shell = |script: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-ec", script, "sh"]).arg(root).current_dir(folder.path().join("packages"));
        // The builder of BuildKit is a program of its own.
        shell.env("DOCKER_HOST", docker.host()).env("DOCKER_BUILDKIT", "0");
        Child::start_for(shell, Duration::from_secs(280)).finish()
    };
    shell("tar -C \"$1\" -c . | docker import - debian:12-slim").exits(0);
    let commands = readme_commands("docker build");
    let [unpack, enter, build, ..] = &commands[..] else { panic!("{commands:?}") };
    assert!(build.starts_with("docker build -t REGISTRY/cgpu:"), "{build}");
    // The daemon has no network of its own.
    let build =
        build.replace("docker build", "docker build --network=host").replace("REGISTRY", "local");
    let outcome = shell(&format!("{unpack}\n{enter}\n{build}"));
    let printed = format!("{}{}", outcome.stdout, outcome.stderr);
    if outcome.code() != Some(0) && printed.contains("Temporary failure resolving") {
        return skip(test, "network", "the build of an image reaches no mirror of Debian");
    }
    outcome.exits(0);
    let image = format!("local/cgpu:{VERSION}");
    let run = ["run", "--rm", "--network=none", &image, "sh", "-c", IN_THE_IMAGE];
    let printed = docker.run(&run).exits(0).stdout;
    let [cgpu, monitor, ..] = printed.lines().collect::<Vec<_>>()[..] else { panic!("{printed}") };
    assert_eq!([cgpu, monitor], [format!("cgpu {VERSION}"), format!("cgpu-monitor {VERSION}")]);
    assert!(printed.ends_with("all\n"), "{printed}");
}

/// The same under systemd, which is the host's own.
const WITH_SYSTEMD: &str = r#"
exec 3>/cgpu/said >/cgpu/errors 2>&1
tell() { echo "$*" >&3; }
until_is() { # what, and a command that ends well when it is so
    tries=1200 what=$1; shift
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || { tell "never: $what"; systemctl status cgpu-monitor --no-pager; exit 1; }
        sleep 0.05
    done
}
main() { systemctl show --property=MainPID --value cgpu-monitor; }
another_than() { [ "$(main)" != "$1" ] && [ "$(main)" != 0 ] && cgpu get version; }
state() { echo "$(systemctl is-active cgpu-monitor || :) $(systemctl is-enabled cgpu-monitor || :)"; }
dpkg --install /cgpu/packages/former.deb
until_is "a monitor" cgpu get version
tell "installed: $(state)"
before=$(main)
dpkg --install /cgpu/packages/new.deb
until_is "the successor" another_than "$before"
tell "upgraded: $(state), restarts $(systemctl show --property=NRestarts --value cgpu-monitor)"
dpkg --remove cgpu
tell "removed: $(state)"
dpkg --install /cgpu/packages/new.deb
until_is "a monitor" cgpu get version
tell "installed again: $(state)"
systemctl disable --now cgpu-monitor
dpkg --install /cgpu/packages/new.deb
tell "upgraded while disabled: $(state)"
dpkg --purge cgpu
tell "purged: $(state)"
"#;

#[test]
fn debian_package_starts_and_upgrades_the_service() {
    let test = "systems::debian_package_starts_and_upgrades_the_service";
    let has_dpkg = Command::new("dpkg").arg("--version").output().is_ok();
    if let Some(reason) = systemd_obstacle().or((!has_dpkg).then_some("dpkg is not installed")) {
        return skip(test, "systemd", reason);
    }
    let folder = tempfile::tempdir().expect("a folder");
    packages(folder.path(), &DPKG);
    let (lines, errors) = boot(WITH_SYSTEMD, &[(&folder.path().join("packages"), "packages")]);
    let expected = [
        "installed: active enabled",
        "upgraded: active enabled, restarts 0",
        "removed: inactive",
        "installed again: active enabled",
        "upgraded while disabled: inactive disabled",
        "purged: inactive",
    ];
    assert_eq!(lines, expected, "{errors}");
}
