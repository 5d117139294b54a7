//! Makes all files of a release.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::files::{Entry, Files, Sources, is_source};
use crate::{archive, chart, deb, oci, rpm, sbom};

/// A file of a release: its name and bytes.
pub type Made = (String, Vec<u8>);

/// What is released.
pub struct Release {
    pub(crate) version: String,
    /// The layout of shared memory that its programs use.
    pub(crate) layout: u32,
    /// The time of the commit, in seconds since 1970, and as text.
    pub(crate) time: u64,
    pub(crate) date: String,
    pub(crate) commit: String,
    pub(crate) license: String,
    pub(crate) licence_text: Vec<u8>,
    pub(crate) summary: &'static str,
    pub(crate) description: &'static str,
}

/// Files of the tarball that packages do not install: scripts, and programs of the nodes' image.
const BESIDE: &[&str] = &[
    "LICENSE",
    "deploy/install.sh",
    "deploy/upgrade.sh",
    "deploy/uninstall.sh",
    "deploy/files.sh",
    "deploy/node.sh",
    "deploy/monitor.toml",
    "cgpu-dra-controller",
    "cgpu-dra-driver",
];

/// Folders of the sources whose files the tarball has, for the commands of `docs/kubernetes.md`.
const FOLDERS: &[&str] =
    &["kubernetes/chart", "kubernetes/examples", "kubernetes/image", "kubernetes/manifests"];

impl Release {
    /// Describes the release of these sources: of its last commit, or of SOURCE_DATE_EPOCH outside
    /// of a repository.
    pub fn of(sources: &Path) -> Result<Self> {
        let git = |format: &str| {
            let output = Command::new("git")
                .args(["log", "-1", format])
                .current_dir(sources)
                .output()
                .ok()
                .filter(|output| output.status.success())?;
            Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let named = std::env::var("SOURCE_DATE_EPOCH").ok();
        let time = named.or_else(|| git("--format=%ct")).context(
            "the sources are no git repository: set SOURCE_DATE_EPOCH to the time of the release",
        )?;
        let time = time.parse().with_context(|| format!("the time of the release is {time}"))?;
        let commit = git("--format=%H").unwrap_or_default();
        Ok(Self { commit, ..Self::at(sources, time)? })
    }

    /// Describes the release of these sources at a time, in seconds since 1970.
    pub fn at(sources: &Path, time: u64) -> Result<Self> {
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            layout: crate::scripts::LAYOUT,
            time,
            date: date(time)?,
            commit: String::new(),
            license: env!("CARGO_PKG_LICENSE").to_owned(),
            licence_text: Sources(sources).read("LICENSE")?,
            summary: "share NVIDIA GPUs among containers",
            description: "Each container gets a hard memory limit and a compute share of a GPU.",
        })
    }

    /// Returns the same under another version and layout: tests upgrade from and to it.
    #[must_use]
    pub fn renamed(self, version: &str, layout: u32) -> Self {
        Self { version: version.to_owned(), layout, ..self }
    }

    /// Makes the Debian package for a machine from its built files; returns its name and bytes.
    pub fn deb(&self, sources: &Path, machine: &str, built: &Path) -> Result<Made> {
        deb::make(self, machine, &Files::new(&Sources(sources), built)?.installed()?)
    }

    /// Makes the RPM package for a machine from its built files; returns its name and bytes.
    pub fn rpm(&self, sources: &Path, machine: &str, built: &Path) -> Result<Made> {
        rpm::make(self, machine, &Files::new(&Sources(sources), built)?.installed()?)
    }

    /// Makes the archive that `deploy/install.sh` in it installs from.
    fn tarball(&self, sources: &Path, machine: &str, built: &Path) -> Result<Made> {
        let sources = Sources(sources);
        let files = Files::new(&sources, built)?;
        let name = format!("cgpu-{}-{machine}", self.version);
        let mut names: Vec<String> = sources.table()?.into_iter().map(|line| line.from).collect();
        names.extend(BESIDE.iter().map(|&name| name.to_owned()));
        names.sort();
        names.dedup();
        let mut entries = Vec::new();
        for file in names {
            let is_text = file.starts_with("share/") || is_source(&file) && !file.ends_with(".sh");
            let mode = if is_text { 0o644 } else { 0o755 };
            entries.push(Entry::file(format!("{name}/{file}"), files.read(&file)?, mode));
        }
        for folder in FOLDERS {
            chart::collect(&sources.0.join(folder), &format!("{name}/{folder}"), &mut entries)?;
        }
        let archive = archive::gzip(&archive::tar(&entries, self.time)?)?;
        Ok((format!("{name}.tar.gz"), archive))
    }

    /// Makes all files of the release into a folder, from the built files of each machine.
    pub fn make(&self, sources: &Path, built: &[(String, PathBuf)], to: &Path) -> Result<()> {
        ensure!(!built.is_empty(), "no folder of built files is named");
        let mut made = Vec::new();
        let mut machines = Vec::new();
        for (machine, folder) in built {
            made.push(self.deb(sources, machine, folder)?);
            made.push(self.rpm(sources, machine, folder)?);
            made.push(self.tarball(sources, machine, folder)?);
            let programs = oci::PROGRAMS.map(|name| {
                let path = folder.join(name);
                let bytes = std::fs::read(&path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                Ok((name, bytes))
            });
            let programs = programs.into_iter().collect::<Result<Vec<_>>>()?;
            machines.push((machine.as_str(), programs));
        }
        made.push(oci::image(self, &machines)?);
        let (about, chart) = chart::make(self, sources)?;
        made.push(oci::chart(self, &about, chart.clone())?);
        made.push((format!("cgpu-{}.tgz", self.version), chart));
        made.push((format!("cgpu-{}.cdx.json", self.version), sbom::make(self, sources)?));
        made.sort();
        let sums: String =
            made.iter().map(|(name, bytes)| format!("{}  {name}\n", oci::sum(bytes))).collect();
        made.push(("SHA256SUMS".to_owned(), sums.into()));
        if to.exists() {
            std::fs::remove_dir_all(to)
                .with_context(|| format!("cannot remove {}", to.display()))?;
        }
        made.iter().try_for_each(|(name, bytes)| crate::write(&to.join(name), bytes))
    }
}

/// Returns a time of UTC as RFC 3339 writes it.
fn date(time: u64) -> Result<String> {
    let mut date = Command::new("date");
    let output = date.args(["-u", "-d", &format!("@{time}"), "+%FT%TZ"]).output();
    let output = output.context("cannot run date")?;
    ensure!(output.status.success(), "date does not know the time {time}");
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
