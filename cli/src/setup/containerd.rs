//! containerd's `config.toml`: a runtime for the Kubernetes plugin, as a block at the end. The rest
//! of the file keeps its comments and order.
//!
//! To be the default takes one line in a table that mostly exists already and must not be repeated.
//! The line is inserted there, and the line that it replaces becomes a comment.

use anyhow::{Result, bail, ensure};

const BEGIN: &str = "# cgpu: begin (removed by cgpu setup containerd --undo)";
const END: &str = "# cgpu: end";
/// Starts the comment with the replaced line.
const WAS: &str = "#cgpu was: ";
const DEFAULT: &str = "default_runtime_name = \"cgpu\"";
/// Ends the inserted line.
const MARK: &str = " # cgpu";

/// Returns the file with the block; with `default`, also for pods without a runtime class.
pub(super) fn set(before: &str, runtime: &str, default: bool) -> Result<String> {
    let mut rest = unset(before)?.unwrap_or_default();
    let Ok(quoted) = serde_json::to_string(runtime) else { bail!("{runtime:?} is not a path") };
    let version = version(&rest);
    let plugin = match version {
        None if rest.trim().is_empty() => "io.containerd.grpc.v1.cri",
        Some(2) => "io.containerd.grpc.v1.cri",
        Some(3) => "io.containerd.cri.v1.runtime",
        _ => bail!(
            "expected `version = 2` or `version = 3`: `containerd config default` writes such \
             a file"
        ),
    };
    let table = format!("plugins.\"{plugin}\".containerd.runtimes.cgpu");
    // A file that names a runtime disables containerd's built-in ones, and the plugin fails without
    // its default, runc.
    let names_others = rest.contains("containerd.runtimes.");
    let own = format!(
        "[plugins.\"{plugin}\".containerd.runtimes.runc]\n  \
         runtime_type = \"io.containerd.runc.v2\"\n"
    );
    let own = if names_others { String::new() } else { own };
    if rest.contains("containerd.runtimes.cgpu") {
        bail!("it has a runtime cgpu that cgpu did not write: remove that first");
    }
    // CRI then passes the pod's cgroup in systemd's form, which a runtime without this option takes
    // for a path.
    let is_set =
        |line: &str| line.split_whitespace().collect::<String>().starts_with("SystemdCgroup=true");
    let systemd = if rest.lines().any(is_set) { "    SystemdCgroup = true\n" } else { "" };
    let head = if version.is_none() { "version = 2\n" } else { "" };
    let mut table_of_default = String::new();
    if default {
        match with_default(&rest, plugin)? {
            Some(text) => rest = text,
            None => table_of_default = format!("[plugins.\"{plugin}\".containerd]\n  {DEFAULT}\n"),
        }
    }
    let gap = if rest.is_empty() || rest.ends_with('\n') { "" } else { "\n" };
    let runtime = format!(
        "[{table}]\n  runtime_type = \"io.containerd.runc.v2\"\n  \
         [{table}.options]\n    BinaryName = {quoted}\n{systemd}"
    );
    Ok(format!("{rest}{gap}{BEGIN}\n{head}{table_of_default}{own}{runtime}{END}\n"))
}

/// Returns the file with the default in the plugin's table; `None` if it has no such table.
fn with_default(text: &str, plugin: &str) -> Result<Option<String>> {
    let plain =
        |line: &str| line.split('#').next().unwrap_or_default().replace(['"', '\'', ' ', '\t'], "");
    let header = format!("[plugins.{plugin}.containerd]");
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let Some(at) = lines.iter().position(|line| plain(line).trim_end() == header) else {
        return Ok(None);
    };
    let end = lines[at + 1..].iter().position(|line| line.trim_start().starts_with('['));
    let table = &lines[at + 1..end.map_or(lines.len(), |end| at + 1 + end)];
    let key = |line: &&str| plain(line).starts_with("default_runtime_name=");
    let mut after: String = lines[..=at].concat();
    if !after.ends_with('\n') {
        after.push('\n');
    }
    if let Some(line) = table.iter().find(|line| key(line)) {
        let name = plain(line).trim_end().trim_start_matches("default_runtime_name=").to_owned();
        ensure!(
            matches!(name.as_str(), "" | "runc" | "crun"),
            "its default runtime is `{name}`, which containers without a slice would lose: set \
             `runtime` in /etc/cgpu/runtime.toml to that program, and make runc containerd's \
             default"
        );
    }
    let indent: String = table.iter().find(|line| key(line)).map_or("  ".into(), |line| {
        line.chars().take_while(|letter| letter.is_whitespace()).collect()
    });
    after.push_str(&format!("{indent}{DEFAULT}{MARK}\n"));
    for line in &lines[at + 1..] {
        if table.iter().any(|own| std::ptr::eq(*own, *line)) && key(line) {
            after.push_str(WAS);
        }
        after.push_str(line);
    }
    Ok(Some(after))
}

