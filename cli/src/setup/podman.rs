//! podman's configuration: a drop-in file that cgpu alone writes.

pub(super) const HEADER: &str =
    "# Written by `cgpu setup podman`; `cgpu setup podman --undo` removes it.\n";

/// Returns the text of the file. podman reads errors only from logs of runtimes in
/// `runtime_supports_json`.
pub(super) fn text(runtime: &str) -> String {
    let quoted = serde_json::Value::from(runtime);
    format!(
        "{HEADER}[engine]\n\
         runtime = \"cgpu\"\n\
         runtime_supports_json = \
         [\"crun\", \"runc\", \"kata\", \"runsc\", \"youki\", \"krun\", \"cgpu\"]\n\n\
         [engine.runtimes]\n\
         cgpu = [{quoted}]\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_quotes_the_program() {
        assert!(text("/a b/cgpu-runtime").ends_with("cgpu = [\"/a b/cgpu-runtime\"]\n"));
    }
}
