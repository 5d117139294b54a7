//! CDI devices, one for each slice that the kubelet was given. Engines edit the container's
//! configuration by them.
//!
//! * The engine resolves CDI devices and starts containers by `cgpu-runtime`: the device sets the
//!   slice's variables again, overriding those of the pod, and `cgpu-runtime` binds.
//! * It does not resolve them and starts containers by `cgpu-runtime`: the kubelet passes the
//!   variables, and `cgpu-runtime` binds.
//! * It resolves them and starts containers by another runtime: the device's hook fails the start
//!   with a message.
//! * It does neither: the container has no GPU, because no GPU has the name in its variable.
//!
//! So `cgpu-runtime` always binds; the device ensures that it is not bypassed.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cgpu_kubernetes_core::binding::{CDI_KIND, provisional};
use cgpu_kubernetes_core::cdi::{Device, Hook, specification};
use cgpu_kubernetes_core::slice::Token;

/// Time for which an unassigned slice is kept: its container may still be pulling its image.
const UNCLAIMED_RETENTION: Duration = Duration::from_secs(24 * 3600);
/// Prefix of file names; the token follows.
const PREFIX: &str = "cgpu-slice-";
const SUFFIX: &str = ".json";

/// Folder of CDI specifications.
#[derive(Clone, Debug)]
pub(crate) struct Cdi {
    folder: PathBuf,
    runtime: PathBuf,
}

impl Cdi {
    /// Uses `folder`, and the path of `cgpu-runtime` on the host.
    pub(crate) fn new(folder: &Path, runtime: &Path) -> Self {
        Self { folder: folder.to_owned(), runtime: runtime.to_owned() }
    }

    /// Returns the full name of a slice's device.
    pub(crate) fn name(token: Token) -> String {
        format!("{CDI_KIND}={token}")
    }

    /// Writes the specification of a slice, atomically.
    pub(crate) fn put(&self, token: Token) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        // Engines read only files with the suffix of specifications.
        let fresh = self.folder.join(format!("{PREFIX}{token}.new"));
        fs::write(&fresh, self.specification(token))?;
        fs::rename(&fresh, self.file(token))
    }

    /// Writes the specification of a slice unless it exists.
    pub(crate) fn ensure(&self, token: Token) -> io::Result<()> {
        if self.file(token).exists() { Ok(()) } else { self.put(token) }
    }

    /// Removes the specifications of slices that have been unassigned for [`UNCLAIMED_RETENTION`].
    pub(crate) fn sweep(&self, is_assigned: impl Fn(Token) -> bool) -> io::Result<()> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let token = name
                .to_str()
                .and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX))
                .and_then(|token| Token::parse(token).ok());
            let Some(token) = token else { continue };
            let age =
                entry.metadata().and_then(|about| about.modified())?.elapsed().unwrap_or_default();
            if age > UNCLAIMED_RETENTION && !is_assigned(token) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn file(&self, token: Token) -> PathBuf {
        self.folder.join(format!("{PREFIX}{token}{SUFFIX}"))
    }

    fn specification(&self, token: Token) -> String {
        let variables = provisional(token).map(|(name, value)| format!("{name}={value}"));
        let hooks = vec![Hook { stage: "createRuntime", arguments: vec!["bound".to_owned()] }];
        let device = Device { name: token.to_string(), variables: variables.into(), hooks };
        specification(CDI_KIND, &[device], &self.runtime)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cgpu_kubernetes_core::names::Dialect;
    use serde_json::json;

    fn token(ids: &[&str]) -> Token {
        Token::of_ids(Dialect::Aliyun, ids.iter().copied()).unwrap()
    }

    #[test]
    fn device_is_removed_when_unassigned_for_long() {
        let folder = tempfile::tempdir().unwrap();
        let cdi_dir = folder.path().join("cdi");
        let cdi = Cdi::new(&cdi_dir, Path::new("/usr/bin/cgpu-runtime"));
        cdi.sweep(|_| false).unwrap();
        for ids in [&["7", "8"][..], &["9"]] {
            cdi.put(token(ids)).unwrap();
        }
        let text = fs::read_to_string(cdi_dir.join("cgpu-slice-7-2.json")).unwrap();
        let specification: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(specification["kind"], "cgpu.dev/slice");
        let device = &specification["devices"][0];
        assert_eq!(device["name"], "7-2");
        assert_eq!(
            device["containerEdits"]["env"],
            json!(["CGPU_SLICE=7-2", "NVIDIA_VISIBLE_DEVICES=cgpu-slice-7-2"])
        );
        assert_eq!(device["containerEdits"]["hooks"][0]["hookName"], "createRuntime");
        assert_eq!(Cdi::name(token(&["7", "8"])), "cgpu.dev/slice=7-2");

        // Files of others and recent ones are kept.
        fs::write(cdi_dir.join("nvidia.json"), "{}").unwrap();
        cdi.sweep(|_| false).unwrap();
        assert!(cdi_dir.join("cgpu-slice-9-1.json").exists());
        for name in ["cgpu-slice-7-2.json", "cgpu-slice-9-1.json", "nvidia.json"] {
            let file = fs::File::options().write(true).open(cdi_dir.join(name)).unwrap();
            file.set_modified(std::time::SystemTime::now() - 2 * UNCLAIMED_RETENTION).unwrap();
        }
        cdi.sweep(|other| other == token(&["9"])).unwrap();
        let mut left: Vec<String> = fs::read_dir(&cdi_dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["cgpu-slice-9-1.json", "nvidia.json"]);
        cdi.ensure(token(&["7", "8"])).unwrap();
        assert!(cdi_dir.join("cgpu-slice-7-2.json").exists());
    }
}
