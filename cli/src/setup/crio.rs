//! CRI-O's configuration: a drop-in file that cgpu alone writes.

pub(super) const HEADER: &str =
    "# Written by `cgpu setup crio`; `cgpu setup crio --undo` removes it.\n";

/// Returns the text of the file: a runtime for a RuntimeClass with its handler; with `default`,
/// also for pods without a runtime class.
pub(super) fn text(runtime: &str, default: bool) -> String {
    let quoted = serde_json::Value::from(runtime);
    let default = if default { "[crio.runtime]\ndefault_runtime = \"cgpu\"\n\n" } else { "" };
    format!(
        "{HEADER}{default}[crio.runtime.runtimes.cgpu]\n\
         runtime_path = {quoted}\n\
         runtime_type = \"oci\"\n\
         runtime_root = \"/run/cgpu-crio\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_adds_one_runtime() {
        let read: toml::Table = text("/a \"b\"/cgpu-runtime", false).parse().unwrap();
        let mut expected = serde_json::json!({"crio": {"runtime": {"runtimes": {"cgpu": {
            "runtime_path": "/a \"b\"/cgpu-runtime", "runtime_type": "oci",
            "runtime_root": "/run/cgpu-crio"}}}}});
        assert_eq!(serde_json::to_value(read).unwrap(), expected);
        let read: toml::Table = text("/a \"b\"/cgpu-runtime", true).parse().unwrap();
        expected["crio"]["runtime"]["default_runtime"] = "cgpu".into();
        assert_eq!(serde_json::to_value(read).unwrap(), expected);
    }
}
