//! Which container a process can belong to by its control groups.
//!
//! Container engines name a container's group after its id of 64 hexadecimal digits: `/docker/ID`,
//! `/kubepods/.../cri-containerd-ID.scope`. Others can name groups after a container, too: a user
//! to whom systemd has delegated a group, a container that may write its own, the parent that a
//! user chooses for a container. So the name alone says little. A process belongs to a container
//! if it is in the group of the container's first process, or below: the engine puts that process
//! there, and its number is recorded before a program of the container runs. Of several such
//! groups the innermost counts: an engine has put a container below another one.
//!
//! Where the first process is not known, the outermost id of a known container counts: what a
//! container can write itself is below its own group.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::stat::folder;

/// The text of `/proc/PID/cgroup`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cgroups(String);

impl Cgroups {
    /// Reads a process's groups. None: there is no such process.
    pub(super) fn of(pid: u32) -> Option<Self> {
        // A name in a path may be any bytes.
        let read = |folder: &Path| {
            let text = fs::read(folder.join("cgroup")).ok()?;
            Some(Self(String::from_utf8_lossy(&text).into_owned()))
        };
        Self::named_or(read(Path::new(&format!("/proc/{pid}")))?, || read(&folder(pid)))
    }

    /// Returns the groups of a main thread, or those of a thread that lives: a process can have
    /// very many threads that do not. Control groups of version 2 show a container's id in both.
    fn named_or(main: Self, living: impl FnOnce() -> Option<Self>) -> Option<Self> {
        if main.all().is_empty() { living() } else { Some(main) }
    }

    /// Returns all container ids in the paths.
    pub(super) fn all(&self) -> BTreeSet<&str> {
        words(&self.0).filter(|word| is_id(word)).collect()
    }

    /// Returns the container's groups, if these are the groups of its first process: each line up
    /// to the group that the engine has named after the id. Empty: it has named none.
    pub(super) fn named_after<'a>(&'a self, id: &str) -> Vec<&'a str> {
        let group = |line: &'a str| {
            let mut end = 0;
            line.split_inclusive('/').find_map(|name| {
                end += name.len();
                words(name).any(|word| word == id).then(|| line.get(..end))?
            })
        };
        self.0.lines().filter_map(group).map(|group| group.trim_end_matches('/')).collect()
    }

    /// Returns how deep the process is below the root in a container's groups; none: it is in none
    /// of them.
    pub(super) fn depth_in(&self, groups: &[&str]) -> Option<usize> {
        let is_in = |group: &&&str| {
            self.0.lines().any(|line| {
                line.strip_prefix(**group)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
        };
        let depth = |group: &&str| group.matches('/').count();
        groups.iter().filter(is_in).map(depth).max()
    }

    /// Returns the ids of the innermost container; normally one.
    fn own(&self) -> BTreeSet<&str> {
        let last = |line| words(line).rfind(|word| is_id(word));
        self.0.lines().filter_map(last).collect()
    }

    /// Returns the ids of the outermost known container; normally one.
    pub(super) fn outermost(&self, is_known: impl Fn(&str) -> bool) -> BTreeSet<&str> {
        let first = |line| words(line).find(|word| is_id(word) && is_known(word));
        self.0.lines().filter_map(first).collect()
    }

    /// Whether the process can belong to the same container as the verified process: it is in the
    /// same engine's group, or further in.
    pub(super) fn can_be_with(&self, verified: &Self) -> bool {
        let own = verified.own();
        if own.is_empty() { self.all().is_empty() } else { own.is_subset(&self.all()) }
    }

    /// The same for a process of which only the PID namespace is known. A namespace is easily
    /// joined, so where no engine names the groups, both must be in exactly the same ones.
    pub(super) fn are_with(&self, verified: &Self) -> bool {
        self.can_be_with(verified) && (!verified.own().is_empty() || self == verified)
    }
}

fn words(text: &str) -> impl DoubleEndedIterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric())
}

