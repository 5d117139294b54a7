//! The folder that an engine makes for a container, and its configuration.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::edit::Configuration;
use crate::files;
use crate::invocation::Invocation;

/// A bundle.
#[derive(Clone, Debug)]
pub struct Bundle {
    folder: PathBuf,
    file: PathBuf,
}

impl Bundle {
    /// Returns the bundle of an invocation.
    ///
    /// # Errors
    /// The folder does not exist.
    pub fn of(invocation: &Invocation) -> Result<Self> {
        let folder = invocation.bundle.as_deref().unwrap_or(Path::new("."));
        let folder = fs::canonicalize(folder)
            .with_context(|| format!("the bundle {} does not exist", folder.display()))?;
        let file = match &invocation.file {
            // crun takes the usual name relative to the bundle, other names relative to the working
            // directory.
            Some(file) if file != Path::new("config.json") => std::path::absolute(file)?,
            _ => folder.join("config.json"),
        };
        Ok(Self { folder, file })
    }

    /// Returns the bundle in that folder.
    #[must_use]
    pub fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), file: folder.join("config.json") }
    }

    /// Returns its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads its configuration.
    ///
    /// # Errors
    /// The configuration cannot be read or parsed, or is not a regular file.
    pub fn read(&self) -> Result<Configuration> {
        let text = files::read_named(&self.file)
            .with_context(|| format!("cannot read {}", self.file.display()))?;
        Ok(Configuration::parse(&text)?)
    }

    /// Replaces its configuration atomically, keeping owner and mode.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn write(&self, configuration: &Configuration) -> Result<()> {
        replace(&self.file, &configuration.text())
    }

    /// Returns its mounts, as [`Configuration::mounts`]; relative sources are relative to the
    /// bundle, as for its runtime.
    #[must_use]
    pub fn mounts(&self, configuration: &Configuration) -> Vec<(PathBuf, Option<PathBuf>)> {
        let mounts = configuration.mounts().into_iter();
        mounts.map(|(to, from)| (to, from.map(|from| self.folder.join(from)))).collect()
    }

    /// Returns its root file system.
    #[must_use]
    pub fn root(&self, configuration: &Configuration) -> Option<PathBuf> {
        Some(self.folder.join(configuration.root()?))
    }
}

/// Replaces a file atomically, keeping owner and mode.
///
/// # Errors
/// The system refuses it.
pub fn replace(path: &Path, text: &[u8]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let about = fs::metadata(path)?;
        let fresh = path.with_extension(format!("cgpu.{}", std::process::id()));
        // An earlier process with this id may have left it.
        let _ = fs::remove_file(&fresh);
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(text)?;
        // Only root can change the owner, and only root needs to.
        let _ = std::os::unix::fs::fchown(&file, Some(about.uid()), Some(about.gid()));
        file.set_permissions(Permissions::from_mode(about.mode() & 0o7777))?;
        fs::rename(&fresh, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
