//! The files of a release: packages of Debian and RPM, archives, an image, the chart, a list of
//! components and sums. All bytes follow from the sources, the built files and the commit's time.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

mod archive;
mod chart;
mod deb;
pub mod files;
pub mod oci;
mod pages;
mod release;
mod rpm;
mod sbom;
pub mod scripts;

pub use pages::write as write_pages;
pub use release::{Made, Release};

/// Writes a file, and makes the folders above it.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    fs::create_dir_all(path.parent().with_context(cannot)?).with_context(cannot)?;
    fs::write(path, bytes).with_context(cannot)
}
