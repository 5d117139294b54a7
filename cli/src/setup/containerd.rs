//! containerd's `config.toml`: a runtime for the Kubernetes plugin, as a block at the end. The rest
//! of the file keeps its comments and order.
//!
//! To be the default takes one line in a table that mostly exists already and must not be repeated.
//! The line is inserted there, and the line that it replaces becomes a comment.
//!
//! k3s and RKE2 write the file anew at each start, from a template, which can be changed. There the
//! default is an option of k3s.

use anyhow::{Context, Result, bail, ensure};

const BEGIN: &str = "# cgpu: begin (removed by cgpu setup containerd --undo)";
const END: &str = "# cgpu: end";
/// Starts the comment with the replaced line.
const WAS: &str = "#cgpu was: ";
const DEFAULT: &str = "default_runtime_name = \"cgpu\"";
/// Ends the inserted line.
const MARK: &str = " # cgpu";

/// Stands in a template of k3s and RKE2 for what they write themselves.
const BASE: &str = "{{ template \"base\" . }}";

/// Returns the file with the block; with `default`, also for pods without a runtime class. `next`
/// is the program to which `cgpu-runtime` is configured to hand over. `name` is that of the file.
pub(super) fn set(
    before: &str,
    runtime: &str,
    default: bool,
    next: Option<&str>,
    name: &str,
) -> Result<String> {
    let mut rest = unset(before)?.unwrap_or_default();
    let Ok(quoted) = serde_json::to_string(runtime) else { bail!("{runtime:?} is not a path") };
    let is_template = name.ends_with(".tmpl");
    if is_template {
        ensure!(
            !default,
            "it is a template of k3s or RKE2: leave --default out, and set `default-runtime: cgpu` \
             in /etc/rancher/k3s/config.yaml, or /etc/rancher/rke2/config.yaml"
        );
        if rest.trim().is_empty() {
            rest = format!("{BASE}\n");
        }
        ensure!(
            rest.contains(BASE),
            "it is a template without `{BASE}`: begin it with that line, so that it has what k3s \
             or RKE2 write themselves"
        );
    }
    let version = match version(&rest) {
        None if is_template => Some(if name.contains("v3") { 3 } else { 2 }),
        version => version,
    };
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
    let names_others = is_template || rest.contains("containerd.runtimes.");
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
        match with_default(&rest, plugin, next)? {
            Some(text) => rest = text,
            None => table_of_default = format!("[plugins.\"{plugin}\".containerd]\n  {DEFAULT}\n"),
        }
    }
    let gap = if rest.is_empty() || rest.ends_with('\n') { "" } else { "\n" };
    let kept = settings_of_default(before, plugin);
    let runtime = format!(
        "[{table}]\n  runtime_type = \"io.containerd.runc.v2\"\n{kept}  \
         [{table}.options]\n    BinaryName = {quoted}\n{systemd}"
    );
    Ok(format!("{rest}{gap}{BEGIN}\n{head}{table_of_default}{own}{runtime}{END}\n"))
}

