//! Nodes of the control tree as people write them: containers by name or by the start of their id,
//! policies by name, memory with its unit.

use anyhow::{Result, bail};
use cgpu_client::message::ContainerStatus;

use crate::memory::Memory;
use crate::table;

/// What a node's value means, by the node's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Policy,
    Bytes,
    Other,
}

impl Value {
    fn of(path: &str) -> Self {
        match path.rsplit('/').next() {
            Some("policy") => Self::Policy,
            Some("memsize" | "default_memsize") => Self::Bytes,
            _ => Self::Other,
        }
    }
}

/// Returns the value that the monitor expects for what was typed.
///
/// # Errors
/// The name of an unknown policy, or an amount that is none.
pub(crate) fn written(path: &str, value: &str) -> Result<String> {
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    match Value::of(path) {
        Value::Policy if value.starts_with(|first: char| first.is_ascii_alphabetic()) => {
            let name = value.to_ascii_lowercase();
            match table::POLICIES.iter().position(|known| *known == name) {
                Some(number) => Ok(number.to_string()),
                None => bail!(
                    "{value:?} is no policy: expected 0 to {} or one of {}",
                    table::POLICIES.len() - 1,
                    table::POLICIES.join(", ")
                ),
            }
        }
        Value::Bytes if !is_number && !value.starts_with('-') => {
            Ok(Memory::amount(value)?.0.to_string())
        }
        // Elsewhere a number without a unit is one of GiB.
        Value::Bytes if value.parse().is_ok_and(|bytes: u64| (1..1 << 20).contains(&bytes)) => {
            bail!("{value} bytes are less than 1 MiB: write the unit, such as {value}GiB")
        }
        _ => Ok(value.to_owned()),
    }
}

/// Returns a value as a person reads it.
pub(crate) fn readable(path: &str, value: &str) -> String {
    match (Value::of(path), value.parse::<usize>()) {
        (Value::Policy, Ok(number)) if number < table::POLICIES.len() => {
            format!("{value} ({})", table::POLICIES[number])
        }
        (Value::Bytes, Ok(bytes)) if bytes > 0 => {
            format!("{value} ({} MiB)", table::mib(bytes as u64))
        }
        _ => value.to_owned(),
    }
}

/// Replaces the name of a container in a path, or the start of its id, by its folder's name. A path
/// without one, and one that fits no container, stays: the monitor says what is wrong with it.
///
/// # Errors
/// It fits several containers.
pub(crate) fn resolved(path: &str, containers: &[ContainerStatus]) -> Result<String> {
    let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let Some(typed) = parts.get(1).copied() else { return Ok(path.to_owned()) };
    let Some(container) = find(typed, containers)? else { return Ok(path.to_owned()) };
    parts[1] = &container.id;
    Ok(parts.join("/"))
}

/// Finds a container by its folder's name, by its name, or by the start of its id.
///
/// # Errors
/// Several fit.
pub(crate) fn find<'a>(
    typed: &str,
    containers: &'a [ContainerStatus],
) -> Result<Option<&'a ContainerStatus>> {
    type Fits = fn(&ContainerStatus, &str) -> bool;
    let rules: [Fits; 3] = [
        |container, typed| container.id == typed,
        |container, typed| container.name == typed,
        |container, typed| !typed.is_empty() && container.id.starts_with(typed),
    ];
    for fits in rules {
        let found: Vec<_> = containers.iter().filter(|one| fits(one, typed)).collect();
        match found[..] {
            [] => {}
            [one] => return Ok(Some(one)),
            _ => {
                let ids: Vec<&str> = found.iter().map(|one| one.id.as_str()).collect();
                bail!("{typed:?} fits several containers: {}", ids.join(", "))
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn containers() -> Vec<ContainerStatus> {
        [("5a5a01", "trainer"), ("5a5b02", "server"), ("server", "other"), ("77aa", "server")]
            .map(|(id, name)| ContainerStatus {
                id: id.into(),
                name: name.into(),
                ..ContainerStatus::default()
            })
            .into()
    }

    #[test]
    fn container_is_found_by_folder_name_or_start_of_its_id() {
        let containers = containers();
        for (typed, path) in [
            ("0/trainer/weight", "0/5a5a01/weight"),
            ("0/5a5b/weight", "0/5a5b02/weight"),
            ("0/server/weight", "0/server/weight"),
            ("/0/7/", "0/77aa"),
            ("0/unknown/weight", "0/unknown/weight"),
            ("0/policy", "0/policy"),
            ("version", "version"),
            ("", ""),
        ] {
            assert_eq!(resolved(typed, &containers).unwrap(), path, "{typed}");
        }
        let message = resolved("0/5a/weight", &containers).unwrap_err().to_string();
        assert_eq!(message, "\"5a\" fits several containers: 5a5a01, 5a5b02");
    }

    #[test]
    fn values_are_written_as_people_write_them() {
        for (path, typed, value) in [
            ("0/policy", "weighted", "2"),
            ("0/policy", "Native", "5"),
            ("0/policy", "3", "3"),
            ("0/policy", "9", "9"),
            ("0/trainer/memsize", "6GiB", "6442450944"),
            ("default_memsize", "512MiB", "536870912"),
            ("0/trainer/memsize", "8589934592", "8589934592"),
            ("0/trainer/memsize", "-1", "-1"),
            ("0/trainer/memsize", "0", "0"),
            ("0/trainer/weight", "3", "3"),
        ] {
            assert_eq!(written(path, typed).unwrap(), value, "{path} {typed}");
        }
        for (path, typed, part) in [
            ("0/policy", "fast", "fair, preemptive"),
            ("0/a/memsize", "big", "such as"),
            ("0/a/memsize", "4", "such as 4GiB"),
        ] {
            let message = format!("{:#}", written(path, typed).unwrap_err());
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn values_are_shown_with_their_meaning() {
        for (path, value, shown) in [
            ("0/policy", "2", "2 (weighted)"),
            ("0/policy", "9", "9"),
            ("0/trainer/memsize", "6442450944", "6442450944 (6144 MiB)"),
            ("default_memsize", "0", "0"),
            ("0/trainer/weight", "3", "3"),
        ] {
            assert_eq!(readable(path, value), shown);
        }
    }
}
