//! Any arguments of `cgpu-runtime`. They are refused, or go to the next runtime unchanged except
//! for cgpu's own. A `create` is recognized, and a container's folder is below the root.
//!
//! An input is the arguments, separated by line breaks.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use cgpu_runtime::folder::Folder;
use cgpu_runtime::invocation::Invocation;

/// Commands that make a container.
const CREATES: [&str; 3] = ["create", "run", "restore"];

/// Whether the command follows options of the form `--name=value` alone, and is one of `CREATES`.
/// Then every runtime reads it so.
fn is_plain_create(arguments: &[OsString]) -> bool {
    let is_plain = |argument: &&OsString| {
        argument.as_bytes().strip_prefix(b"--").is_some_and(|option| option.contains(&b'='))
    };
    let command = arguments.iter().find(|argument| !is_plain(argument));
    command.is_some_and(|command| CREATES.iter().any(|create| command == create))
}

/// Names of cgpu's own options.
const OWN: [&[u8]; 2] = [b"cgpu-config", b"cgpu-next"];

/// Returns the value, if there is one, of an argument that has the form of an own option.
fn own(argument: &OsString) -> Option<Option<&[u8]>> {
    let option = argument.as_bytes().strip_prefix(b"--")?;
    let mut parts = option.splitn(2, |byte| *byte == b'=');
    parts.next().filter(|name| OWN.contains(name))?;
    Some(parts.next())
}

/// Returns the arguments without cgpu's own, which stand before the command.
fn without_own(arguments: &[OsString], command: Option<&str>) -> Vec<OsString> {
    let (mut kept, mut rest) = (Vec::new(), arguments.iter());
    while let Some(argument) = rest.next() {
        match own(argument) {
            Some(Some(_)) => {}
            Some(None) => {
                rest.next();
            }
            None => {
                kept.push(argument.clone());
                if command.is_some_and(|command| argument == command) {
                    break;
                }
            }
        }
    }
    kept.extend(rest.cloned());
    kept
}

pub(crate) fn check(input: &[u8]) {
    // An argument cannot hold a NUL.
    let arguments: Vec<OsString> = input
        .split(|byte| *byte == b'\n')
        .map(|argument| argument.iter().copied().filter(|byte| *byte != 0).collect())
        .map(OsString::from_vec)
        .collect();
    let invocation = match Invocation::parse(arguments.iter().cloned()) {
        Ok(invocation) => invocation,
        Err(refusal) => {
            let message = refusal.to_string();
            return assert!(!message.is_empty() && !message.contains('\n'), "{message}");
        }
    };
    assert!(!is_plain_create(&arguments) || invocation.creates(), "{arguments:?}");
    let command = invocation.command.as_deref();
    if let Some(command) = command {
        assert_eq!(invocation.arguments[invocation.arguments_before], command);
        // An option before may have the command, or the form of an own option, as its value.
        let before = &invocation.arguments[..invocation.arguments_before];
        if before.iter().all(|argument| argument != command && own(argument).is_none()) {
            assert_eq!(invocation.arguments, without_own(&arguments, Some(command)));
        }
    }
    let again = Invocation::parse(invocation.arguments.iter().cloned());
    let expected = Invocation { config: None, next: None, ..invocation.clone() };
    assert_eq!(again, Ok(expected), "what the next runtime gets is understood the same");
    let Some(id) = &invocation.id else { return };
    for arguments in [invocation.delete_arguments(), invocation.state_arguments()] {
        assert_eq!(arguments.last().map(OsString::as_os_str), Some(id.as_ref()));
    }
    if Folder::of(Path::new("/run/cgpu"), id).is_ok() {
        let name = Path::new(id).components().collect::<Vec<_>>();
        assert!(matches!(name[..], [std::path::Component::Normal(_)]), "{id:?}");
    }
}
