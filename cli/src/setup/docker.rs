//! Docker's `daemon.json`.
//!
//! | there is | becomes | so that |
//! |---|---|---|
//! | nothing | a runtime `cgpu`, and `default-runtime` it | every container comes by us |
//! | a runtime `nvidia`, and one that is the default | the same name, but our program, with `--cgpu-next` its own | lines with `--runtime=nvidia` work, and containers that ask for no slice get what they got |
//!
//! What was there is in what is there: the name of the default stays, or there was none, and `--cgpu-next` is the former program.

use std::borrow::Cow;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

/// Our name among the runtimes.
const NAME: &str = "cgpu";
const VENDORS: &str = "nvidia";
/// Docker's own runtime, which no file names.
const BUILT_IN: &str = "runc";
/// What our program is called, wherever it lies.
const PROGRAM: &str = "cgpu-runtime";
const NEXT: &str = "--cgpu-next=";
const CONFIG: &str = "--cgpu-config=";

/// What is put before others.
pub(super) struct CgpuRuntime<'a> {
    /// Our program.
    pub(super) runtime: &'a str,
    /// A configuration that is not where it is looked for.
    pub(super) config: Option<Cow<'a, str>>,
}

impl CgpuRuntime<'_> {
    /// An entry among the runtimes that hands over to `next`.
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

/// The file with us in it.
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
        bail!("it has a runtime {NAME} that is not ours ({entry}): give that another name first");
    }
    if !default {
        // One that was the default before us is no more than itself again.
        runtimes
            .iter_mut()
            .filter(|(name, _)| *name != VENDORS)
            .for_each(|(_, entry)| unwrap(entry));
    }
    for name in [Some(VENDORS), former.as_deref().filter(|_| default)].into_iter().flatten() {
        match runtimes.get_mut(name) {
            Some(entry) => wrap(entry, cgpu).with_context(|| format!("the runtime {name}"))?,
            // Known to Docker by another way, which we cannot take.
            None if name != VENDORS => {
                bail!(
                    "default-runtime is {name}, which is not among `runtimes`: name its program there, or use --no-default"
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

/// The file without us; none: nothing is left.
pub(super) fn unset(before: &str, runtime: &str) -> Result<Option<String>> {
    let mut document = read(before)?;
    let own = document.get("runtimes").and_then(|runtimes| runtimes.get(NAME));
    let is_foreign = own.is_some_and(|entry| !is_ours(entry, runtime));
    if let Some(runtimes) = document.get_mut("runtimes").and_then(Value::as_object_mut) {
        if !is_foreign {
            runtimes.shift_remove(NAME);
        }
        runtimes.values_mut().for_each(unwrap);
        if runtimes.is_empty() {
            document.shift_remove("runtimes");
        }
    }
    if !is_foreign && document.get("default-runtime").is_some_and(|name| name == NAME) {
        document.shift_remove("default-runtime");
    }
    Ok((!document.is_empty()).then(|| text(&document)))
}

fn read(text: &str) -> Result<Map<String, Value>> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_str(text).context("it is not understood")? {
        Value::Object(document) => Ok(document),
        _ => bail!("expected an object"),
    }
}

fn text(document: &Map<String, Value>) -> String {
    format!("{:#}\n", Value::Object(document.clone()))
}

/// Whether a runtime of our name is our program, here or where it was installed before.
fn is_ours(entry: &Value, runtime: &str) -> bool {
    let path = entry.get("path").and_then(Value::as_str);
    path.is_some_and(|path| {
        path == runtime || Path::new(path).file_name() == Some(PROGRAM.as_ref())
    })
}

/// Puts us before a runtime, or in our own place if we are there already.
fn wrap(entry: &mut Value, cgpu: &CgpuRuntime<'_>) -> Result<()> {
    unwrap(entry);
    let record = entry.as_object().context("expected an object")?;
    let path = record.get("path").and_then(Value::as_str).filter(|path| !path.is_empty());
    let path = path.context("it has no path: only programs can be handed over to")?.to_owned();
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

/// Takes us away from before a runtime.
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
        // A second time changes nothing.
        assert_eq!(set(&after, true).unwrap(), after);
        let undone = unset(&after, OURS).unwrap().map(|text| serde_json::from_str(&text).unwrap());
        (serde_json::from_str(&after).unwrap(), undone)
    }

    #[test]
    fn set_without_file_makes_one_and_unset_removes_it() {
        let (after, undone) = set_then_unset("");
        assert_eq!(after, json!({"runtimes": {"cgpu": {"path": OURS}}, "default-runtime": "cgpu"}));
        assert_eq!(undone, None);
    }

    #[test]
    fn unset_restores_the_runtimes() {
        for before in [
            json!({"log-driver": "json-file", "log-opts": {"max-size": "10m"}, "insecure-registries": []}),
            json!({"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}}}),
            json!({"default-runtime": "nvidia", "runtimes": {
                "nvidia": {"path": "/usr/bin/nvidia-container-runtime", "runtimeArgs": ["--debug"]},
                "gvisor": {"path": "/usr/bin/runsc", "runtimeArgs": ["--x"]}}, "live-restore": true}),
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
            "nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": ["--a"]}, "own": {"path": "/o"}, "kata": {"path": "/k"}}});
        let after: Value = serde_json::from_str(&set(&before.to_string(), true).unwrap()).unwrap();
        assert_eq!(
            after["runtimes"],
            json!({
                "nvidia": {"path": OURS, "runtimeArgs": ["--cgpu-next=nvidia-container-runtime", "--a"]},
                "own": {"path": OURS, "runtimeArgs": ["--cgpu-next=/o"]}, "kata": {"path": "/k"}, "cgpu": {"path": OURS}
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
        ] {
            assert!(set(text, true).is_err(), "{text}");
        }
        let shim = json!({"runtimes": {"nvidia": {"runtimeType": "io.containerd.kata.v2"}}});
        assert!(
            format!("{:#}", set(&shim.to_string(), true).unwrap_err())
                .contains("the runtime nvidia: it has no path")
        );
    }

    #[test]
    fn set_names_the_configuration_for_each_runtime() {
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
    fn default_can_be_unset_and_the_runtime_kept() {
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
    fn set_refuses_foreign_runtime_of_the_same_name() {
        let foreign =
            json!({"default-runtime": "cgpu", "runtimes": {"cgpu": {"path": "/opt/other/cgpu"}}});
        for default in [true, false] {
            let refused = set(&foreign.to_string(), default).unwrap_err().to_string();
            assert!(refused.contains("not ours ({\"path\":\"/opt/other/cgpu\"})"), "{refused}");
        }
        let left = unset(&foreign.to_string(), OURS).unwrap().unwrap();
        assert_eq!(serde_json::from_str::<Value>(&left).unwrap(), foreign);
        // Our own of another place is ours.
        let moved = json!({"runtimes": {"cgpu": {"path": "/old/place/cgpu-runtime"}}}).to_string();
        assert!(set(&moved, false).unwrap().contains(OURS));
        assert_eq!(unset(&moved, OURS).unwrap(), None);
    }
}
