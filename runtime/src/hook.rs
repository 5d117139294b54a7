//! What we do when a container's namespaces are there, and when it is deleted. Its engine's runtime calls us by the hooks in its
//! configuration, with the container's state on the input.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cgpu_monitor::client::{Client, Failure};
use cgpu_monitor::message::Registration;
use cgpu_proto::paths;
use oci_spec::runtime::State;

use crate::folder::Folder;

/// Runs `hook created --root DIR` or `hook stopped --root DIR`, the word `hook` not among the arguments.
///
/// # Errors
/// The container is not to be started, or its folder cannot be removed.
pub fn run(arguments: &[OsString]) -> Result<()> {
    let [what, option, root] = arguments else { bail!("expected: hook created|stopped --root DIR") };
    if option != "--root" {
        bail!("expected --root, found {}", option.display());
    }
    let root = PathBuf::from(root);
    let mut text = Vec::new();
    std::io::stdin().lock().read_to_end(&mut text).context("the container's state cannot be read")?;
    let state: State = serde_json::from_slice(&text).context("the container's state is not understood")?;
    let folder = Folder::of(&root, state.id())?;
    match what.to_str() {
        Some("created") => created(&root, &folder, *state.pid()),
        Some("stopped") => folder.remove(),
        _ => bail!("expected created or stopped, found {}", what.display()),
    }
}

/// Notes the first process, and tells the monitor, if there is one. A monitor that says no has a reason: the container is then not
/// started. Without one, or with one that does not answer, memory limits hold all the same, and it is found when one comes.
fn created(root: &Path, folder: &Folder, pid: Option<i32>) -> Result<()> {
    let pid = pid.context("the container's state tells no process")?;
    folder.note_first(pid)?;
    let registration = Registration {
        dir: folder.path().to_owned(),
        name: None,
        weight: None,
        percent: None,
        high_priority: None,
        limits: Vec::new(),
        pid: Some(pid),
    };
    match Client::connect(&paths::socket(root)).and_then(|mut monitor| monitor.register(registration)) {
        Ok(registered) => registered.warnings.iter().for_each(|warning| eprintln!("cgpu: {warning}")),
        Err(Failure::Refused(refusal)) => return Err(refusal.into()),
        Err(Failure::Absent(..) | Failure::Broken(..)) => {}
    }
    Ok(())
}
