//! Whose a process can be by its control groups, which neither it nor another container can choose.
//!
//! Container engines call a container's group by its 64 digits: `/docker/ID`, `/kubepods/.../cri-containerd-ID.scope`. One inside another has both.

use std::collections::BTreeSet;
use std::fs;

/// What `/proc/PID/cgroup` says.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cgroups(String);

impl Cgroups {
    /// None: there is no such process.
    pub(super) fn of(pid: u32) -> Option<Self> {
        fs::read_to_string(format!("/proc/{pid}/cgroup")).ok().map(Self)
    }

    /// Every engine's name on the way to the process.
    fn all(&self) -> BTreeSet<&str> {
        self.0.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| is_id(word)).collect()
    }

    /// The names of the container itself, and of none that it is in. One, but for strange set-ups.
    fn own(&self) -> BTreeSet<&str> {
        let last =
            |line| str::split(line, |c: char| !c.is_ascii_alphanumeric()).rfind(|word| is_id(word));
        self.0.lines().filter_map(last).collect()
    }

    /// Whether they are the groups of the container of this name.
    pub(super) fn are_of(&self, id: &str) -> bool {
        self.own().contains(id)
    }

    /// Whether the process can be of the container that this one, which is proved to be, is of: in its engine's group, or further in.
    pub(super) fn can_be_with(&self, verified: &Self) -> bool {
        let own = verified.own();
        if own.is_empty() { self.all().is_empty() } else { own.is_subset(&self.all()) }
    }

    /// The same for one of which nothing but its PID namespace is known, which is easily joined: where no engine names them, both must be
    /// in the very same groups.
    pub(super) fn are_with(&self, verified: &Self) -> bool {
        self.can_be_with(verified) && (!verified.own().is_empty() || self == verified)
    }
}

/// A container engine's name for a container.
pub(super) fn is_id(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|digit| digit.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn innermost_cgroup_names_the_container() {
        let (a, b) = ("a".repeat(64), "0123456789abcdef".repeat(4));
        for (groups, fits) in [
            (format!("0::/docker/{b}\n"), true),
            (format!("0::/system.slice/docker-{b}.scope\n"), true),
            (format!("12:cpu:/kubepods/burstable/pod1/cri-containerd-{b}.scope\n1:x:/\n"), true),
            (format!("0::/docker/{a}/docker/{b}\n"), true),
            (format!("0::/docker/{b}/docker/{a}\n"), false),
            (format!("0::/docker/{b}0\n"), false),
            (format!("0::/docker/{}\n", &b[1..]), false),
            (String::new(), false),
        ] {
            assert_eq!(Cgroups(groups.clone()).are_of(&b), fits, "{groups}");
        }
    }

    #[test]
    fn process_that_joins_a_namespace_keeps_its_cgroup() {
        let (a, b) = ("a".repeat(64), "b".repeat(64));
        let groups = |text: String| Cgroups(text);
        let docker = |id: &str| groups(format!("5:pids:/docker/{id}\n0::/docker/{id}\n"));
        let nested = groups(format!("0::/docker/{a}/docker/{b}\n"));
        let (user, session) = (groups("0::/user\n".into()), groups("0::/session\n".into()));
        // Process, one that is proved, by descent, by namespace.
        for (process, verified, descends, shares) in [
            (&docker(&a), &docker(&a), true, true),
            (&docker(&b), &docker(&a), false, false),
            (&nested, &docker(&a), true, true),
            (&docker(&a), &nested, false, false),
            (&docker(&b), &user, false, false),
            (&user, &docker(&a), false, false),
            (&user, &user, true, true),
            // A container that no engine names may start sessions; who comes from elsewhere is not one.
            (&session, &user, true, false),
        ] {
            let found = (process.can_be_with(verified), process.are_with(verified));
            assert_eq!(found, (descends, shares), "{process:?} {verified:?}");
        }
    }
}
