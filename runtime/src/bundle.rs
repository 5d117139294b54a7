//! The folder that an engine makes for a container, and its configuration.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::edit::Configuration;
use crate::invocation::Invocation;

/// A bundle.
#[derive(Clone, Debug)]
pub struct Bundle {
    folder: PathBuf,
    file: PathBuf,
}

impl Bundle {
    /// The bundle that is meant.
    ///
    /// # Errors
    /// The folder is not there.
    pub fn of(invocation: &Invocation) -> Result<Self> {
        let folder = invocation.bundle.as_deref().unwrap_or(Path::new("."));
        let folder = fs::canonicalize(folder)
            .with_context(|| format!("the bundle {} is not there", folder.display()))?;
        let file = match &invocation.file {
            // Under its usual name crun looks for it in the bundle, and else where we are.
            Some(file) if file != Path::new("config.json") => std::path::absolute(file)?,
            _ => folder.join("config.json"),
        };
        Ok(Self { folder, file })
    }

    /// The one in that folder.
    #[must_use]
    pub fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), file: folder.join("config.json") }
    }

    /// Where it lies.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its configuration.
    ///
    /// # Errors
    /// It cannot be read or understood.
    pub fn read(&self) -> Result<Configuration> {
        let text =
            fs::read(&self.file).with_context(|| format!("cannot read {}", self.file.display()))?;
        Ok(Configuration::parse(&text)?)
    }

    /// Puts another configuration in its place, with the same owner and mode: the whole of it, or nothing.
    ///
    /// # Errors
    /// As the system says.
    pub fn write(&self, configuration: &Configuration) -> Result<()> {
        replace(&self.file, &configuration.text())
    }

    /// Its mounts, as [`Configuration::mounts`]; what is written as a relative path lies in the bundle, as its runtime takes it.
    #[must_use]
    pub fn mounts(&self, configuration: &Configuration) -> Vec<(PathBuf, Option<PathBuf>)> {
        let mounts = configuration.mounts().into_iter();
        mounts.map(|(to, from)| (to, from.map(|from| self.folder.join(from)))).collect()
    }

    /// Its root file system.
    #[must_use]
    pub fn root(&self, configuration: &Configuration) -> Option<PathBuf> {
        Some(self.folder.join(configuration.root()?))
    }
}

/// Puts another text in a file's place, with the same owner and mode: the whole of it, or nothing.
///
/// # Errors
/// As the system says.
pub fn replace(path: &Path, text: &[u8]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let about = fs::metadata(path)?;
        let fresh = path.with_extension(format!("cgpu.{}", std::process::id()));
        // What an earlier process of the same number left.
        let _ = fs::remove_file(&fresh);
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(text)?;
        // Only root may give files away, and only root need.
        let _ = std::os::unix::fs::fchown(&file, Some(about.uid()), Some(about.gid()));
        file.set_permissions(Permissions::from_mode(about.mode() & 0o7777))?;
        fs::rename(&fresh, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
