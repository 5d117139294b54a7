//! The container's configuration: what is read from it, and what is added.
//!
//! It is edited as JSON, not as a library's types: these would drop fields that they do not know,
//! such as new kinds of isolation, and the container would start with less than its engine
//! requested. All other fields are kept.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cgpu_shm::paths;
use oci_spec::runtime::{Hook, Mount};
use serde_json::{Map, Value};

use crate::config::SIMULATED;
use crate::document;
use crate::image::PRELOADS;
use crate::plan::Refusal;

/// The shim's path inside.
pub const SHIM: &str = "/run/cgpu/libcgpu.so";
/// The variable that names preloaded libraries, with `=`.
const PRELOAD: &str = "LD_PRELOAD=";

/// A configuration that was parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    document: Map<String, Value>,
}

/// Additions for a slice.
#[derive(Clone, Debug, PartialEq)]
pub struct Additions {
    /// Mounts, in order, after all others.
    pub mounts: Vec<Mount>,
    /// Hooks, each with the name of its list.
    pub hooks: Vec<(&'static str, Hook)>,
    /// The preloaded library, for loaders that read no preload file.
    pub preload: Option<String>,
}

/// Names that are read. Other spellings of them are refused: some runtimes would read these and
/// others not.
const READ: &[(&str, &[&str])] = &[
    ("", &["process", "root", "mounts", "hooks", "annotations", "linux"]),
    ("process", &["env"]),
    ("root", &["path"]),
    ("hooks", &HOOKS),
    ("linux", &["namespaces", "maskedPaths", "seccomp"]),
];
/// The hooks of a slice: when its namespaces exist, when its mounts are finished, and when it is
/// deleted. The middle one runs before the container's program with some releases of runc, and
/// right after its start with other runtimes.
pub const OWN_HOOKS: [&str; 3] = ["created", "started", "stopped"];
/// The lists of these hooks.
pub const HOOKS: [&str; 3] = ["createRuntime", "poststart", "poststop"];
/// Arguments of the hook that plans a share, before the share's name.
const PLAN_SHARE: [&str; 2] = ["share", "plan"];
/// First arguments of cgpu's hooks.
const HOOK_ARGUMENTS: [&str; 2] = ["cgpu-runtime", "hook"];
/// Options of each mount that [`bind`] makes, and those that it may have in addition.
const OPTIONS: [&str; 3] = ["bind", "nosuid", "nodev"];
const MORE_OPTIONS: [&str; 3] = ["ro", "rw", "noexec"];

impl Configuration {
    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// It is not JSON, or the parts that are read have the wrong types.
    pub fn parse(text: &[u8]) -> Result<Self, Refusal> {
        let wrong =
            |what: String| Refusal(format!("config.json of the container is invalid: {what}"));
        let document = document::parse(text).map_err(|error| wrong(error.to_string()))?;
        let Value::Object(document) = document else {
            return Err(wrong("expected an object".into()));
        };
        let configuration = Self { document };
        for (parent, names) in READ {
            let Some(object) = configuration.object(parent) else {
                let present =
                    configuration.document.get(*parent).is_some_and(|value| !value.is_null());
                if present {
                    return Err(wrong(format!("expected an object `{parent}`")));
                }
                continue;
            };
            check_spelling(object, names).map_err(&wrong)?;
        }
        configuration.strings().map_err(&wrong)?;
        for name in HOOKS {
            let hooks = configuration.object("hooks").and_then(|hooks| hooks.get(name));
            if !hooks.is_none_or(|hooks| hooks.is_array() || hooks.is_null()) {
                return Err(wrong(format!("expected a list `{name}`")));
            }
        }
        if !configuration
            .document
            .get("mounts")
            .is_none_or(|mounts| mounts.is_array() || mounts.is_null())
        {
            return Err(wrong("expected a list `mounts`".into()));
        }
        let mounts = configuration.document.get("mounts").and_then(Value::as_array);
        for mount in mounts.into_iter().flatten().filter_map(Value::as_object) {
            check_spelling(mount, &["destination", "type", "source", "options"]).map_err(&wrong)?;
        }
        for name in ["namespaces", "maskedPaths"] {
            let list = configuration.object("linux").and_then(|linux| linux.get(name));
            if !list.is_none_or(|list| list.is_array() || list.is_null()) {
                return Err(wrong(format!("expected a list `{name}`")));
            }
        }
        for namespace in configuration.listed("namespaces").filter_map(Value::as_object) {
            check_spelling(namespace, &["type", "path"]).map_err(&wrong)?;
        }
        if !configuration.listed("maskedPaths").all(Value::is_string) {
            return Err(wrong("expected text in `maskedPaths`".into()));
        }
        Ok(configuration)
    }

