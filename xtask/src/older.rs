//! Root file systems of other systems: older ones, for tests of what is shipped, and clean ones, in
//! which packages are installed.
//!
//! debootstrap's first stage makes the older ones: it unpacks packages without running their
//! scripts. The result has a loader, a C library and the tools of a shell. The shim, the
//! programs, a simulated driver and the small C programs are built for the old glibc into a folder
//! like `dist`, so the end-to-end tests run there unchanged.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::Workspace;
use crate::{build, portable, programs};

/// A system whose root file system can be made.
struct System {
    suite: &'static str,
    /// The SHA-256 sum of its list of packages, for a system whose signing key is in no package of
    /// Debian. The system no longer changes, so neither does the list. debootstrap checks packages
    /// against the list, and the list is checked before anything is unpacked. `None`: the signature
    /// is checked.
    packages: Option<&'static str>,
    /// Whether the packages' scripts are run, so that more can be installed.
    is_complete: bool,
    /// A further package.
    include: Option<&'static str>,
    /// A mirror, and the script that knows how the system is made. `None`: those of the suite.
    mirror: Option<[&'static str; 2]>,
}

impl System {
    const fn older(suite: &'static str, packages: Option<&'static str>) -> Self {
        Self { suite, packages, is_complete: false, include: None, mirror: None }
    }
}

/// Systems with glibc 2.31 and 2.23. Older ones are no longer on the mirrors; `CGPU_OLD_ROOTS` adds
/// some.
const OLDER: &[System] = &[
    System::older("bullseye", None),
    #[cfg(target_arch = "x86_64")]
    System::older(
        "xenial",
        Some("f6bd998e33ce5cc6fa43df47f191a78587e658b1b7fd29c7d065742acd4e5dd9"),
    ),
];

/// Debian 12, with rpm, and Ubuntu 24.04 as it was released.
const CLEAN: &[System] = &[
    System {
        suite: "bookworm",
        packages: None,
        is_complete: true,
        include: Some("rpm"),
        mirror: None,
    },
    #[cfg(target_arch = "x86_64")]
    System {
        suite: "noble",
        packages: Some("8f6f71ae839c8cba390a7643fcbbdacddb0bc7d12c1583a2dd80a1f8443a30e5"),
        is_complete: true,
        include: None,
        mirror: Some(["http://archive.ubuntu.com/ubuntu", "gutsy"]),
    },
];

/// The profile of the programs: without the optimizations that take minutes. The glibc symbols that
/// they need are the same.
const PROFILE: &str = "older";
/// The C programs that the tests run in containers' images.
const PROGRAMS: &[&str] = &["init", "meminfo", "alloc_fill", "visible", "hold", "worker"];
/// Timeout for making a system, in seconds.
const TIMEOUT: &str = "400";

/// Builds what the tests run there; returns the folder, which is like `dist`.
pub(crate) fn collect(workspace: &Workspace, shim: &Path) -> Result<PathBuf> {
    let folder = workspace.target.join("older").join("dist");
    portable::tools(workspace, PROFILE, &folder)?;
    build::place(shim, &folder.join("libcgpu.so"))?;
    build::runtime(workspace, PROFILE, &folder)?;
    let compiler = portable::compiler(workspace)?;
    programs::compile_by(
        workspace,
        || portable::copy(&compiler),
        PROGRAMS,
        &folder.join("programs"),
    )?;
    Ok(folder)
}

/// Returns the root file systems of older systems, made now or by an earlier run, and the reasons
/// for those that cannot be made.
pub(crate) fn roots(workspace: &Workspace) -> (Vec<PathBuf>, Vec<String>) {
    made_or_named("CGPU_OLD_ROOTS", OLDER, &workspace.target.join("older"))
}

/// The same of clean systems.
pub(crate) fn clean_roots(workspace: &Workspace) -> (Vec<PathBuf>, Vec<String>) {
    made_or_named("CGPU_SYSTEM_ROOTS", CLEAN, &workspace.target.join("systems"))
}

fn made_or_named(
    variable: &str,
    systems: &'static [System],
    folder: &Path,
) -> (Vec<PathBuf>, Vec<String>) {
    if let Some(named) = std::env::var_os(variable) {
        return (std::env::split_paths(&named).collect(), Vec::new());
    }
    let made = |system: &'static System| -> Result<PathBuf> {
        let root = folder.join(system.suite);
        if !root.exists() {
            system.fetch(folder)?;
        }
        Ok(root)
    };
    let all = std::thread::scope(|scope| {
        let made = &made;
        let started: Vec<_> =
            systems.iter().map(|system| (system, scope.spawn(move || made(system)))).collect();
        let joined = started.into_iter().map(|(system, thread)| (system, thread.join()));
        joined.collect::<Vec<_>>()
    });
    let (mut found, mut lacking) = (Vec::new(), Vec::new());
    for (system, root) in all {
        let checked = |root: PathBuf| system.check_root(&root).map(|()| root);
        match root.unwrap_or_else(|_| bail!("a panic")).and_then(checked) {
            Ok(root) => found.push(root),
            Err(error) => lacking.push(format!("{}: {error:#}", system.suite)),
        }
    }
    (found, lacking)
}