/// Returns the file with the default in the plugin's table; `None` if it has no such table.
fn with_default(text: &str, plugin: &str, next: Option<&str>) -> Result<Option<String>> {
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
        if !matches!(name.as_str(), "" | "runc" | "crun") {
            match (program_of(text, plugin, &name)?, next) {
                (Some(program), _) => check_next(&name, &program, next)?,
                (None, Some(_)) => {}
                (None, None) => bail!(
                    "its default runtime `{name}` is in another file, and containers without a \
                     slice would lose it: write `runtime = \"PROGRAM\"` into \
                     /etc/cgpu/runtime.toml, so that cgpu-runtime hands over to it, and repeat \
                     this. PROGRAM is BinaryName below runtimes.{name} in what `containerd config \
                     dump` prints"
                ),
            }
        }
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

/// Refuses to replace a default runtime to whose program `cgpu-runtime` does not hand over.
pub(super) fn check_next(name: &str, program: &str, next: Option<&str>) -> Result<()> {
    ensure!(
        next == Some(program),
        "its default runtime is `{name}`, which containers without a slice would lose: write \
         `runtime = \"{program}\"` into /etc/cgpu/runtime.toml, so that cgpu-runtime hands over to \
         it, and repeat this"
    );
    Ok(())
}

/// Returns the lines of the default runtime's table that say how CRI starts containers with it,
/// such as `base_runtime_spec` on a node of kind: pods keep them where cgpu stands for that
/// runtime. Empty if the default is in another file, or in what a template does not show.
fn settings_of_default(before: &str, plugin: &str) -> String {
    let Ok(Some(before)) = unset(before) else { return String::new() };
    let Ok(file) = before.parse::<toml::Table>() else { return String::new() };
    let containerd = file.get("plugins").and_then(|it| it.get(plugin)?.get("containerd"));
    let name = containerd.and_then(|it| it.get("default_runtime_name")?.as_str());
    let name = name.filter(|name| !name.is_empty()).unwrap_or("runc");
    let runtime = containerd.and_then(|it| it.get("runtimes")?.get(name)?.as_table());
    let settings = runtime.into_iter().flatten().filter(|(key, value)| {
        !key.starts_with("runtime_") && !value.is_table() && !is_unset(value)
    });
    settings.map(|(key, value)| format!("  {key} = {value}\n")).collect()
}

/// Whether a value is what containerd takes for a setting that is not there.
fn is_unset(value: &toml::Value) -> bool {
    match value {
        toml::Value::String(text) => text.is_empty(),
        toml::Value::Array(items) => items.is_empty(),
        toml::Value::Boolean(is_on) => !is_on,
        _ => false,
    }
}

/// Returns the program of a runtime; `None` if it is not in this file.
fn program_of(text: &str, plugin: &str, name: &str) -> Result<Option<String>> {
    let table: toml::Table = text.parse().context("it is not TOML")?;
    let runtime = table
        .get("plugins")
        .and_then(|it| it.get(plugin)?.get("containerd")?.get("runtimes")?.get(name));
    let Some(runtime) = runtime else { return Ok(None) };
    let kind = runtime.get("runtime_type").and_then(toml::Value::as_str);
    let program = runtime.get("options").and_then(|it| it.get("BinaryName")?.as_str());
    match (kind, program) {
        (Some("io.containerd.runc.v2"), Some(program)) => Ok(Some(program.to_owned())),
        _ => bail!(
            "its default runtime is `{name}`, which is no program like runc: make runc \
             containerd's default"
        ),
    }
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
    // A template that says no more than this has no effect.
    let is_left = !rest.is_empty() && (rest == before || rest.trim() != BASE);
    Ok(is_left.then_some(rest))
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

    fn set(before: &str, runtime: &str, default: bool) -> Result<String> {
        super::set(before, runtime, default, None, "config.toml")
    }

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

    /// Returns a configuration as a node of kind has it (`kindest/node`), in this version. In
    /// version 3, what is about images has a plugin of its own.
    fn of_kind(version: u32) -> String {
        let images = "discard_unpacked_layers = true\n  snapshotter = \"overlayfs\"\n";
        let (plugin, first, within) = match version {
            2 => ("io.containerd.grpc.v1.cri", String::new(), images),
            _ => (
                "io.containerd.cri.v1.runtime",
                format!("[plugins.\"io.containerd.cri.v1.images\"]\n  {images}"),
                "",
            ),
        };
        let within = within.replace("discard", "  discard");
        format!(
            "# the node's own\nversion = {version}\n\n\
             [proxy_plugins]\n[proxy_plugins.\"fuse-overlayfs\"]\n  type = \"snapshot\"\n  \
             address = \"/run/containerd-fuse-overlayfs.sock\"\n\n{first}\
             [plugins.\"{plugin}\".containerd]\n{within}  # set below\n  \
             default_runtime_name = \"runc\"\n\
             [plugins.\"{plugin}\".containerd.runtimes.runc]\n  \
             runtime_type = \"io.containerd.runc.v2\"\n  \
             base_runtime_spec = \"/etc/containerd/cri-base.json\"\n  \
             [plugins.\"{plugin}\".containerd.runtimes.runc.options]\n    \
             SystemdCgroup = true\n\n\
             [plugins.\"{plugin}\".containerd.runtimes.test-handler]\n  \
             runtime_type = \"io.containerd.runc.v2\"\n\n\
             [plugins.\"{plugin}\"]\n  tolerate_missing_hugetlb_controller = true\n"
        )
    }

    #[test]
    fn default_is_set_and_restored() {
        let [old, new] = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];
        let [kind, older_kind] = [3, 2].map(of_kind);
        for (before, plugin) in [
            (kind.as_str(), new),
            (&older_kind, old),
            ("version = 2\n", old),
            (
                "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  snapshotter = \"x\"\n  default_runtime_name = \"runc\" # mine\n[grpc]\n",
                old,
            ),
            ("version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]", old),
            (
                "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\n  default_runtime_name = 'runc'\n\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n  runtime_type = 'io.containerd.runc.v2'\n",
                new,
            ),
        ] {
            let after = set(before, "/c", true).unwrap();
            assert_eq!(default_of(&after, plugin).as_deref(), Some("cgpu"), "{after}");
            let read: toml::Table = after.parse().unwrap();
            let options = &read["plugins"][plugin]["containerd"]["runtimes"]["cgpu"]["options"];
            let is_systemd = options.get("SystemdCgroup").and_then(toml::Value::as_bool);
            assert_eq!(is_systemd.is_some(), before.contains("SystemdCgroup = true"), "{after}");
            // What a node of kind starts each container with.
            let base = read["plugins"][plugin]["containerd"]["runtimes"]["cgpu"]
                .get("base_runtime_spec")
                .and_then(toml::Value::as_str);
            let of_kind = Some("/etc/containerd/cri-base.json");
            assert_eq!(base, of_kind.filter(|base| before.contains(base)), "{after}");
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
        let refusal = set(before, "/c", true).unwrap_err().to_string();
        assert!(refusal.contains("`nvidia` is in another file"), "{refusal}");
        let remedy = "write `runtime = \"PROGRAM\"` into /etc/cgpu/runtime.toml";
        assert!(refusal.contains(remedy), "{refusal}");
        let after = super::set(before, "/c", true, Some("/n"), "config.toml").unwrap();
        assert_eq!(default_of(&after, "io.containerd.grpc.v1.cri").as_deref(), Some("cgpu"));
        assert_eq!(unset(&after).unwrap().as_deref(), Some(before));
        assert!(set(before, "/c", false).is_ok());
        let kata = format!(
            "{before}[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\n  runtime_type = \"io.containerd.kata.v2\"\n"
        );
        let refusal = set(&kata, "/c", true).unwrap_err().to_string();
        assert!(refusal.contains("no program like runc"), "{refusal}");
    }

    /// As NVIDIA's toolkit leaves the file (GPU Operator): in versions 2 and 3.
    #[test]
    fn vendor_default_is_chained_and_restored() {
        let program = "/usr/local/nvidia/toolkit/nvidia-container-runtime";
        for (version, plugin) in
            [(2, "io.containerd.grpc.v1.cri"), (3, "io.containerd.cri.v1.runtime")]
        {
            let table = format!("plugins.\"{plugin}\".containerd");
            let before = format!(
                "version = {version}\n\n[plugins]\n\n  [{table}]\n    default_runtime_name = \"nvidia\"\n\n      \
                 [{table}.runtimes.nvidia]\n        privileged_without_host_devices = false\n        \
                 pod_annotations = [\"nvidia.com/*\"]\n        runtime_path = \"\"\n        \
                 runtime_type = \"io.containerd.runc.v2\"\n\n        [{table}.runtimes.nvidia.options]\n          \
                 BinaryName = \"{program}\"\n          SystemdCgroup = true\n"
            );
            let chained = |next| super::set(&before, "/c", true, next, "config.toml");
            for next in [None, Some("/usr/sbin/runc")] {
                let refusal = chained(next).unwrap_err().to_string();
                assert!(refusal.contains(&format!("`runtime = \"{program}\"`")), "{refusal}");
            }
            let after = chained(Some(program)).unwrap();
            assert_eq!(default_of(&after, plugin).as_deref(), Some("cgpu"), "{after}");
            let read: toml::Table = after.parse().unwrap();
            let runtimes = &read["plugins"][plugin]["containerd"]["runtimes"];
            assert_eq!(runtimes["nvidia"]["options"]["BinaryName"].as_str(), Some(program));
            assert_eq!(runtimes["cgpu"]["options"]["SystemdCgroup"].as_bool(), Some(true));
            let own: Vec<&String> = runtimes["cgpu"].as_table().unwrap().keys().collect();
            assert_eq!(own, ["options", "pod_annotations", "runtime_type"], "{after}");
            assert_eq!(
                super::set(&after, "/c", true, Some(program), "config.toml").unwrap(),
                after
            );
            assert_eq!(unset(&after).unwrap(), Some(before));
        }
    }

    /// The templates of k3s and RKE2, for containerd 1 and 2.
    #[test]
    fn template_gets_the_runtime_and_is_restored() {
        for (name, plugin) in [
            ("config.toml.tmpl", "io.containerd.grpc.v1.cri"),
            ("config-v3.toml.tmpl", "io.containerd.cri.v1.runtime"),
        ] {
            let set = |before: &str, default| super::set(before, "/c", default, None, name);
            let mine =
                format!("{BASE}\n\n[plugins.\"{plugin}\".registry.configs.\"a\"]\n  x = 1\n");
            for before in ["", &mine] {
                let after = set(before, false).unwrap();
                // As k3s renders it: its own part, then the rest.
                let base = format!(
                    "[plugins.\"{plugin}\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n"
                );
                let rendered = after.replace(BASE, &base);
                let read: toml::Table = rendered.parse().unwrap();
                let runtimes = &read["plugins"][plugin]["containerd"]["runtimes"];
                assert_eq!(runtimes["cgpu"]["options"]["BinaryName"].as_str(), Some("/c"));
                assert_eq!(set(&after, false).unwrap(), after);
                let restored = unset(&after).unwrap();
                assert_eq!(restored.as_deref(), Some(before).filter(|text| !text.is_empty()));
                let refusal = set(before, true).unwrap_err().to_string();
                assert!(refusal.contains("default-runtime: cgpu"), "{refusal}");
            }
            assert!(set("[plugins]\n", false).unwrap_err().to_string().contains("without `{{"));
        }
    }
}
