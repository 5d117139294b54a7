//! `cgpu cdi generate`: writes a CDI specification, for engines that run without `cgpu-runtime`.
//!
//! A specification has the same edits for every container, but each slice needs its own folder. So
//! the edits are hooks: `plan` runs where the host's GPUs can be listed, `mount` in the container's
//! mount namespace, and `clear` removes the slice.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{Failure, output, setup};

const KIND: &str = "cgpu.dev/slice";
/// The oldest version with all that is used, such as names that begin with a digit. Engines refuse
/// versions that they do not know.
const VERSION: &str = "0.5.0";
/// The slice that the container's own variables describe.
const ALL: &str = "all";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Write the specification, for a file that engines read such as /etc/cdi/cgpu.json
    Generate(Generate),
}

const CODES: &str = "Exit codes: 0 written; 1 not written; 2 invalid arguments.";

#[derive(Args)]
#[command(after_help = CODES)]
pub(crate) struct Generate {
    /// Add devices with a fixed limit on every GPU of the container: for `6`, the device 6GiB
    #[arg(long, value_name = "GIB,...", value_delimiter = ',')]
    gib: Vec<u32>,
    /// Write to this file [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Pass this configuration to cgpu-runtime [default: /etc/cgpu/runtime.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Use this cgpu-runtime [default: beside this program]
    #[arg(long, value_name = "PROGRAM")]
    runtime: Option<PathBuf>,
}

pub(crate) fn run(command: &Command) -> Result<ExitCode, Failure> {
    let Command::Generate(arguments) = command;
    let runtime = setup::program(arguments.runtime.as_deref(), true)?;
    let config = arguments
        .config
        .as_deref()
        .map(std::path::absolute)
        .transpose()
        .map_err(anyhow::Error::from)?;
    let text = format!("{:#}\n", specification(&runtime, config.as_deref(), &arguments.gib)?);
    match &arguments.output {
        Some(file) => {
            setup::put(file, &text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        None => {
            output::write(text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn specification(runtime: &str, config: Option<&Path>, gib: &[u32]) -> Result<Value> {
    ensure!(gib.iter().all(|amount| *amount > 0), "--gib 0: a slice needs at least 1 GiB");
    let hook = |name: &str, what: &str| {
        let mut args = vec!["cgpu-runtime".to_owned(), "hook".to_owned(), what.to_owned()];
        if let Some(config) = config {
            args.extend(["--config".to_owned(), config.to_string_lossy().into_owned()]);
        }
        json!({ "hookName": name, "path": runtime, "args": args })
    };
    let hooks = json!([
        hook("createRuntime", "plan"),
        hook("createContainer", "mount"),
        hook("poststart", "verify"),
        hook("poststop", "clear")
    ]);
    let mut devices = vec![json!({ "name": ALL, "containerEdits": { "hooks": hooks } })];
    let mut amounts = gib.to_vec();
    amounts.sort_unstable();
    amounts.dedup();
    devices.extend(amounts.iter().map(|amount| {
        let limit = format!("ALIYUN_COM_GPU_MEM_CONTAINER={amount}");
        let edits = json!({ "env": [limit, "CGPU_MEM_UNIT=GiB".to_owned()], "hooks": hooks });
        json!({ "name": format!("{amount}GiB"), "containerEdits": edits })
    }));
    Ok(json!({ "cdiVersion": VERSION, "kind": KIND, "devices": devices }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the rules of the CDI specification for what is used.
    #[test]
    fn specification_follows_the_cdi_format() {
        let text =
            specification("/usr/bin/cgpu-runtime", Some(Path::new("/c.toml")), &[8, 6, 6]).unwrap();
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&text), ["cdiVersion", "kind", "devices"]);
        let plain = |name: &str, inner: &str| {
            name.chars().all(|c| c.is_ascii_alphanumeric() || inner.contains(c))
                && name.chars().next().is_some_and(char::is_alphanumeric)
                && name.chars().next_back().is_some_and(char::is_alphanumeric)
        };
        let (vendor, class) = text["kind"].as_str().unwrap().split_once('/').unwrap();
        assert!(plain(vendor, "_-.") && plain(class, "_-"));
        let names: Vec<&str> = text["devices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["all", "6GiB", "8GiB"]);
        for device in text["devices"].as_array().unwrap() {
            assert!(plain(device["name"].as_str().unwrap(), "_-.:"));
            assert!(
                keys(&device["containerEdits"])
                    .iter()
                    .all(|key| ["env", "hooks"].contains(&key.as_str()))
            );
            for hook in device["containerEdits"]["hooks"].as_array().unwrap() {
                assert_eq!(keys(hook), ["hookName", "path", "args"]);
                assert!(
                    ["createRuntime", "createContainer", "poststart", "poststop"]
                        .contains(&hook["hookName"].as_str().unwrap())
                );
                assert!(hook["path"].as_str().unwrap().starts_with('/'));
            }
        }
        assert!(specification("/r", None, &[0]).is_err());
    }
}
