//! The Helm chart, packed as `helm package` does.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::archive;
use crate::files::Entry;
use crate::release::Release;

/// The chart's folder among the sources.
const FOLDER: &str = "kubernetes/chart";

/// Returns the chart's description and its archive.
pub(crate) fn make(release: &Release, sources: &Path) -> Result<(Value, Vec<u8>)> {
    let folder = sources.join(FOLDER);
    let mut files = Vec::new();
    collect(&folder, "cgpu", &mut files)?;
    let path = folder.join("Chart.yaml");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut about: Value =
        serde_saphyr::from_str(&text).with_context(|| format!("{} is not YAML", path.display()))?;
    for key in ["version", "appVersion"] {
        about[key] = release.version.clone().into();
    }
    // YAML has JSON in it.
    let manifest = files.iter_mut().find(|file| file.path == "cgpu/Chart.yaml");
    *manifest.context("the chart has no Chart.yaml")? =
        Entry::file("cgpu/Chart.yaml", about.to_string() + "\n", 0o644);
    Ok((about, archive::gzip(&archive::tar(&files, release.time)?)?))
}

/// Reads all files below a folder. Links are read: they lead to files beside the chart.
pub(crate) fn collect(folder: &Path, name: &str, files: &mut Vec<Entry>) -> Result<()> {
    let cannot = || format!("cannot read {}", folder.display());
    for entry in fs::read_dir(folder).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        let name = format!("{name}/{}", path.file_name().unwrap_or_default().to_string_lossy());
        if path.is_dir() {
            collect(&path, &name, files)?;
        } else {
            let bytes =
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            files.push(Entry::file(name, bytes, 0o644));
        }
    }
    Ok(())
}
