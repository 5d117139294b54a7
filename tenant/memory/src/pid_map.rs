//! Who a process is that NVML names.
//!
//! Old drivers name processes as the host does, whichever process asks. Newer ones (those with the
//! open kernel modules) name them as they are called in the PID namespace of the caller, and leave
//! out who does not exist there. Nothing tells which of the two one has to do with, and a number
//! alone may mean a process of ours to one and a neighbour to the other. So:
//!
//! | what is known | a number of NVML's means |
//! |---|---|
//! | we are in the host's own PID namespace | the process of ours that has it: the two namings are one |
//! | all of ours that are on the GPU are listed by their own ids, and all listed ones exist here | the same: NVML speaks as we do |
//! | else | the process of ours that the monitor knows by that number; without a monitor, none |
//!
//! For the second line to be wrong, an old driver would have to list neighbours under exactly the
//! numbers that all of ours have in here, and no process, not even ourselves, under one that does
//! not exist here. What cannot be told is left out: a figure may be missing then (for an instant
//! while a process begins: it is accounted before NVML lists it), never be another process's.

use crate::view::Member;

/// The PID namespace that this process lives in.
pub trait Namespace {
    /// Whether it is the host's own.
    fn is_hosts(&self) -> bool;
    /// Whether a process of that id exists in it.
    fn has(&self, pid: u32) -> bool;
}

/// What NVML calls the processes of this container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PidMap {
    /// NVML's name and ours.
    pairs: Vec<(u32, u32)>,
}

impl PidMap {
    /// The names of `members`, where NVML now lists `listed` on their GPU.
    #[must_use]
    pub fn of(members: &[Member], listed: &[u32], namespace: &impl Namespace) -> Self {
        let speaks_as_we_do = || {
            let mut residents = members.iter().filter(|member| member.is_resident()).peekable();
            residents.peek().is_some()
                && residents.all(|member| listed.contains(&member.pid))
                && listed.iter().all(|pid| namespace.has(*pid))
        };
        let same = namespace.is_hosts() || speaks_as_we_do();
        let name = |member: &Member| if same { Some(member.pid) } else { member.host_pid };
        let pairs = members.iter().filter_map(|member| Some((name(member)?, member.pid)));
        Self { pairs: pairs.collect() }
    }

    /// Our name for the process that NVML calls `nvml_pid`; none: it is none of ours, as far as can
    /// be told.
    #[must_use]
    pub fn container_pid(&self, nvml_pid: u32) -> Option<u32> {
        self.pairs.iter().find(|(name, _)| *name == nvml_pid).map(|(_, pid)| *pid)
    }

    /// NVML's name for the container's process `pid`.
    #[must_use]
    pub fn nvml_pid(&self, pid: u32) -> Option<u32> {
        self.pairs.iter().find(|(_, known)| *known == pid).map(|(name, _)| *name)
    }
}

#[cfg(test)]
mod tests {
    use cgpu_shm::units::Bytes;

    use super::*;

    struct Here {
        hosts: bool,
        pids: &'static [u32],
    }

    impl Namespace for Here {
        fn is_hosts(&self) -> bool {
            self.hosts
        }

        fn has(&self, pid: u32) -> bool {
            self.pids.contains(&pid)
        }
    }

    const INSIDE: Here = Here { hosts: false, pids: &[1, 7, 9] };

    fn member(pid: u32, host_pid: Option<u32>, memory: u64) -> Member {
        Member { pid, host_pid, memory: Bytes(memory), peak: Bytes(memory) }
    }

    #[test]
    fn pid_on_the_host_is_itself() {
        let host = Here { hosts: true, pids: &[] };
        let pid_map = PidMap::of(&[member(700, None, 5)], &[700, 800], &host);
        assert_eq!((pid_map.container_pid(700), pid_map.nvml_pid(700)), (Some(700), Some(700)));
        assert_eq!(pid_map.container_pid(800), None, "a neighbour's");
    }

    #[test]
    fn host_pid_is_translated_by_the_monitors_report() {
        let members = [member(7, Some(700), 5), member(9, None, 5)];
        let pid_map = PidMap::of(&members, &[700, 900, 7, 9], &INSIDE);
        assert_eq!((pid_map.container_pid(700), pid_map.nvml_pid(7)), (Some(7), Some(700)));
        assert_eq!(
            (pid_map.container_pid(7), pid_map.container_pid(9), pid_map.container_pid(900)),
            (None, None, None),
            "neighbours' numbers"
        );
    }

    #[test]
    fn container_pid_needs_no_monitor() {
        let members = [member(7, Some(700), 5), member(9, None, 0)];
        let pid_map = PidMap::of(&members, &[7], &INSIDE);
        assert_eq!(
            (pid_map.container_pid(7), pid_map.container_pid(9), pid_map.container_pid(700)),
            (Some(7), Some(9), None)
        );
    }

    #[test]
    fn ambiguous_pid_is_no_process_of_the_container() {
        // A neighbour under the number of a process of ours that is not on the GPU.
        assert_eq!(PidMap::of(&[member(7, None, 0)], &[7], &INSIDE).container_pid(7), None);
        // One of ours is not listed, as it would be by a driver that speaks as we do.
        assert_eq!(
            PidMap::of(&[member(7, None, 5), member(9, None, 5)], &[7], &INSIDE).container_pid(7),
            None
        );
        // A process is listed that does not exist here.
        assert_eq!(PidMap::of(&[member(7, None, 5)], &[7, 700], &INSIDE).container_pid(7), None);
    }
}
