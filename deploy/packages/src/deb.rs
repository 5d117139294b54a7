//! Debian's package: an `ar` archive of a version, scripts and files.

use anyhow::{Context, Result};
use ar::{Builder, Header};

use crate::files::{Content, Entry};
use crate::release::{Made, Release};
use crate::{archive, scripts};

/// Returns Debian's name of a machine.
pub(crate) fn architecture(machine: &str) -> Result<&'static str> {
    match machine {
        "x86_64" => Some("amd64"),
        "aarch64" => Some("arm64"),
        _ => None,
    }
    .with_context(|| format!("no package is made for {machine}"))
}

/// Returns the package's name and bytes.
pub(crate) fn make(release: &Release, machine: &str, files: &[Entry]) -> Result<Made> {
    let machine = architecture(machine)?;
    let version = &release.version;
    let bytes: usize = files.iter().map(size).sum();
    let control = format!(
        "Package: cgpu\nVersion: {version}\nArchitecture: {machine}\n\
         Maintainer: cgpu maintainers <cgpu@localhost>\nInstalled-Size: {}\n\
         Depends: libc6 (>= 2.17)\nSection: admin\nPriority: optional\n\
         Description: {}\n {}\n",
        bytes.div_ceil(1024),
        release.summary,
        release.description,
    );
    let configuration = |entry: &&Entry| matches!(entry.content, Content::Configuration(_));
    let kept: String =
        files.iter().filter(configuration).map(|entry| format!("{}\n", entry.path)).collect();
    let mut about =
        vec![Entry::file("/conffiles", kept, 0o644), Entry::file("/control", control, 0o644)];
    for (when, name) in scripts::ALL {
        let script = scripts::debian(when, release.layout);
        about.push(Entry::file(format!("/{name}"), script, 0o755));
    }
    about.sort_by(|one, other| one.path.cmp(&other.path));
    let mut package = Builder::new(Vec::new());
    for (name, bytes) in [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", archive::gzip(&archive::tar(&about, release.time)?)?),
        ("data.tar.gz", archive::gzip(&archive::tar(files, release.time)?)?),
    ] {
        let mut header = Header::new(name.into(), bytes.len() as u64);
        header.set_mtime(release.time);
        header.set_mode(0o100_644);
        package.append(&header, bytes.as_slice())?;
    }
    Ok((format!("cgpu_{version}_{machine}.deb"), package.into_inner()?))
}

fn size(entry: &Entry) -> usize {
    match &entry.content {
        Content::File { bytes, .. } | Content::Configuration(bytes) => bytes.len(),
        Content::Link(_) => 0,
    }
}