/// Whether a name is a container id of an engine.
pub(super) fn is_id(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|digit| digit.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outermost_known_cgroup_names_the_container() {
        let (a, b) = ("a".repeat(64), "0123456789abcdef".repeat(4));
        let (both, one) = ([a.clone(), b.clone()], [b.clone()]);
        for (groups, known, found) in [
            (format!("0::/docker/{b}\n"), &both[..], Some(&b)),
            (format!("0::/system.slice/docker-{b}.scope\n"), &both, Some(&b)),
            (
                format!("12:cpu:/kubepods/burstable/pod1/cri-containerd-{b}.scope\n1:x:/\n"),
                &both,
                Some(&b),
            ),
            // The outer container is not known: a node that is a container itself.
            (format!("0::/docker/{a}/docker/{b}\n"), &one, Some(&b)),
            // A container names a group within its own after its neighbour.
            (format!("0::/docker/{a}/libpod-{b}.scope\n"), &both, Some(&a)),
            (format!("0::/docker/{b}/docker/{a}\n"), &one, Some(&b)),
            (format!("0::/docker/{b}0\n"), &both, None),
            (format!("0::/docker/{}\n", &b[1..]), &both, None),
            (String::new(), &both, None),
        ] {
            let expected: BTreeSet<&str> = found.into_iter().map(String::as_str).collect();
            let own = Cgroups(groups.clone());
            let is_known = |id: &str| known.iter().any(|one| one == id);
            assert_eq!(own.outermost(is_known), expected, "{groups}");
        }
    }

    #[test]
    fn container_is_where_its_first_process_is() {
        let (a, b) = ("a".repeat(64), "b".repeat(64));
        let groups = |text: &str| Cgroups(text.replace('A', &a).replace('B', &b));
        for (first, group, own, depth) in [
            ("0::/docker/A\n", "0::/docker/A\n", &["0::/docker/A"][..], Some(2)),
            // A process further in; one that its container has moved.
            ("0::/docker/A\n", "0::/docker/A/x/y\n", &["0::/docker/A"], Some(2)),
            ("0::/docker/A/init\n", "0::/docker/A/x\n", &["0::/docker/A"], Some(2)),
            // A group of the same name elsewhere: a user's own, a parent that a user has chosen.
            (
                "0::/s/docker-A.scope\n",
                "0::/user@7/docker-A.scope\n",
                &["0::/s/docker-A.scope"],
                None,
            ),
            ("0::/docker/A\n", "0::/A/B\n", &["0::/docker/A"], None),
            ("0::/A/B\n", "0::/A/B\n", &["0::/A"], Some(1)),
            ("0::/docker/A\n", "0::/docker/A0\n", &["0::/docker/A"], None),
            // Version 1: any of the hierarchies.
            (
                "5:pids:/docker/A\n1:x:/\n",
                "5:pids:/docker/A\n1:x:/other\n",
                &["5:pids:/docker/A"],
                Some(2),
            ),
            ("5:pids:/docker/A\n", "4:cpu:/docker/A\n", &["5:pids:/docker/A"], None),
            ("0::/user.slice\n", "0::/user.slice\n", &[], None),
        ] {
            let first = groups(first);
            let found = first.named_after(&a);
            let own: Vec<_> = own.iter().map(|own| own.replace('A', &a)).collect();
            assert_eq!(found, own);
            assert_eq!(groups(group).depth_in(&found), depth, "{group}");
        }
    }

    #[test]
    fn living_thread_is_searched_for_only_where_no_container_is_named() {
        let named = Cgroups(format!("5:pids:/\n0::/docker/{}\n", "a".repeat(64)));
        let is_searched = |main: &Cgroups| {
            let mut is_searched = false;
            Cgroups::named_or(main.clone(), || {
                is_searched = true;
                Some(named.clone())
            });
            is_searched
        };
        assert!(!is_searched(&named));
        assert!(is_searched(&Cgroups("5:pids:/\n0::/user.slice\n".into())));
    }

    #[test]
    fn process_that_joins_a_namespace_keeps_its_cgroup() {
        let (a, b) = ("a".repeat(64), "b".repeat(64));
        let groups = |text: String| Cgroups(text);
        let docker = |id: &str| groups(format!("5:pids:/docker/{id}\n0::/docker/{id}\n"));
        let nested = groups(format!("0::/docker/{a}/docker/{b}\n"));
        let (user, session) = (groups("0::/user\n".into()), groups("0::/session\n".into()));
        // Process, verified process, accepted by ancestry, accepted by namespace.
        for (process, verified, by_ancestry, by_namespace) in [
            (&docker(&a), &docker(&a), true, true),
            (&docker(&b), &docker(&a), false, false),
            (&nested, &docker(&a), true, true),
            (&docker(&a), &nested, false, false),
            (&docker(&b), &user, false, false),
            (&user, &docker(&a), false, false),
            (&user, &user, true, true),
            // Processes of a container that no engine names may start sessions; a process from
            // another session that only joined the namespace is not accepted.
            (&session, &user, true, false),
        ] {
            let found = (process.can_be_with(verified), process.are_with(verified));
            assert_eq!(found, (by_ancestry, by_namespace), "{process:?} {verified:?}");
        }
    }
}