    fn object(&self, name: &str) -> Option<&Map<String, Value>> {
        if name.is_empty() { Some(&self.document) } else { self.document.get(name)?.as_object() }
    }

    fn strings(&self) -> Result<Vec<String>, String> {
        self.object("process").map_or_else(|| Ok(Vec::new()), strings)
    }

    /// Returns the variables of its first process.
    #[must_use]
    pub fn variables(&self) -> Vec<String> {
        self.strings().unwrap_or_default()
    }

    /// Returns its root file system, relative to the bundle unless absolute.
    #[must_use]
    pub fn root(&self) -> Option<&Path> {
        self.object("root")?.get("path")?.as_str().map(Path::new)
    }

    /// Returns the value of an annotation.
    #[must_use]
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.object("annotations")?.get(name)?.as_str()
    }

    /// Returns the destinations of its mounts, in order, with the sources of bind mounts as
    /// written; `None` for other mounts.
    #[must_use]
    pub fn mounts(&self) -> Vec<(PathBuf, Option<PathBuf>)> {
        let mounts = self.document.get("mounts").and_then(Value::as_array).into_iter().flatten();
        let paths = |mount: &Value| {
            let text = |name: &str| mount.get(name).and_then(Value::as_str);
            let options = mount.get("options").and_then(Value::as_array).into_iter().flatten();
            let is_bind = text("type") == Some("bind")
                || options
                    .filter_map(Value::as_str)
                    .any(|option| matches!(option, "bind" | "rbind"));
            Some((
                text("destination")?.into(),
                text("source").filter(|_| is_bind).map(PathBuf::from),
            ))
        };
        mounts.filter_map(paths).collect()
    }

    /// Returns the names of its shares, sorted: its CDI devices have hooks that name them.
    #[must_use]
    pub fn shares(&self) -> Vec<String> {
        let hooks = self.object("hooks").and_then(|hooks| hooks.get(HOOKS[0])?.as_array());
        let name = |hook: &Value| {
            let arguments = hook.get("args")?.as_array()?;
            let arguments: Vec<_> = arguments.iter().map(Value::as_str).collect();
            let rest = arguments.strip_prefix(&HOOK_ARGUMENTS.map(Some))?;
            let name = rest.strip_prefix(&PLAN_SHARE.map(Some))?.first()?;
            name.map(str::to_owned)
        };
        let names: BTreeSet<_> = hooks.into_iter().flatten().filter_map(name).collect();
        names.into_iter().collect()
    }

    /// Returns destination and source of its bind mounts, in order.
    #[must_use]
    pub fn binds(&self) -> Vec<(PathBuf, PathBuf)> {
        self.mounts().into_iter().filter_map(|(to, from)| Some((to, from?))).collect()
    }

    /// Returns a list in its object `linux`.
    fn listed(&self, name: &str) -> impl Iterator<Item = &Value> {
        self.object("linux").and_then(|linux| linux.get(name)?.as_array()).into_iter().flatten()
    }

