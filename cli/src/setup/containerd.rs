//! containerd's `config.toml`: a runtime for the Kubernetes plugin, as a block of its own at the end. Comments and order of the rest stay.

use anyhow::{Result, bail};

const BEGIN: &str = "# cgpu: begin (cgpu setup containerd --undo takes it out)";
const END: &str = "# cgpu: end";

/// The file with the block.
pub(super) fn set(before: &str, runtime: &str) -> Result<String> {
    let rest = unset(before)?.unwrap_or_default();
    let Ok(quoted) = serde_json::to_string(runtime) else { bail!("{runtime:?} is no path") };
    let version = version(&rest);
    let plugin = match version {
        None if rest.trim().is_empty() => "io.containerd.grpc.v1.cri",
        Some(2) => "io.containerd.grpc.v1.cri",
        Some(3) => "io.containerd.cri.v1.runtime",
        _ => bail!(
            "expected `version = 2` or `version = 3` in it: `containerd config default` writes such a one"
        ),
    };
    let table = format!("plugins.\"{plugin}\".containerd.runtimes.cgpu");
    // A file that names one runtime has none of those that containerd has by itself, and without its default the plugin does not start.
    let names_others = rest.contains("containerd.runtimes.");
    let own = format!(
        "[plugins.\"{plugin}\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n"
    );
    let own = if names_others { String::new() } else { own };
    if rest.contains("containerd.runtimes.cgpu") {
        bail!("it has a runtime cgpu that is not ours: take that out first");
    }
    // CRI then names the pod's control group as systemd does, which a runtime that is not told takes for a folder of that name elsewhere.
    let is_told = |line: &str| line.split_whitespace().collect::<String>().starts_with("SystemdCgroup=true");
    let systemd = if rest.lines().any(is_told) { "    SystemdCgroup = true\n" } else { "" };
    let head = if version.is_none() { "version = 2\n" } else { "" };
    let gap = if rest.is_empty() || rest.ends_with('\n') { "" } else { "\n" };
    Ok(format!(
        "{rest}{gap}{BEGIN}\n{head}{own}[{table}]\n  runtime_type = \"io.containerd.runc.v2\"\n  [{table}.options]\n    BinaryName = {quoted}\n{systemd}{END}\n"
    ))
}

/// The file without it; none: nothing is left.
pub(super) fn unset(before: &str) -> Result<Option<String>> {
    let mut rest = String::new();
    let mut ours = false;
    for line in before.split_inclusive('\n') {
        ours |= line.trim_end() == BEGIN;
        if !ours {
            rest.push_str(line);
        }
        ours &= line.trim_end() != END;
    }
    if ours {
        bail!("the line `{END}` is gone: take our block out by hand");
    }
    Ok((!rest.is_empty()).then_some(rest))
}

/// The number on the line `version`, which stands before all tables.
fn version(text: &str) -> Option<u32> {
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with('['));
    let value =
        lines.filter_map(|line| line.strip_prefix("version")?.trim_start().strip_prefix('=')).next()?;
    value.split('#').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_groups_of_pods_stay_the_engines() {
        let before = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n  SystemdCgroup = true\n";
        assert!(set(before, "/c").unwrap().contains("BinaryName = \"/c\"\n    SystemdCgroup = true\n"));
    }

    #[test]
    fn the_runtime_that_containerd_has_by_itself_stays() {
        let runc = "containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n";
        assert!(set("version = 2\n", "/c").unwrap().contains(runc));
        assert!(set("version = 3\n", "/c").unwrap().contains(runc));
        let own = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.kata]\n  runtime_type = \"k\"\n";
        assert!(!set(own, "/c").unwrap().contains("runtimes.runc"));
    }

    #[test]
    fn a_block_without_its_end_is_left_alone() {
        let cut = set("version = 2\n", "/c").unwrap().replace(END, "") + "[grpc]\n";
        assert!(set(&cut, "/c").is_err() && unset(&cut).is_err());
    }

    #[test]
    fn a_block_comes_and_goes_and_the_rest_stays() {
        for before in [
            "version = 2\n# mine\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"x\"\n",
            "# head\nversion = 3 # newest\n\n[grpc]\n  address = \"/x\"\n",
        ] {
            let after = set(before, "/usr/bin/cgpu-runtime").unwrap();
            assert!(after.starts_with(before), "{after}");
            assert!(after.contains("BinaryName = \"/usr/bin/cgpu-runtime\""));
            assert_eq!(set(&after, "/usr/bin/cgpu-runtime").unwrap(), after);
            assert_eq!(unset(&after).unwrap().as_deref(), Some(before));
        }
        let fresh = set("", "/c").unwrap();
        assert!(
            fresh.contains("version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]"),
            "{fresh}"
        );
        assert_eq!(set(&fresh, "/c").unwrap(), fresh);
        assert_eq!(unset(&fresh).unwrap(), None);
    }

    #[test]
    fn what_is_not_understood_is_left_alone() {
        assert!(set("[plugins]\n", "/c").is_err());
        assert!(set("version = 1\n", "/c").is_err());
        assert!(
            set("version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.cgpu]\n", "/c")
                .is_err()
        );
    }
}
