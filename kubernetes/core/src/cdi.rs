//! CDI specifications: how engines edit the configuration of containers for devices of ours.

use std::path::Path;

use serde_json::{Value, json};

/// Oldest version with all features in use, such as names that begin with a digit. Engines refuse
/// versions that they do not know.
const VERSION: &str = "0.5.0";

/// A device of a specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name; with the kind it is `KIND=NAME`.
    pub name: String,
    /// Variables, `NAME=VALUE` each.
    pub variables: Vec<String>,
    /// Hooks of `cgpu-runtime`.
    pub hooks: Vec<Hook>,
}

/// A hook of `cgpu-runtime`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// When it runs: `createRuntime`, ...
    pub stage: &'static str,
    /// Arguments after `cgpu-runtime hook`.
    pub arguments: Vec<String>,
}

/// Returns the text of a specification. `runtime` is the path of `cgpu-runtime` on the host.
#[must_use]
pub fn specification(kind: &str, devices: &[Device], runtime: &Path) -> String {
    let hook = |hook: &Hook| {
        let own = ["cgpu-runtime", "hook"].map(str::to_owned);
        let arguments: Vec<String> = own.into_iter().chain(hook.arguments.clone()).collect();
        json!({ "hookName": hook.stage, "path": runtime, "args": arguments })
    };
    let device = |device: &Device| {
        let hooks: Vec<Value> = device.hooks.iter().map(hook).collect();
        let mut edits = json!({ "hooks": hooks });
        if !device.variables.is_empty() {
            edits["env"] = json!(device.variables);
        }
        json!({ "name": device.name, "containerEdits": edits })
    };
    let devices: Vec<Value> = devices.iter().map(device).collect();
    format!("{:#}\n", json!({ "cdiVersion": VERSION, "kind": kind, "devices": devices }))
}
