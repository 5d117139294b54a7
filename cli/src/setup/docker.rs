//! Docker's `daemon.json`.
//!
//! A runtime `cgpu` is added. A runtime `nvidia` keeps its name but runs `cgpu-runtime`, with
//! `--cgpu-next` for its own program. So `--runtime=nvidia` still works, and containers without a
//! slice get the runtime that they had.
//!
//! With `--default`, the same is done to the default runtime; where there is none, `cgpu` becomes
//! the default.
//!
//! Undoing restores the former settings from `--cgpu-next` and the name of the default.

use std::borrow::Cow;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

const NAME: &str = "cgpu";
const VENDORS: &str = "nvidia";
/// Docker's built-in runtime, which the file does not list.
const BUILT_IN: &str = "runc";
const PROGRAM: &str = "cgpu-runtime";
const NEXT: &str = "--cgpu-next=";
const CONFIG: &str = "--cgpu-config=";

/// The program that is put before other runtimes.
pub(super) struct CgpuRuntime<'a> {
    pub(super) runtime: &'a str,
    /// The path of its configuration, if not the default one.
    pub(super) config: Option<Cow<'a, str>>,
}

impl CgpuRuntime<'_> {
    /// Returns a runtime's entry; with `next`, it hands over to that program.
    fn entry(&self, next: Option<&str>, rest: Vec<Value>) -> Value {
        let config = self.config.as_ref().map(|file| format!("{CONFIG}{file}"));
        let next = next.map(|program| format!("{NEXT}{program}"));
        let arguments: Vec<Value> =
            config.into_iter().chain(next).map(Value::from).chain(rest).collect();
        let mut entry = json!({ "path": self.runtime });
        if !arguments.is_empty() {
            entry["runtimeArgs"] = arguments.into();
        }
        entry
    }
}

/// Returns the file with cgpu's runtime.
pub(super) fn set(before: &str, cgpu: &CgpuRuntime<'_>, default: bool) -> Result<String> {
    let mut document = read(before)?;
    let former = match document.get("default-runtime") {
        None => None,
        Some(Value::String(name)) => Some(name.clone()),
        Some(_) => bail!("expected text for default-runtime"),
    };
    let former = former.filter(|name| name != BUILT_IN && name != NAME);
    let runtimes = document.entry("runtimes").or_insert_with(|| json!({}));
    let runtimes = runtimes.as_object_mut().context("expected an object `runtimes`")?;
    if let Some(entry) = runtimes.get(NAME).filter(|entry| !is_ours(entry, cgpu.runtime)) {
        bail!("it has a runtime {NAME} that cgpu did not write ({entry}): rename that first");
    }
    if !default {
        // A former default runtime gets its own program back.
        runtimes
            .iter_mut()
            .filter(|(name, _)| *name != VENDORS)
            .for_each(|(_, entry)| unwrap(entry));
    }
    for name in [Some(VENDORS), former.as_deref().filter(|_| default)].into_iter().flatten() {
        match runtimes.get_mut(name) {
            Some(entry) => wrap(entry, cgpu).with_context(|| format!("the runtime {name}"))?,
            // The runtime may be defined by an option of the daemon, which cannot be changed here.
            None if default && former.as_deref() == Some(name) => {
                bail!(
                    "default-runtime is {name}, which `runtimes` does not list: add \
                     `\"{name}\": {{\"path\": \"PROGRAM\"}}` there, with the path of its program, and \
                     remove dockerd's option --add-runtime of this name; or leave --default out"
                )
            }
            None => {}
        }
    }
    runtimes.insert(NAME.into(), cgpu.entry(None, Vec::new()));
    match (default, former.is_none()) {
        (true, true) => {
            document.insert("default-runtime".into(), NAME.into());
        }
        (false, true) if document.get("default-runtime").is_some_and(|name| name == NAME) => {
            document.shift_remove("default-runtime");
        }
        _ => {}
    }
    Ok(text(&document))
}

/// Returns the file without cgpu's runtime; `None` if nothing is left.
pub(super) fn unset(before: &str, runtime: &str) -> Result<Option<String>> {
    let mut document = read(before)?;
    let own = document.get("runtimes").and_then(|runtimes| runtimes.get(NAME));
    let is_of_another = own.is_some_and(|entry| !is_ours(entry, runtime));
    if let Some(runtimes) = document.get_mut("runtimes").and_then(Value::as_object_mut) {
        if !is_of_another {
            runtimes.shift_remove(NAME);
        }
        runtimes.values_mut().for_each(unwrap);
        if runtimes.is_empty() {
            document.shift_remove("runtimes");
        }
    }
    if !is_of_another && document.get("default-runtime").is_some_and(|name| name == NAME) {
        document.shift_remove("default-runtime");
    }
    Ok((!document.is_empty()).then(|| text(&document)))
}