    /// Returns whether it has its own mount namespace. Without one, or in that of another
    /// container, the slice's mounts would not be made.
    #[must_use]
    pub fn has_own_mounts(&self) -> bool {
        self.listed("namespaces").any(|namespace| {
            let text = |name: &str| namespace.get(name).and_then(Value::as_str);
            text("type") == Some("mount") && text("path").is_none_or(str::is_empty)
        })
    }

    /// Returns the paths that are hidden from its programs, whatever is mounted there.
    pub fn masked(&self) -> impl Iterator<Item = &Path> {
        self.listed("maskedPaths").filter_map(Value::as_str).map(Path::new)
    }

    /// Returns whether a filter of system calls is requested for its programs.
    #[must_use]
    pub fn has_seccomp(&self) -> bool {
        self.object("linux").and_then(|linux| linux.get("seccomp")).is_some_and(Value::is_object)
    }

    /// Removes the additions of an earlier start of the same bundle, perhaps under another id or
    /// with another configuration of this program. Returns whether there were any.
    ///
    /// They are recognized by their form, which no engine writes.
    pub fn remove_former(&mut self) -> bool {
        let mut found = remove(&mut self.document, "mounts", is_former_mount);
        let hooks = self.document.get_mut("hooks").and_then(Value::as_object_mut);
        for hooks in hooks.into_iter().flat_map(Map::values_mut).filter_map(Value::as_array_mut) {
            found |= remove_from(hooks, is_former_hook);
        }
        let process = self.document.get_mut("process").and_then(Value::as_object_mut);
        if let Some(process) = process.filter(|_| found) {
            remove_preload(process);
        }
        found
    }

    /// Returns it with these additions.
    #[must_use]
    pub fn with(mut self, additions: &Additions) -> Self {
        append(&mut self.document, "mounts", additions.mounts.iter().map(value));
        if !additions.hooks.is_empty() {
            let hooks = self.document.entry("hooks").or_insert(Value::Null);
            if !hooks.is_object() {
                *hooks = Value::Object(Map::new());
            }
            if let Value::Object(hooks) = hooks {
                for (name, hook) in &additions.hooks {
                    append(hooks, name, [value(hook)].into_iter());
                }
            }
        }
        if let Some(preload) = &additions.preload {
            let process =
                self.document.entry("process").or_insert_with(|| Value::Object(Map::new()));
            if let Some(process) = process.as_object_mut() {
                add_preload(process, preload);
            }
        }
        self
    }

    /// Returns it with these variables for its first process, without earlier ones of the same
    /// names and of the names in `left_out`.
    #[must_use]
    pub fn with_variables(mut self, given: &[(String, String)], left_out: &[&str]) -> Self {
        let process = self.document.entry("process").or_insert_with(|| Value::Object(Map::new()));
        if let Some(process) = process.as_object_mut() {
            let is_replaced = |variable: &Value| {
                let name =
                    variable.as_str().and_then(|text| text.split('=').next()).unwrap_or_default();
                left_out.contains(&name) || given.iter().any(|(other, _)| other == name)
            };
            let added = given.iter().map(|(name, value)| Value::String(format!("{name}={value}")));
            remove(process, "env", is_replaced);
            append(process, "env", added);
        }
        self
    }

    /// Removes the variables of these names from its first process. Returns whether there were any.
    pub fn remove_variables(&mut self, names: &[&str]) -> bool {
        let process = self.document.get_mut("process").and_then(Value::as_object_mut);
        process.is_some_and(|process| remove(process, "env", is_one_of(names)))
    }

    /// Returns its text.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        // Serializing a document that was parsed does not fail.
        serde_json::to_vec(&self.document).unwrap_or_default()
    }
}

/// Adds this preloaded library to a process that an engine starts in a running container (`exec
/// --process FILE`).
///
/// # Errors
/// The process cannot be parsed.
pub fn preloading(process: &[u8], shim: &str) -> Result<Vec<u8>, Refusal> {
    let mut process = read_process(process)?;
    add_preload(&mut process, shim);
    Ok(Value::Object(process).to_string().into_bytes())
}

