//! `cargo xtask gpu-kit`: a folder that runs on a machine with a GPU, Python 3 and neither cargo nor a network.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::build;
use crate::cargo::Workspace;
use crate::collection::DIST;

/// What a machine can be expected to be handed.
const MOST_BYTES: u64 = 64 << 20;

/// What `kit.py` and the demo run of `target/dist`, beside the programs. The simulated driver stays behind: a real one is there.
const FILES: &[&str] = &["libcgpu.so", "cgpu", "cgpu-monitor", "cgpu-demo"];

/// Builds, collects in `target/gpu-kit` and returns the folder.
pub(crate) fn run() -> Result<PathBuf> {
    let workspace = Workspace::find()?;
    let dist = build::collect(&workspace, &DIST)?;
    let kit = workspace.target.join("gpu-kit");
    if kit.exists() {
        fs::remove_dir_all(&kit).with_context(|| format!("cannot clear {}", kit.display()))?;
    }
    copy(&workspace.root.join("bench/gpu-kit"), &kit)?;
    for name in FILES {
        copy(&dist.join(name), &kit.join("dist").join(name))?;
        build::lighten(&kit.join("dist").join(name))?;
    }
    copy(&dist.join("programs"), &kit.join("dist/programs"))?;
    let bytes = size(&kit)?;
    ensure!(bytes <= MOST_BYTES, "the kit has {bytes} bytes; it must not have more than {MOST_BYTES}");
    eprintln!("xtask: {} MiB in {}; on the machine with the GPU: ./run.sh", bytes >> 20, kit.display());
    Ok(kit)
}

/// Copies a file or a folder with all that is in it; links are followed.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        Ok(())
    } else {
        build::place(from, to)
    }
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let data = entry.metadata()?;
        bytes += if data.is_dir() { size(&entry.path())? } else { data.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kit_runs_goes_along() {
        let script =
            fs::read_to_string(Workspace::find().unwrap().root.join("bench/gpu-kit/kit.py")).unwrap();
        let named = script.split("\"dist\" / \"").skip(1).chain(script.split("(dist / \"").skip(1));
        let named: Vec<&str> = named.filter_map(|rest| rest.split('"').next()).collect();
        assert!(named.contains(&"cgpu"), "{named:?}");
        for name in named.iter().filter(|name| **name != "programs") {
            assert!(FILES.contains(name), "kit.py runs {name}");
        }
    }
}