/// Returns why no system can be made on this machine, unless a variable names some.
pub(crate) fn obstacle(variable: &str) -> Option<&'static str> {
    if std::env::var_os(variable).is_some() {
        return None;
    }
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    if !is_root {
        return Some("only root can unpack a system");
    }
    let program = |folder: &str| Path::new(folder).join("debootstrap").exists();
    let is_there = ["/usr/sbin", "/sbin", "/usr/local/sbin"].into_iter().any(program);
    (!is_there).then_some("debootstrap is not installed")
}

impl System {
    /// Makes the root file system in `folder`, and renames it when it is complete.
    fn fetch(&self, folder: &Path) -> Result<()> {
        let fresh = folder.join(format!("{}.new", self.suite));
        if fresh.exists() {
            fs::remove_dir_all(&fresh)
                .with_context(|| format!("cannot remove {}", fresh.display()))?;
        }
        fs::create_dir_all(&fresh).with_context(|| format!("cannot create {}", fresh.display()))?;
        eprintln!("xtask: making {} (a minute or so)", self.suite);
        let foreign: Vec<OsString> =
            if self.is_complete { Vec::new() } else { vec!["--foreign".into()] };
        if let Some(expected) = self.packages {
            // Downloaded once, so that the checked files are the ones that are unpacked.
            let packed = std::path::absolute(folder.join(format!("{}.tgz", self.suite)))?;
            let with =
                |option: &str| vec![OsString::from_iter([option.as_ref(), packed.as_os_str()])];
            let unchecked = vec![OsString::from("--no-check-gpg")];
            self.debootstrap(&fresh, &[unchecked.clone(), with("--make-tarball=")].concat())?;
            check_packed(self.suite, &packed, expected)?;
            self.debootstrap(&fresh, &[foreign, unchecked, with("--unpack-tarball=")].concat())?;
            fs::remove_file(&packed)
                .with_context(|| format!("cannot remove {}", packed.display()))?;
        } else {
            self.debootstrap(&fresh, &foreign)?;
        }
        // In a container, debootstrap makes these links to the container's own folders; a mount
        // there would hit the host's.
        for name in ["proc", "dev"] {
            let place = fresh.join(name);
            if place.is_symlink() {
                fs::remove_file(&place)
                    .and_then(|()| fs::create_dir(&place))
                    .context("cannot create a folder")?;
            }
        }
        fs::rename(&fresh, folder.join(self.suite)).context("cannot rename it")
    }

