//! Checks that a container's processes will open cgpu's files and no others, once its mounts are
//! finished.
//!
//! What hides a file can be spelled in more ways than a configuration shows beforehand: a masked
//! path through `/proc/self/root`, a link in a tmpfs or in a volume that another container changes
//! meanwhile. So each file is looked up as the container's first process would open it, and its
//! device and inode are compared with those of the file on the host.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cgpu_shm::paths;
use cgpu_shm::preamble::Kind;
use oci_spec::runtime::Mount;

use crate::files::{Files, Identity};
use crate::folder::LIMITS;
use crate::plan::Refusal;

/// Files in the container's folder that decide, beside those that are mounted one by one.
const IN_FOLDER: [&str; 2] = [LIMITS, Kind::Grant.name()];

/// Checks the files of a slice in the mount namespace of the container's first process.
///
/// # Errors
/// A file is missing there, or is another one: the container must not run.
pub fn check(pid: i32, mounts: &[Mount]) -> Result<()> {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let files = Files::new(&root, Vec::new())
        .with_context(|| format!("cannot open {} to check the container", root.display()))?;
    check_in(&files, mounts)
}

fn check_in(files: &Files, mounts: &[Mount]) -> Result<()> {
    for (path, source) in expected(mounts) {
        let ours = identity(&source)
            .with_context(|| format!("cannot find cgpu's file {}", source.display()))?;
        // Links that lead nowhere for this process may lead elsewhere for others.
        if files.identity(&path).ok().flatten() != Some(ours) {
            bail!(Refusal(format!(
                "ALIYUN_COM_GPU_MEM_CONTAINER requests a limit that cannot be enforced: programs \
                 in the container would not open cgpu's file at {}; remove what hides it \
                 (maskedPaths, mounts, or links in the image)",
                path.display()
            )));
        }
    }
    Ok(())
}

/// Returns the paths in the container with the files of the host that must be there.
fn expected(mounts: &[Mount]) -> Vec<(PathBuf, PathBuf)> {
    let mut expected = Vec::new();
    for mount in mounts {
        let Some(source) = mount.source() else { continue };
        expected.push((mount.destination().clone(), source.clone()));
        if mount.destination() == Path::new(paths::RUN) {
            let inside = |name: &str| (mount.destination().join(name), source.join(name));
            expected.extend(IN_FOLDER.map(inside));
        }
    }
    expected
}

fn identity(path: &Path) -> std::io::Result<Identity> {
    fs::metadata(path).map(|about| (about.dev(), about.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::edit::bind;
    use crate::files::tests::put;

    /// A bind mount is the same file, and so is a hard link.
    #[test]
    fn each_file_must_be_the_hosts() {
        let folder = tempfile::tempdir().unwrap();
        let (own, root) = (folder.path().join("own"), folder.path().join("root"));
        for name in ["limits", "grant", "libcgpu.so", "ld.so.preload"] {
            put(&own, name, b"");
        }
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::create_dir_all(root.join("run")).unwrap();
        symlink(&own, root.join("outside")).unwrap();
        let mounts = [
            bind(&own.join("libcgpu.so"), "/opt/libcgpu.so", &["ro"]),
            bind(&own.join("ld.so.preload"), "/etc/ld.so.preload", &["ro"]),
        ];
        let refusal = || check_in(&Files::new(&root, vec![]).unwrap(), &mounts).unwrap_err();
        let expect = |path: &str| {
            let text = refusal().to_string();
            assert!(text.contains(&format!("cgpu's file at {path};")), "{text}");
        };
        expect("/opt/libcgpu.so");
        fs::create_dir(root.join("opt")).unwrap();
        fs::hard_link(own.join("libcgpu.so"), root.join("opt/libcgpu.so")).unwrap();
        expect("/etc/ld.so.preload");
        put(&root, "etc/ld.so.preload", b"");
        expect("/etc/ld.so.preload");
        fs::remove_file(root.join("etc/ld.so.preload")).unwrap();
        // A link to the host's path leads nowhere in the container.
        symlink(own.join("ld.so.preload"), root.join("etc/ld.so.preload")).unwrap();
        expect("/etc/ld.so.preload");
        fs::remove_file(root.join("etc/ld.so.preload")).unwrap();
        fs::hard_link(own.join("ld.so.preload"), root.join("etc/ld.so.preload")).unwrap();
        check_in(&Files::new(&root, vec![]).unwrap(), &mounts).unwrap();
    }

    #[test]
    fn folder_is_checked_with_the_files_that_decide() {
        let folder = bind(Path::new("/host"), paths::RUN, &["ro"]);
        let expected = expected(&[folder]);
        let paths: Vec<_> = expected.iter().map(|(path, _)| path.as_path()).collect();
        assert_eq!(paths, ["/run/cgpu", "/run/cgpu/limits", "/run/cgpu/grant"].map(Path::new));
        assert_eq!(expected[1].1, Path::new("/host/limits"));
    }
}