fn read(text: &str) -> Result<Map<String, Value>> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_str(text).context("it is not JSON")? {
        Value::Object(document) => Ok(document),
        _ => bail!("expected an object"),
    }
}

fn text(document: &Map<String, Value>) -> String {
    format!("{:#}\n", Value::Object(document.clone()))
}

/// Returns whether an entry's program is `cgpu-runtime`, in this or another folder.
fn is_ours(entry: &Value, runtime: &str) -> bool {
    let path = entry.get("path").and_then(Value::as_str);
    path.is_some_and(|path| {
        path == runtime || Path::new(path).file_name() == Some(PROGRAM.as_ref())
    })
}

/// Puts `cgpu-runtime` before a runtime, replacing an earlier setup.
fn wrap(entry: &mut Value, cgpu: &CgpuRuntime<'_>) -> Result<()> {
    unwrap(entry);
    let record = entry.as_object().context("expected an object")?;
    let path = record.get("path").and_then(Value::as_str).filter(|path| !path.is_empty());
    let path = path.context("it has no path, so cgpu-runtime cannot start it")?.to_owned();
    let rest = match record.get("runtimeArgs") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(arguments)) => arguments.clone(),
        Some(_) => bail!("expected a list `runtimeArgs`"),
    };
    let Value::Object(ours) = cgpu.entry(Some(&path), rest) else { return Ok(()) };
    if let Some(record) = entry.as_object_mut() {
        record.extend(ours);
    }
    Ok(())
}

