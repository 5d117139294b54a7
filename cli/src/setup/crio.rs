//! CRI-O's configuration: a file of our own among those it reads.

/// Its first line.
pub(super) const HEADER: &str = "# Written by `cgpu setup crio`; `cgpu setup crio --undo` removes it.\n";

/// Its text: a runtime for a RuntimeClass with that handler; its default stays what it is.
pub(super) fn text(runtime: &str) -> String {
    let quoted = serde_json::Value::from(runtime);
    format!(
        "{HEADER}[crio.runtime.runtimes.cgpu]\n\
         runtime_path = {quoted}\n\
         runtime_type = \"oci\"\n\
         runtime_root = \"/run/cgpu-crio\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_more_runtime_and_nothing_else() {
        let read: toml::Table = text("/a \"b\"/cgpu-runtime").parse().unwrap();
        let expected = serde_json::json!({"crio": {"runtime": {"runtimes": {"cgpu": {
            "runtime_path": "/a \"b\"/cgpu-runtime", "runtime_type": "oci", "runtime_root": "/run/cgpu-crio"}}}}});
        assert_eq!(serde_json::to_value(read).unwrap(), expected);
    }
}
