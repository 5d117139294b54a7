//! Translation between NVML's process ids and those of the container.
//!
//! Old drivers report a process by its id on the host, whichever process calls. Newer ones (those
//! with the open kernel modules) report its id in the caller's PID namespace, and omit processes
//! that do not exist there. Nothing tells which kind a driver is, and the same number may mean one
//! of our processes to one kind and a neighbour's to the other. So:
//!
//! | what is known | an id reported by NVML means |
//! |---|---|
//! | the caller is in the host's PID namespace | our process with that id: both kinds agree |
//! | each of ours on the GPU is reported by its own id, and each reported id exists here | the same: the driver is of the newer kind |
//! | else | our process that the monitor knows by that id; without a monitor, none |
//!
//! The second row could only be wrong if an old driver reported neighbours under exactly the ids
//! that all of ours have here, and no process, not even the caller, under an id that does not exist
//! here. An ambiguous process is omitted. A figure may then be missing (briefly, while a process
//! begins: it is accounted before NVML reports it), but it is never another process's.

use crate::view::Member;

/// The PID namespace of this process.
pub trait Namespace {
    /// Returns whether it is the host's.
    fn is_hosts(&self) -> bool;
    /// Returns whether a process with this id exists in it.
    fn has(&self, pid: u32) -> bool;
}

/// The ids of this container's processes, as NVML reports them and as the container knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PidMap {
    /// NVML's id and the container's.
    pairs: Vec<(u32, u32)>,
}

impl PidMap {
    /// Maps the ids of `members`, where NVML now reports `listed` on their GPU.
    #[must_use]
    pub fn of(members: &[Member], listed: &[u32], namespace: &impl Namespace) -> Self {
        let reports_ids_of_the_namespace = || {
            let mut residents = members.iter().filter(|member| member.is_resident()).peekable();
            residents.peek().is_some()
                && residents.all(|member| listed.contains(&member.pid))
                && listed.iter().all(|pid| namespace.has(*pid))
        };
        let same = namespace.is_hosts() || reports_ids_of_the_namespace();
        let name = |member: &Member| if same { Some(member.pid) } else { member.host_pid };
        let pairs = members.iter().filter_map(|member| Some((name(member)?, member.pid)));
        Self { pairs: pairs.collect() }
    }

    /// Returns the container's id of the process that NVML reports as `nvml_pid`; `None` if it is
    /// not known to be the container's.
    #[must_use]
    pub fn container_pid(&self, nvml_pid: u32) -> Option<u32> {
        self.pairs.iter().find(|(name, _)| *name == nvml_pid).map(|(_, pid)| *pid)
    }

    /// Returns NVML's id of the container's process `pid`.
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
        // A neighbour has the id of a process of ours that is not on the GPU.
        assert_eq!(PidMap::of(&[member(7, None, 0)], &[7], &INSIDE).container_pid(7), None);
        // One of ours is not reported, so the driver is of the older kind.
        assert_eq!(
            PidMap::of(&[member(7, None, 5), member(9, None, 5)], &[7], &INSIDE).container_pid(7),
            None
        );
        // A reported process does not exist here.
        assert_eq!(PidMap::of(&[member(7, None, 5)], &[7, 700], &INSIDE).container_pid(7), None);
    }
}