/// Restores a runtime's own program.
fn unwrap(entry: &mut Value) {
    let Some(entry) = entry.as_object_mut() else { return };
    let Some(Value::Array(arguments)) = entry.get_mut("runtimeArgs") else { return };
    let after =
        |argument: &Value, option: &str| argument.as_str()?.strip_prefix(option).map(str::to_owned);
    let Some(path) = arguments.iter().find_map(|argument| after(argument, NEXT)) else { return };
    arguments
        .retain(|argument| after(argument, NEXT).or_else(|| after(argument, CONFIG)).is_none());
    if arguments.is_empty() {
        entry.shift_remove("runtimeArgs");
    }
    entry.insert("path".into(), path.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "/usr/bin/cgpu-runtime";

    fn set(before: &str, default: bool) -> Result<String> {
        super::set(before, &CgpuRuntime { runtime: OURS, config: None }, default)
    }

    fn set_then_unset(before: &str) -> (Value, Option<Value>) {
        let after = set(before, true).unwrap();
        // Setting it twice changes nothing.
        assert_eq!(set(&after, true).unwrap(), after);
        let undone = unset(&after, OURS).unwrap().map(|text| serde_json::from_str(&text).unwrap());
        (serde_json::from_str(&after).unwrap(), undone)
    }

    #[test]
    fn set_without_file_creates_it_and_unset_removes_it() {
        let (after, undone) = set_then_unset("");
        assert_eq!(after, json!({"runtimes": {"cgpu": {"path": OURS}}, "default-runtime": "cgpu"}));
        assert_eq!(undone, None);
    }

    #[test]
    fn unset_restores_the_runtimes() {
        for before in [
            json!({"log-driver": "json-file", "log-opts": {"max-size": "10m"},
                "insecure-registries": []}),
            json!({"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}}}),
            json!({"default-runtime": "nvidia", "runtimes": {
                "nvidia": {"path": "/usr/bin/nvidia-container-runtime", "runtimeArgs": ["--debug"]},
                "gvisor": {"path": "/usr/bin/runsc", "runtimeArgs": ["--x"]}},
                "live-restore": true}),
        ] {
            let (after, undone) = set_then_unset(&before.to_string());
            assert_eq!(undone, Some(before.clone()), "{after:#}");
            for (name, value) in before.as_object().unwrap() {
                if name != "runtimes" {
                    assert_eq!(after[name], *value);
                }
            }
        }
    }

    #[test]
    fn set_wraps_vendor_and_default_runtimes() {
        let before = json!({"default-runtime": "own", "runtimes": {
            "nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": ["--a"]},
            "own": {"path": "/o"}, "kata": {"path": "/k"}}});
        let after: Value = serde_json::from_str(&set(&before.to_string(), true).unwrap()).unwrap();
        assert_eq!(
            after["runtimes"],
            json!({
                "nvidia": {"path": OURS,
                    "runtimeArgs": ["--cgpu-next=nvidia-container-runtime", "--a"]},
                "own": {"path": OURS, "runtimeArgs": ["--cgpu-next=/o"]},
                "kata": {"path": "/k"}, "cgpu": {"path": OURS}
            })
        );
        assert_eq!(after["default-runtime"], "own");
    }

    #[test]
    fn set_refuses_malformed_file() {
        for text in [
            "[]",
            "{",
            "{\"runtimes\": []}",
            "{\"default-runtime\": 1}",
            "{\"default-runtime\": \"kata\"}",
            "{\"default-runtime\": \"nvidia\"}",
        ] {
            assert!(set(text, true).is_err(), "{text}");
        }
        let refusal = set("{\"default-runtime\": \"kata\"}", true).unwrap_err().to_string();
        assert!(refusal.contains("add `\"kata\": {\"path\": \"PROGRAM\"}` there"), "{refusal}");
        // Without --default, the default runtime may be an option of the daemon.
        assert!(set("{\"default-runtime\": \"nvidia\"}", false).is_ok());
        let shim = json!({"runtimes": {"nvidia": {"runtimeType": "io.containerd.kata.v2"}}});
        assert!(
            format!("{:#}", set(&shim.to_string(), true).unwrap_err())
                .contains("the runtime nvidia: it has no path")
        );
    }

    #[test]
    fn set_passes_configuration_to_each_runtime() {
        let before = json!({"runtimes": {"nvidia": {"path": "/n"}}}).to_string();
        let after = super::set(
            &before,
            &CgpuRuntime { runtime: OURS, config: Some("/c.toml".into()) },
            true,
        )
        .unwrap();
        let text: Value = serde_json::from_str(&after).unwrap();
        assert_eq!(
            text["runtimes"]["cgpu"],
            json!({"path": OURS, "runtimeArgs": ["--cgpu-config=/c.toml"]})
        );
        assert_eq!(
            text["runtimes"]["nvidia"],
            json!({"path": OURS, "runtimeArgs": ["--cgpu-config=/c.toml", "--cgpu-next=/n"]})
        );
        assert_eq!(
            unset(&after, OURS).unwrap().map(|text| serde_json::from_str::<Value>(&text).unwrap()),
            serde_json::from_str(&before).unwrap()
        );
    }

    #[test]
    fn set_without_default_adds_one_runtime() {
        let after: Value = serde_json::from_str(&set("{}", false).unwrap()).unwrap();
        assert_eq!(after, json!({"runtimes": {"cgpu": {"path": OURS}}}));
    }

    #[test]
    fn set_without_default_reverts_the_default() {
        for before in [
            json!({"live-restore": true}),
            json!({"default-runtime": "own", "runtimes": {
                "nvidia": {"path": "/n"}, "own": {"path": "/o", "runtimeArgs": ["--x"]}}}),
        ] {
            let before = before.to_string();
            let plain = set(&before, true).unwrap();
            assert_eq!(set(&plain, false).unwrap(), set(&before, false).unwrap(), "{before}");
            assert_eq!(set(&set(&before, false).unwrap(), true).unwrap(), plain, "{before}");
        }
    }

    #[test]
    fn set_refuses_other_runtime_named_cgpu() {
        let other =
            json!({"default-runtime": "cgpu", "runtimes": {"cgpu": {"path": "/opt/other/cgpu"}}});
        for default in [true, false] {
            let refused = set(&other.to_string(), default).unwrap_err().to_string();
            assert!(
                refused.contains("cgpu did not write ({\"path\":\"/opt/other/cgpu\"})"),
                "{refused}"
            );
        }
        let left = unset(&other.to_string(), OURS).unwrap().unwrap();
        assert_eq!(serde_json::from_str::<Value>(&left).unwrap(), other);
        // `cgpu-runtime` in another folder is recognized.
        let moved = json!({"runtimes": {"cgpu": {"path": "/old/place/cgpu-runtime"}}}).to_string();
        assert!(set(&moved, false).unwrap().contains(OURS));
        assert_eq!(unset(&moved, OURS).unwrap(), None);
    }
}