/// Returns the file without the block and the default; `None` if nothing is left.
pub(super) fn unset(before: &str) -> Result<Option<String>> {
    let mut rest = String::new();
    let mut ours = false;
    for line in before.split_inclusive('\n') {
        ours |= line.trim_end() == BEGIN;
        let is_default = line.trim_end().ends_with(&format!("{DEFAULT}{MARK}"));
        if !ours && !is_default {
            rest.push_str(line.strip_prefix(WAS).unwrap_or(line));
        }
        ours &= line.trim_end() != END;
    }
    if ours {
        bail!("the line `{END}` is missing: remove the block of cgpu by hand");
    }
    Ok((!rest.is_empty()).then_some(rest))
}

/// Returns the value of `version`, which stands before all tables.
fn version(text: &str) -> Option<u32> {
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with('['));
    let value = lines
        .filter_map(|line| line.strip_prefix("version")?.trim_start().strip_prefix('='))
        .next()?;
    value.split('#').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_keeps_the_engines_cgroup_driver() {
        let before = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n  SystemdCgroup = true\n";
        assert!(
            set(before, "/c", false)
                .unwrap()
                .contains("BinaryName = \"/c\"\n    SystemdCgroup = true\n")
        );
    }

    #[test]
    fn set_keeps_the_builtin_runtime() {
        let runc = "containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n";
        assert!(set("version = 2\n", "/c", false).unwrap().contains(runc));
        assert!(set("version = 3\n", "/c", false).unwrap().contains(runc));
        let own = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.kata]\n  runtime_type = \"k\"\n";
        assert!(!set(own, "/c", false).unwrap().contains("runtimes.runc"));
    }

    #[test]
    fn set_refuses_unterminated_block() {
        let cut = set("version = 2\n", "/c", false).unwrap().replace(END, "") + "[grpc]\n";
        assert!(set(&cut, "/c", false).is_err() && unset(&cut).is_err());
    }

    #[test]
    fn unset_restores_the_file() {
        for before in [
            "version = 2\n# mine\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"x\"\n",
            "# head\nversion = 3 # newest\n\n[grpc]\n  address = \"/x\"\n",
        ] {
            let after = set(before, "/usr/bin/cgpu-runtime", false).unwrap();
            assert!(after.starts_with(before), "{after}");
            assert!(after.contains("BinaryName = \"/usr/bin/cgpu-runtime\""));
            assert_eq!(set(&after, "/usr/bin/cgpu-runtime", false).unwrap(), after);
            assert_eq!(unset(&after).unwrap().as_deref(), Some(before));
        }
        let fresh = set("", "/c", false).unwrap();
        assert!(
            fresh.contains(
                "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]"
            ),
            "{fresh}"
        );
        assert_eq!(set(&fresh, "/c", false).unwrap(), fresh);
        assert_eq!(unset(&fresh).unwrap(), None);
    }

    #[test]
    fn set_refuses_malformed_file() {
        assert!(set("[plugins]\n", "/c", false).is_err());
        assert!(set("version = 1\n", "/c", false).is_err());
        assert!(
            set(
                "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.cgpu]\n",
                "/c",
                false
            )
            .is_err()
        );
    }

    /// Returns the default runtime, according to a TOML parser.
    fn default_of(text: &str, plugin: &str) -> Option<String> {
        let read: toml::Table = text.parse().unwrap();
        Some(
            read["plugins"][plugin]["containerd"].get("default_runtime_name")?.as_str()?.to_owned(),
        )
    }

    #[test]
    fn default_is_set_and_restored() {
        let old = "io.containerd.grpc.v1.cri";
        for (before, plugin) in [
            ("version = 2\n", old),
            (
                "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  snapshotter = \"x\"\n  default_runtime_name = \"runc\" # mine\n[grpc]\n",
                old,
            ),
            ("version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]", old),
            (
                "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\n  default_runtime_name = 'runc'\n\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n  runtime_type = 'io.containerd.runc.v2'\n",
                "io.containerd.cri.v1.runtime",
            ),
        ] {
            let after = set(before, "/c", true).unwrap();
            assert_eq!(default_of(&after, plugin).as_deref(), Some("cgpu"), "{after}");
            assert_eq!(set(&after, "/c", true).unwrap(), after);
            assert_eq!(unset(&after).unwrap().unwrap().trim_end(), before.trim_end());
            // The runtime is kept without being the default.
            let plain = set(&after, "/c", false).unwrap();
            assert_ne!(default_of(&plain, plugin).as_deref(), Some("cgpu"));
        }
    }

    #[test]
    fn set_refuses_to_replace_vendor_default() {
        let before = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  default_runtime_name = \"nvidia\"\n";
        assert!(set(before, "/c", true).unwrap_err().to_string().contains("`nvidia`"));
        assert!(set(before, "/c", false).is_ok());
    }
}
