//! Nodes of the control tree as people write them: containers by name or by the start of their id,
//! policies by name, memory with its unit.

use std::ffi::OsStr;

use anyhow::{Result, bail};
use cgpu_client::message::ContainerStatus;

use crate::memory::Memory;
use crate::table;

/// Likeness from which a name is suggested, of 1; clap suggests options from the same one.
const LIKE: f64 = 0.7;

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
/// without one, and one that fits no container on the GPU, stays: the monitor says what is wrong
/// with it.
///
/// # Errors
/// It fits several containers.
pub(crate) fn resolved(path: &str, containers: &[ContainerStatus]) -> Result<String> {
    let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let Some(typed) = parts.get(1).copied() else { return Ok(path.to_owned()) };
    let is_on =
        |one: &&ContainerStatus| one.gpus.iter().any(|share| share.gpu.to_string() == parts[0]);
    let containers: Vec<_> = containers.iter().filter(is_on).cloned().collect();
    let Some(container) = find(typed, &containers)? else { return Ok(path.to_owned()) };
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
        |container, typed| {
            // The whole id of an engine's container is the name of its folder.
            let whole = container.dir.file_name().and_then(OsStr::to_str).unwrap_or_default();
            !typed.is_empty() && [&*container.id, whole].iter().any(|id| id.starts_with(typed))
        },
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

/// Returns the path that is most like one that does not exist, if any is. `list` returns the names
/// in a folder, with a `/` at the end of folders.
pub(crate) fn suggested(
    path: &str,
    containers: &[ContainerStatus],
    mut list: impl FnMut(&str) -> Vec<String>,
) -> Option<String> {
    let parts: Vec<&str> = path.split('/').collect();
    for (at, &typed) in parts.iter().enumerate() {
        let names = list(&parts[..at].join("/"));
        let mut names: Vec<&str> = names.iter().map(|name| name.trim_end_matches('/')).collect();
        if names.contains(&typed) {
            continue;
        }
        // A container without a GPU before it, or with another one than its own.
        if at <= 1
            && let Some(container) = find(typed, containers).ok()?
        {
            let rest = parts[at..].join("/");
            return Some(format!("{}/{rest}", container.gpus.first()?.gpu));
        }
        if at == 1 {
            let is_there = |one: &&ContainerStatus| {
                one.gpus.iter().any(|share| share.gpu.to_string() == parts[0])
            };
            let there = containers.iter().filter(is_there);
            names.extend(there.map(|container| container.name.as_str()));
        }
        let likeness = |name: &&str| strsim::jaro(typed, name);
        let best = names.into_iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        let best = best.filter(|best| likeness(best) > LIKE)?;
        return Some([&parts[..at], &[best], &parts[at + 1..]].concat().join("/"));
    }
    None
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use cgpu_client::message::ShareStatus;

    #[test]
    fn misspelt_path_suggests_the_most_similar_one() {
        let mut containers = containers();
        for container in &mut containers {
            container.gpus = vec![ShareStatus { gpu: 1.into(), ..ShareStatus::default() }];
        }
        let list = |folder: &str| match folder {
            "" => vec!["version".into(), "default_memsize".into(), "0/".into(), "1/".into()],
            "0" => vec!["policy".into()],
            "1" => vec!["policy".into(), "max_inst".into(), "5a5a01/".into()],
            "1/5a5a01" | "1/trainer" => vec!["memsize".into(), "weight".into()],
            _ => Vec::new(),
        };
        for (typed, meant) in [
            ("1/polcy", Some("1/policy")),
            ("1/triner/weight", Some("1/trainer/weight")),
            ("1/5a5a01/wieght", Some("1/5a5a01/weight")),
            ("verson", Some("version")),
            ("trainer/weight", Some("1/trainer/weight")),
            ("0/trainer/weight", Some("1/trainer/weight")),
            ("0/triner/weight", None),
            ("1/else", None),
            ("2/policy", None),
            ("1/policy/x", None),
        ] {
            assert_eq!(suggested(typed, &containers, list).as_deref(), meant, "{typed}");
        }
    }

    #[test]
    fn container_is_found_by_its_whole_id() {
        let id = "c1588a883d44ecf48c36580329433c5d8035995b1696df51c76410942dfc0f5a";
        let dir = Path::new("/run/cgpu/containers").join(id);
        let gpus = vec![ShareStatus::default()];
        let id12 = id[..12].into();
        let container = ContainerStatus { id: id12, dir, gpus, ..ContainerStatus::default() };
        let path = resolved(&format!("0/{id}/weight"), &[container]).unwrap();
        assert_eq!(path, "0/c1588a883d44/weight");
    }

    fn containers() -> Vec<ContainerStatus> {
        [("5a5a01", "trainer"), ("5a5b02", "server"), ("server", "other"), ("77aa", "server")]
            .map(|(id, name)| ContainerStatus {
                id: id.into(),
                name: name.into(),
                gpus: vec![ShareStatus::default()],
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
            ("1/trainer/weight", "1/trainer/weight"),
            ("0/policy", "0/policy"),
            ("version", "version"),
            ("", ""),
        ] {
            assert_eq!(resolved(typed, &containers).unwrap(), path, "{typed}");
        }
        let message = resolved("0/5a/weight", &containers).unwrap_err().to_string();
        assert_eq!(message, "\"5a\" fits several containers: 5a5a01, 5a5b02");
    }

    /// A program of `cgpu run` may have the name of an engine's container on another GPU.
    #[test]
    fn container_on_another_gpu_is_not_meant() {
        let mut containers = containers();
        containers[2].gpus.clear();
        containers[3].gpus.clear();
        assert_eq!(resolved("0/server/weight", &containers).unwrap(), "0/5a5b02/weight");
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