/// Replaces the variables of these names by those of the container's first process.
///
/// # Errors
/// As for [`preloading`].
pub fn bound_as(process: &[u8], first: &Configuration, names: &[&str]) -> Result<Vec<u8>, Refusal> {
    let mut process = read_process(process)?;
    let name =
        |variable: &str| variable.split('=').next().is_some_and(|name| names.contains(&name));
    let given: Vec<String> =
        first.variables().into_iter().filter(|variable| name(variable)).collect();
    remove(&mut process, "env", |variable| variable.as_str().is_some_and(name));
    append(&mut process, "env", given.into_iter().map(Value::String));
    Ok(Value::Object(process).to_string().into_bytes())
}

/// Removes the variables of these names from a process. Returns `None` if it has none of them;
/// then it is not parsed.
///
/// # Errors
/// As for [`preloading`].
pub fn without(process: &[u8], names: &[&str]) -> Result<Option<Vec<u8>>, Refusal> {
    let finds = |name: &&str| process.windows(name.len()).any(|part| part == name.as_bytes());
    if !names.iter().any(finds) {
        return Ok(None);
    }
    let mut process = read_process(process)?;
    let found = remove(&mut process, "env", is_one_of(names));
    Ok(found.then(|| Value::Object(process).to_string().into_bytes()))
}

/// Returns a predicate for variables of these names.
fn is_one_of(names: &[&str]) -> impl Fn(&Value) -> bool {
    |variable| {
        let name = variable.as_str().and_then(|text| text.split('=').next());
        name.is_some_and(|name| names.contains(&name))
    }
}

fn read_process(text: &[u8]) -> Result<Map<String, Value>, Refusal> {
    let wrong = |what: String| Refusal(format!("the process for the container is invalid: {what}"));
    let document = document::parse(text).map_err(|error| wrong(error.to_string()))?;
    let Value::Object(process) = document else { return Err(wrong("expected an object".into())) };
    check_spelling(&process, &["env"]).map_err(wrong)?;
    strings(&process).map_err(wrong)?;
    Ok(process)
}

/// Checks that no name is spelled so that some readers would take it for one of these names and
/// others not.
fn check_spelling(object: &Map<String, Value>, names: &[&str]) -> Result<(), String> {
    let is_ambiguous = |key: &&String| names.iter().any(|name| document::is_taken_for(key, name));
    match object.keys().find(is_ambiguous) {
        Some(key) => Err(format!("`{}` is a wrong spelling of a name", key.escape_default())),
        None => Ok(()),
    }
}

/// Returns the variables of a process.
fn strings(process: &Map<String, Value>) -> Result<Vec<String>, String> {
    let variables = match process.get("env") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(variables)) => variables,
        Some(_) => return Err("expected a list `env`".into()),
    };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    variables
        .iter()
        .map(|value| text(value).ok_or_else(|| "expected text in `env`".to_owned()))
        .collect()
}

/// Preloads the shim before other libraries: one that also hooks `dlsym` would hide the driver from
/// it.
fn add_preload(process: &mut Map<String, Value>, shim: &str) {
    let variables = process.entry("env").or_insert(Value::Null);
    if !variables.is_array() {
        *variables = Value::Array(Vec::new());
    }
    let Some(variables) = variables.as_array_mut() else { return };
    let mut found = false;
    for variable in variables.iter_mut() {
        let Some(present) = variable.as_str().and_then(|text| text.strip_prefix(PRELOAD)) else {
            continue;
        };
        found = true;
        if !present.split([':', ' ']).any(|file| file == shim) {
            *variable = Value::String(format!("{PRELOAD}{shim}:{present}"));
        }
    }
    if !found {
        variables.push(Value::String(format!("{PRELOAD}{shim}")));
    }
}

