//! RPM's package.

use ::rpm::{
    BuildConfig, CompressionType, Dependency, FileOptions, PackageBuilder, Scriptlet, Timestamp,
};
use anyhow::Result;

use crate::files::{Content, Entry};
use crate::release::{Made, Release};
use crate::scripts::{self, When};

/// Returns the package's name and bytes.
pub(crate) fn make(release: &Release, machine: &str, files: &[Entry]) -> Result<Made> {
    let version = &release.version;
    let mut package =
        PackageBuilder::new("cgpu", version, &release.license, machine, release.summary);
    let time = Timestamp::from(u32::try_from(release.time)?);
    let config = BuildConfig::default().compression(CompressionType::Gzip).source_date(time);
    package.using_config(config).release("1").description(release.description);
    package.build_host("localhost").cookie("cgpu");
    package.requires(Dependency::greater_eq("glibc", "2.17"));
    // The first script reads the layout of containers' files with `od`.
    package.requires(Dependency::script_pre("coreutils"));
    for entry in files {
        match &entry.content {
            Content::File { bytes, mode } => {
                let options = FileOptions::new(&entry.path).permissions(u16::try_from(*mode)?);
                let is_page = entry.path.starts_with("/usr/share/doc/");
                let options = if is_page { options.doc() } else { options };
                package.with_file_contents(bytes.as_slice(), options)?;
            }
            Content::Configuration(bytes) => {
                let options = FileOptions::new(&entry.path).permissions(0o644);
                package.with_file_contents(bytes.as_slice(), options.config().noreplace())?;
            }
            Content::Link(target) => {
                package.with_symlink(FileOptions::symlink(&entry.path, target))?;
            }
        }
    }
    // Folders of its own are removed with it.
    let mut folders: Vec<&str> = files
        .iter()
        .flat_map(|entry| entry.path.match_indices('/').map(|(end, _)| &entry.path[..end]))
        .filter(|folder| folder.contains("/cgpu"))
        .collect();
    folders.sort_unstable();
    folders.dedup();
    for folder in folders {
        package.with_dir_entry(FileOptions::dir(folder).permissions(0o755))?;
    }
    let script = |when| Scriptlet::new(scripts::rpm(when, release.layout)).prog(vec!["/bin/sh"]);
    package.pre_install_script(script(When::BeforeInstallation));
    package.post_install_script(script(When::AfterInstallation));
    package.pre_uninstall_script(script(When::BeforeRemoval));
    package.post_uninstall_script(script(When::AfterRemoval));
    let mut bytes = Vec::new();
    package.build()?.write(&mut bytes)?;
    Ok((format!("cgpu-{version}-1.{machine}.rpm"), bytes))
}
