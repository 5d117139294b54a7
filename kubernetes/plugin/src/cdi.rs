//! CDI devices, one for each slice that the kubelet was given: what engines put into a container's configuration for it.
//!
//! | the engine | the container |
//! |---|---|
//! | resolves CDI devices, starts by `cgpu-runtime` | the device says once more which slice it is, over whatever the pod says; `cgpu-runtime` binds |
//! | does not, starts by `cgpu-runtime` | the variables that the kubelet passes say it; `cgpu-runtime` binds |
//! | resolves them, starts by another runtime | the device's hook ends the start, with a sentence |
//! | does neither | has no GPU: none is called as its variable says |
//!
//! So it is `cgpu-runtime` that binds, always, and the device sees to it that nobody goes around it.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cgpu_kubernetes_core::binding::{CDI_KIND, provisional};
use cgpu_kubernetes_core::slice::Token;
use serde_json::json;

/// The oldest version that has all that is used, names that begin with a digit among it: engines refuse those they do not know.
const VERSION: &str = "0.5.0";
/// A slice that was given and that nobody has asked for may belong to a container that is still being fetched; after so long it does not.
const UNCLAIMED_RETENTION: Duration = Duration::from_secs(24 * 3600);
/// Names of files: the token stands between.
const PREFIX: &str = "cgpu-slice-";
const SUFFIX: &str = ".json";

/// Where engines look.
#[derive(Clone, Debug)]
pub(crate) struct Cdi {
    folder: PathBuf,
    runtime: PathBuf,
}

impl Cdi {
    /// In this folder, with this `cgpu-runtime` as the host sees it.
    pub(crate) fn new(folder: &Path, runtime: &Path) -> Self {
        Self { folder: folder.to_owned(), runtime: runtime.to_owned() }
    }

    /// The device's whole name.
    pub(crate) fn name(token: Token) -> String {
        format!("{CDI_KIND}={token}")
    }

    /// Makes it resolvable: the whole of its file, or nothing.
    pub(crate) fn put(&self, token: Token) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        // Engines read only what ends as specifications do.
        let fresh = self.folder.join(format!("{PREFIX}{token}.new"));
        fs::write(&fresh, self.specification(token))?;
        fs::rename(&fresh, self.file(token))
    }

    /// The same, if it is not.
    pub(crate) fn ensure(&self, token: Token) -> io::Result<()> {
        if self.file(token).exists() { Ok(()) } else { self.put(token) }
    }

    /// Takes away those that are nobody's, and have been so for long.
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
        let hook = json!({
            "hookName": "createRuntime", "path": self.runtime, "args": ["cgpu-runtime", "hook", "bound"],
        });
        let device = json!({
            "name": token.to_string(), "containerEdits": { "env": variables, "hooks": [hook] },
        });
        format!("{:#}\n", json!({ "cdiVersion": VERSION, "kind": CDI_KIND, "devices": [device] }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cgpu_kubernetes_core::names::Dialect;

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

        // Somebody else's files are left alone, and so is what is young.
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