/// Removes the shim from the preloaded libraries of a process.
fn remove_preload(process: &mut Map<String, Value>) {
    let Some(variables) = process.get_mut("env").and_then(Value::as_array_mut) else { return };
    for variable in variables.iter_mut() {
        let files = variable.as_str().and_then(|text| text.strip_prefix(PRELOAD));
        let Some(files) = files.map(|files| files.split([':', ' ']).collect::<Vec<_>>()) else {
            continue;
        };
        if files.contains(&SHIM) {
            let others: Vec<_> = files.into_iter().filter(|file| *file != SHIM).collect();
            *variable = Value::String(format!("{PRELOAD}{}", others.join(":")));
        }
    }
    variables.retain(|variable| variable.as_str() != Some(PRELOAD));
}

/// Returns whether a mount has the form of [`bind`] and cgpu's files.
fn is_former_mount(mount: &Value) -> bool {
    let text = |name: &str| Path::new(mount.get(name).and_then(Value::as_str).unwrap_or_default());
    let options = mount.get("options").and_then(Value::as_array).map(Vec::as_slice);
    let options: Vec<_> = options.unwrap_or_default().iter().map(Value::as_str).collect();
    let has_form = options.starts_with(&OPTIONS.map(Some))
        && options[OPTIONS.len()..].iter().flatten().all(|more| MORE_OPTIONS.contains(more));
    let (to, from) = (text("destination"), text("source"));
    has_form
        && (to.starts_with(paths::RUN)
            || PRELOADS.iter().any(|file| to == Path::new(file))
            || SIMULATED.iter().any(|library| from.ends_with(Path::new("sim").join(library))))
}

fn is_former_hook(hook: &Value) -> bool {
    let arguments = hook.get("args").and_then(Value::as_array).map(Vec::as_slice);
    let arguments: Vec<_> = arguments.unwrap_or_default().iter().map(Value::as_str).collect();
    let own = HOOK_ARGUMENTS.map(Some);
    // A CDI specification has hooks of the same program.
    arguments.starts_with(&own)
        && arguments.get(own.len()).is_some_and(|what| OWN_HOOKS.map(Some).contains(what))
}

/// Removes items from a list; returns whether there were any.
fn remove(object: &mut Map<String, Value>, name: &str, which: impl Fn(&Value) -> bool) -> bool {
    let list = object.get_mut(name).and_then(Value::as_array_mut);
    list.is_some_and(|list| remove_from(list, which))
}

fn remove_from(list: &mut Vec<Value>, which: impl Fn(&Value) -> bool) -> bool {
    let before = list.len();
    list.retain(|item| !which(item));
    list.len() != before
}

/// Appends to a list.
fn append(object: &mut Map<String, Value>, name: &str, added: impl Iterator<Item = Value>) {
    let list = object.entry(name).or_insert(Value::Null);
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    if let Value::Array(list) = list {
        list.extend(added);
    }
}

fn value<T: serde::Serialize>(record: T) -> Value {
    // Types of plain fields can always be serialized.
    serde_json::to_value(record).unwrap_or(Value::Null)
}

/// Returns a bind mount of a path of the host.
///
/// It always has `nosuid` and `nodev`. The host's own mounts may have these flags, and in a user
/// namespace a mount that drops them is refused.
#[must_use]
pub fn bind(source: &Path, destination: &str, flags: &[&str]) -> Mount {
    let options = OPTIONS.iter().chain(flags).map(|option| (*option).to_owned()).collect();
    let mut mount = Mount::default();
    mount
        .set_destination(destination.into())
        .set_typ(Some("bind".into()))
        .set_source(Some(source.to_owned()))
        .set_options(Some(options));
    mount
}

/// Returns a hook that runs `cgpu-runtime hook` with these arguments.
#[must_use]
pub fn hook(program: &Path, arguments: &[&str]) -> Hook {
    let args = HOOK_ARGUMENTS.iter().chain(arguments).map(|one| (*one).to_owned()).collect();
    let mut hook = Hook::default();
    hook.set_path(program.to_owned()).set_args(Some(args));
    hook
}

#[cfg(test)]
mod tests;
