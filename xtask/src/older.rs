//! What is shipped, on systems that are older than the one that builds it.
//!
//! Their root file systems are made by debootstrap's first stage, which unpacks packages and runs nothing of them; a loader, a C library and the tools of a
//! shell are all there then. Beside the shim for old systems stand programs, a simulated driver and the small C programs, built against the same glibc:
//! a folder like `dist`, so that the end-to-end tests find what they know.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::Workspace;
use crate::{build, portable, programs};

/// A system of which a root file system can be had.
struct System {
    suite: &'static str,
    /// The sum (SHA-256) of its list of packages, for one whose signature cannot be checked: its key is in no package of Debian's. It was released long ago, so
    /// the list stays what it is; what is downloaded is checked against it by debootstrap, and nothing is unpacked before it is checked itself. None: the signature is checked.
    packages: Option<&'static str>,
}

/// What their glibc is: 2.31, 2.23. Older ones are not served where releases are; `CGPU_OLD_ROOTS` names more.
const SYSTEMS: &[System] = &[
    System { suite: "bullseye", packages: None },
    #[cfg(target_arch = "x86_64")]
    System {
        suite: "xenial",
        packages: Some("f6bd998e33ce5cc6fa43df47f191a78587e658b1b7fd29c7d065742acd4e5dd9"),
    },
];

/// How what is shipped beside the shim is built: without the optimisations that take minutes. Which symbols of glibc it needs does not depend on them.
const PROFILE: &str = "older";
/// The C programs of containers' images in the tests.
const PROGRAMS: &[&str] = &["init", "meminfo", "alloc_fill", "visible", "hold", "worker"];
/// Timeout for a system, in seconds.
const TIMEOUT: &str = "180";

/// Builds what is tried there; the folder, which is like `dist`.
pub(crate) fn collect(workspace: &Workspace, shim: &Path) -> Result<PathBuf> {
    let folder = workspace.target.join("older").join("dist");
    portable::tools(workspace, PROFILE, &folder)?;
    build::place(shim, &folder.join("libcgpu.so"))?;
    build::runtime(workspace, PROFILE, &folder)?;
    let compiler = portable::compiler(workspace)?;
    programs::compile_by(
        workspace,
        || portable::again(&compiler),
        PROGRAMS,
        &folder.join("programs"),
    )?;
    Ok(folder)
}

/// Root file systems of older systems, those of an earlier run among them; and of those that cannot be had here, why.
pub(crate) fn roots(workspace: &Workspace) -> Result<(Vec<PathBuf>, Vec<String>)> {
    if let Some(named) = std::env::var_os("CGPU_OLD_ROOTS") {
        return Ok((std::env::split_paths(&named).collect(), Vec::new()));
    }
    let folder = workspace.target.join("older");
    let made = |system: &'static System| -> Result<PathBuf> {
        let root = folder.join(system.suite);
        if !root.exists() {
            system.fetch(&folder)?;
        }
        Ok(root)
    };
    let all = std::thread::scope(|scope| {
        let made = &made;
        let started: Vec<_> =
            SYSTEMS.iter().map(|system| (system, scope.spawn(move || made(system)))).collect();
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
    Ok((found, lacking))
}

/// Why there can be none here.
pub(crate) fn obstacle() -> Option<&'static str> {
    if std::env::var_os("CGPU_OLD_ROOTS").is_some() {
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
    /// Makes the root file system in `folder`, under its own name when it is whole.
    fn fetch(&self, folder: &Path) -> Result<()> {
        let fresh = folder.join(format!("{}.new", self.suite));
        if fresh.exists() {
            fs::remove_dir_all(&fresh)
                .with_context(|| format!("cannot remove {}", fresh.display()))?;
        }
        fs::create_dir_all(&fresh).with_context(|| format!("cannot make {}", fresh.display()))?;
        eprintln!("xtask: unpacking {} (half a minute or so)", self.suite);
        if let Some(expected) = self.packages {
            // It is downloaded once, so that what is unpacked is what was checked.
            let packed = std::path::absolute(folder.join(format!("{}.tgz", self.suite)))?;
            let with = |option: &str| OsString::from_iter([option.as_ref(), packed.as_os_str()]);
            self.debootstrap(&fresh, &["--no-check-gpg".into(), with("--make-tarball=")])?;
            check_packed(self.suite, &packed, expected)?;
            self.debootstrap(&fresh, &["--foreign".into(), with("--unpack-tarball=")])?;
            fs::remove_file(&packed)
                .with_context(|| format!("cannot remove {}", packed.display()))?;
        } else {
            self.debootstrap(&fresh, &["--foreign".into()])?;
        }
        // In a container it makes these links to its own, which lead where a mount would hit the host's.
        for name in ["proc", "dev"] {
            let place = fresh.join(name);
            if place.is_symlink() {
                fs::remove_file(&place)
                    .and_then(|()| fs::create_dir(&place))
                    .context("cannot make a folder")?;
            }
        }
        fs::rename(&fresh, folder.join(self.suite)).context("cannot place it")
    }

    fn debootstrap(&self, root: &Path, options: &[OsString]) -> Result<()> {
        let output = Command::new("timeout")
            .arg(TIMEOUT)
            .args(["debootstrap", "--variant=minbase"])
            .args(options)
            .arg(self.suite)
            .arg(root)
            // Programs of administrators, which it calls, are not on every user's PATH.
            .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
            .stdin(Stdio::null())
            .output()
            .context("cannot run debootstrap")?;
        if !output.status.success() {
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            let last =
                said.lines().rev().find(|line| line.contains("E: ")).or(said.lines().next_back());
            bail!("debootstrap: {}", last.unwrap_or("it says nothing").trim());
        }
        Ok(())
    }

    /// Nothing of it is run before this: it may be of an earlier run.
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

/// Checks what was downloaded and is not unpacked yet. Several lists have another sum, and so has none.
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
    let said = String::from_utf8_lossy(&output.stdout);
    let sum = said.split_whitespace().next().unwrap_or_default();
    ensure!(
        sum == expected,
        "the packages of {suite} are not those that were released: expected the sum {expected}, found {sum}; remove {}",
        place.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_downloaded_is_checked_before_it_is_unpacked() {
        // Of "Package: a\n".
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
        let system = System { suite: "some", packages: Some(SUM) };
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
