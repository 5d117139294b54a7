//! podman's configuration: a file of our own among those it reads.

/// Its first line.
pub(super) const HEADER: &str =
    "# Written by `cgpu setup podman`; `cgpu setup podman --undo` removes it.\n";

/// Its text. podman takes errors from a runtime's log only of runtimes that it is told write JSON there.
pub(super) fn text(runtime: &str) -> String {
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
    fn text_quotes_the_program() {
        assert!(text("/a b/cgpu-runtime").ends_with("cgpu = [\"/a b/cgpu-runtime\"]\n"));
    }
}