    fn debootstrap(&self, root: &Path, options: &[OsString]) -> Result<()> {
        let output = Command::new("timeout")
            .arg(TIMEOUT)
            .args(["debootstrap", "--variant=minbase"])
            .args(self.include.map(|package| format!("--include={package}")))
            .args(options)
            .arg(self.suite)
            .arg(root)
            .args(self.mirror.into_iter().flatten())
            // debootstrap calls programs that are not in every user's PATH.
            .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
            .stdin(Stdio::null())
            .output()
            .context("cannot run debootstrap")?;
        if !output.status.success() {
            let output = [output.stdout, output.stderr].concat();
            let output = String::from_utf8_lossy(&output);
            let last = output
                .lines()
                .rev()
                .find(|line| line.contains("E: "))
                .or(output.lines().next_back());
            bail!("debootstrap: {}", last.unwrap_or("no message").trim());
        }
        Ok(())
    }

    /// Checks the list of packages before anything in the root runs: an earlier run may have made
    /// it.
    fn check_root(&self, root: &Path) -> Result<()> {
        let Some(expected) = self.packages else { return Ok(()) };
        let lists = root.join("var/lib/apt/lists");
        let all =
            fs::read_dir(&lists).with_context(|| format!("cannot read {}", lists.display()))?;
        let mut lists = all.flatten().map(|entry| entry.path());
        let list = lists
            .find(|path| path.to_string_lossy().ends_with("_Packages"))
            .with_context(|| format!("{} has no list of packages", self.suite))?;
        let list = File::open(&list).with_context(|| format!("cannot open {}", list.display()))?;
        check_list(self.suite, list.into(), expected, root)
    }
}

/// Checks a downloaded archive before it is unpacked. Several lists in it fail the check.
fn check_packed(suite: &str, packed: &Path, expected: &str) -> Result<()> {
    let mut tar = Command::new("tar")
        .args(["--extract", "--gzip", "--to-stdout", "--wildcards", "--file"])
        .arg(packed)
        .arg("var/lib/apt/lists/*_Packages")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot run tar")?;
    let list = tar.stdout.take().context("tar has no output")?;
    let checked = check_list(suite, list.into(), expected, packed);
    let status = tar.wait().context("tar")?;
    checked?;
    ensure!(status.success(), "cannot read {}: tar: {status}", packed.display());
    Ok(())
}

fn check_list(suite: &str, list: Stdio, expected: &str, place: &Path) -> Result<()> {
    let output = Command::new("sha256sum").stdin(list).output().context("cannot run sha256sum")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let sum = text.split_whitespace().next().unwrap_or_default();
    ensure!(
        sum == expected,
        "the packages of {suite} are not those that were released: expected the sum {expected}, \
         found {sum}; remove {}",
        place.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_with_other_packages_is_refused() {
        // The sum of "Package: a\n".
        const SUM: &str = "fa07db62b48a0f9848538c437cfa8aef500bd6570830a5c508d87eeb99d1a50d";
        let folder = std::env::temp_dir().join(format!("cgpu-older-{}", std::process::id()));
        let lists = folder.join("var/lib/apt/lists");
        fs::create_dir_all(&lists).unwrap();
        let packed = folder.join("some.tgz");
        let check = |lists_with: &[(&str, &str)]| {
            for (name, text) in lists_with {
                fs::write(lists.join(name), text).unwrap();
            }
            let mut tar = Command::new("tar");
            tar.arg("-czf").arg(&packed).arg("-C").arg(&folder).arg("var");
            assert!(tar.status().unwrap().success());
            check_packed("some", &packed, SUM)
        };
        assert!(check(&[]).is_err(), "no list");
        check(&[("m_Packages", "Package: a\n"), ("m_Release", "x")]).unwrap();
        let system = System::older("some", Some(SUM));
        system.check_root(&folder).unwrap();
        let other = check(&[("m_Packages", "Package: b\n")]).unwrap_err().to_string();
        assert!(
            other.contains("not those that were released") && other.contains("some.tgz"),
            "{other}"
        );
        assert!(system.check_root(&folder).is_err());
        assert!(
            check(&[("m_Packages", "Package: a\n"), ("n_Packages", "x")]).is_err(),
            "another list"
        );
        fs::remove_dir_all(&folder).unwrap();
    }
}
