//! The files of a source tree, found without git, since archives of the sources have none.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Returns the files below `root` that have one of these extensions, relative to it, in order.
/// Hidden folders and what cargo builds are left out.
pub(crate) fn files(root: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    collect(root, &mut |file| {
        let extension = file.extension().and_then(|extension| extension.to_str());
        if extension.is_some_and(|extension| extensions.contains(&extension)) {
            found.push(file.strip_prefix(root).unwrap_or(file).to_owned());
        }
    })?;
    found.sort();
    Ok(found)
}

fn collect(folder: &Path, found: &mut impl FnMut(&Path)) -> Result<()> {
    // Cargo marks its target folders, wherever they are.
    if folder.join("CACHEDIR.TAG").exists() {
        return Ok(());
    }
    let cannot = || format!("cannot read {}", folder.display());
    for entry in fs::read_dir(folder).with_context(cannot)? {
        let entry = entry.with_context(cannot)?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        // Links are skipped: they lead elsewhere in the tree, or out of it.
        let kind = entry.file_type().with_context(cannot)?;
        if kind.is_dir() && !is_hidden {
            collect(&entry.path(), found)?;
        } else if kind.is_file() {
            found(&entry.path());
        }
    }
    Ok(())
}
