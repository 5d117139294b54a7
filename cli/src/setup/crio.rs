//! CRI-O's configuration: a drop-in file that cgpu alone writes. A default runtime that it replaces
//! stays in CRI-O's own file, and is a comment here.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cgpu_shm::regular_file;

use super::containerd::check_next;

pub(super) const HEADER: &str =
    "# Written by `cgpu setup crio`; `cgpu setup crio --undo` removes it.\n";

/// Returns the text of the drop-in file `file`: a runtime for a RuntimeClass with its handler; with
/// `default`, also for pods without a runtime class.
///
/// # Errors
/// With `default`: another default runtime cannot be read, is needed, or would stay in force.
pub(super) fn text(
    runtime: &str,
    default: bool,
    file: &Path,
    next: Option<&str>,
) -> Result<String> {
    let quoted = serde_json::Value::from(runtime);
    let default = if default {
        let was = replaced(file, next)?.map_or(String::new(), |(name, path)| {
            format!("# Replaces the default runtime `{name}` of {}.\n", path.display())
        });
        format!("[crio.runtime]\n{was}default_runtime = \"cgpu\"\n\n")
    } else {
        String::new()
    };
    Ok(format!(
        "{HEADER}{default}[crio.runtime.runtimes.cgpu]\n\
         runtime_path = {quoted}\n\
         runtime_type = \"oci\"\n\
         runtime_root = \"/run/cgpu-crio\"\n"
    ))
}

/// Returns the default runtime that CRI-O has without `file`, and the file that sets it. CRI-O
/// reads crio.conf, then the drop-in files by name.
fn replaced(file: &Path, next: Option<&str>) -> Result<Option<(String, PathBuf)>> {
    let Some(folder) = file.parent() else { return Ok(None) };
    let is_other = |path: &PathBuf| path != file && path.extension().is_some_and(|it| it == "conf");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = entries.filter(is_other).collect();
    files.sort();
    if let Some(above) = folder.parent() {
        files.insert(0, above.join("crio.conf"));
    }
    let mut last = None;
    let mut programs = BTreeMap::new();
    for path in files {
        let runtime = runtime_table(&path)?;
        for (name, table) in
            runtime.get("runtimes").and_then(toml::Value::as_table).into_iter().flatten()
        {
            if let Some(program) = table.get("runtime_path").and_then(toml::Value::as_str) {
                programs.insert(name.clone(), program.to_owned());
            }
        }
        let name = runtime.get("default_runtime").and_then(toml::Value::as_str);
        let Some(name) = name.filter(|name| !name.is_empty()).map(str::to_owned) else { continue };
        ensure!(
            path.parent() != Some(folder) || path.as_path() < file,
            "{} sets the default runtime `{name}` after it: remove that line",
            path.display()
        );
        last = Some((name, path));
    }
    if let Some((name, path)) = &last
        && !matches!(name.as_str(), "runc" | "crun")
    {
        let program = programs.get(name).with_context(|| {
            format!("the default runtime `{name}` ({}) has no runtime_path", path.display())
        })?;
        check_next(name, program, next)?;
    }
    Ok(last)
}

/// Returns the table `crio.runtime` of a file; empty without it.
fn runtime_table(path: &Path) -> Result<toml::Table> {
    let text = match regular_file::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(toml::Table::new()),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let table: toml::Table =
        text.parse().with_context(|| format!("{} is not TOML", path.display()))?;
    let runtime = table.get("crio").and_then(|crio| crio.get("runtime")?.as_table());
    Ok(runtime.cloned().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_adds_one_runtime() {
        let file = Path::new("/nowhere/crio.conf.d/99-cgpu.conf");
        let text = |default| text("/a \"b\"/cgpu-runtime", default, file, None).unwrap();
        let read: toml::Table = text(false).parse().unwrap();
        let mut expected = serde_json::json!({"crio": {"runtime": {"runtimes": {"cgpu": {
            "runtime_path": "/a \"b\"/cgpu-runtime", "runtime_type": "oci",
            "runtime_root": "/run/cgpu-crio"}}}}});
        assert_eq!(serde_json::to_value(read).unwrap(), expected);
        let read: toml::Table = text(true).parse().unwrap();
        expected["crio"]["runtime"]["default_runtime"] = "cgpu".into();
        assert_eq!(serde_json::to_value(read).unwrap(), expected);
    }

    /// It once replaced any default runtime without a word.
    #[test]
    fn replaced_default_is_named_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("crio.conf.d/99-cgpu.conf");
        fs::create_dir(file.parent().unwrap()).unwrap();
        let put = |path: &str, name: &str| {
            let text = format!("[crio.runtime]\ndefault_runtime = \"{name}\"\n");
            fs::write(folder.path().join(path), text).unwrap();
        };
        let chained =
            |default, next| text("/c", default, &file, next).map_err(|error| error.to_string());
        let set = |default| chained(default, None);
        assert!(!set(true).unwrap().contains("Replaces"));
        put("crio.conf", "runc");
        put("crio.conf.d/10-crun.conf", "crun");
        put("crio.conf.d/99-cgpu.conf", "cgpu");
        put("crio.conf.d/notes", "kata");
        let text = set(true).unwrap();
        assert!(text.contains("# Replaces the default runtime `crun` of "), "{text}");
        assert!(text.contains("crio.conf.d/10-crun.conf.\n"), "{text}");
        assert!(!set(false).unwrap().contains("crun"));
        // One that containers need, one that would stay in force, one that cannot be read.
        put("crio.conf.d/20-vendor.conf", "nvidia");
        assert!(set(true).unwrap_err().contains("`nvidia` (") && set(false).is_ok());
        // As NVIDIA's toolkit writes it: cgpu-runtime hands over to it.
        let vendor = "[crio.runtime]\ndefault_runtime = \"nvidia\"\n[crio.runtime.runtimes.nvidia]\n\
                      runtime_path = \"/usr/local/nvidia/toolkit/nvidia-container-runtime\"\n";
        fs::write(folder.path().join("crio.conf.d/20-vendor.conf"), vendor).unwrap();
        assert!(set(true).unwrap_err().contains("default runtime is `nvidia`, which containers"));
        let text = chained(true, Some("/usr/local/nvidia/toolkit/nvidia-container-runtime"));
        assert!(text.unwrap().contains("# Replaces the default runtime `nvidia` of "));
        put("crio.conf.d/20-vendor.conf", "runc");
        put("crio.conf.d/99-other.conf", "runc");
        assert!(set(true).unwrap_err().contains("99-other.conf sets the default runtime `runc`"));
        fs::write(folder.path().join("crio.conf"), "[").unwrap();
        assert!(set(true).unwrap_err().contains("crio.conf is not TOML"));
    }
}
