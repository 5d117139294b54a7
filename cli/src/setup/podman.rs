//! podman's configuration: a file of our own among those it reads.

use anyhow::{Result, bail};

/// Its first line.
const HEADER: &str = "# Written by `cgpu setup podman`; `cgpu setup podman --undo` removes it.\n";

/// What becomes of the file: our text, or nothing.
pub(super) fn changed(before: &str, runtime: Option<&str>) -> Result<Option<String>> {
    if !before.is_empty() && !before.starts_with(HEADER) {
        bail!("it is not a file of ours: name a new one with --file, among those that podman reads");
    }
    Ok(runtime.map(text))
}

/// Its text. podman takes errors from a runtime's log only of runtimes that it is told write JSON there.
fn text(runtime: &str) -> String {
    let quoted = serde_json::Value::from(runtime);
    format!(
        "{HEADER}[engine]\n\
         runtime = \"cgpu\"\n\
         runtime_supports_json = [\"crun\", \"runc\", \"kata\", \"runsc\", \"youki\", \"krun\", \"cgpu\"]\n\n\
         [engine.runtimes]\n\
         cgpu = [{quoted}]\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_others_is_left_alone() {
        assert!(changed("[engine]\nruntime = \"crun\"\n", Some("/c")).is_err());
        assert!(changed("[engine]\n", None).is_err());
        assert_eq!(changed(&text("/a"), Some("/c")).unwrap(), Some(text("/c")));
        assert_eq!(changed(&text("/a"), None).unwrap(), None);
    }

    #[test]
    fn the_program_is_quoted() {
        assert!(text("/a b/cgpu-runtime").ends_with("cgpu = [\"/a b/cgpu-runtime\"]\n"));
    }
}
