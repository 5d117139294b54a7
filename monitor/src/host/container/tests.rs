use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;

use cgpu_shm::clock::{Clock, Monotonic};
use cgpu_shm::gpus::Gpu;
use cgpu_shm::layout::{self, Use, UseHeader};
use cgpu_shm::liveness::{Liveness, LivenessLock, liveness};
use cgpu_shm::region::{Region as Shared, RegionSpec};
use cgpu_shm::slots::{Claim, SlotOwner};

use super::*;

impl Container {
    /// Makes an access to its files on this thread.
    pub(in crate::host) fn access(&mut self, now: Nanos) -> Found {
        let Some(request) = self.begin_access(now, 1, true) else { return Found::default() };
        self.end_access(now, request.run(liveness), 1)
    }
}

const GPU: Uuid = Uuid([7; 16]);

/// A container with its files, which have one GPU with a limit of 1000 bytes.
struct Fixture {
    container: Container,
    shared: Shared,
    directory: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        Shared::make(
            directory.path(),
            RegionSpec { name: "", created: Nanos(1), time_scale: None },
        )
        .unwrap();
        let shared = Shared::open(directory.path()).unwrap();
        let container = Container::new(TenantId(1), "a".into(), directory.path().to_owned());
        let mut fixture = Self { container, shared, directory };
        let first = fixture.claim();
        let gpu = Gpu { uuid: GPU, total: Bytes(9000), limit: Bytes(1000), ordinal: 0 };
        fixture.shared.register(first.slot, &gpu).unwrap();
        drop(first);
        fixture.refresh();
        fixture
    }

    /// Claims a slot for a process, which lives as long as the claim.
    fn claim(&self) -> Claim<LivenessLock> {
        let owner = SlotOwner { pid: std::process::id(), comm: b"p" };
        self.shared.claim(owner, Nanos(1), true).unwrap().unwrap()
    }

    /// Refreshes the container, and queries its locks.
    fn refresh(&mut self) {
        self.container.access(Monotonic.now());
        self.container.region.as_mut().unwrap().refresh();
        self.container.access(Monotonic.now());
    }

    /// Overwrites part of the container's own file, as a container can.
    fn write(&self, offset: usize, bytes: &[u8]) {
        let file = File::options().write(true).open(self.directory.path().join("use")).unwrap();
        file.write_all_at(bytes, u64::try_from(offset).unwrap()).unwrap();
    }
}

const NOW: Nanos = Nanos::from_millis(1);

/// Ends a search, which finds the test's own process for all slots, each time with a descriptor.
fn own_process(search: &mut Search) -> Vec<(SlotProcess, Option<FoundProcess>)> {
    let own = rustix::process::getpid();
    let one = || FoundProcess {
        id: ProcessId::of(std::process::id()).unwrap(),
        exit: Some(rustix::process::pidfd_open(own, PidfdFlags::empty()).unwrap()),
    };
    search.processes.drain(..).map(|process| (process, Some(one()))).collect()
}

/// Offset of the only GPU in `use`.
const RECORD: usize = offset_of!(Use, header) + offset_of!(UseHeader, gpu);

#[test]
fn container_with_many_slots_has_one_search_at_a_time() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.container.begin_search(NOW), None);
    let mut claims: Vec<_> = (0..100).map(|_| fixture.claim()).collect();
    fixture.refresh();
    let mut search = fixture.container.begin_search(NOW).unwrap();
    assert_eq!(search.processes.len(), 100);
    for _ in 0..50 {
        claims.push(fixture.claim());
        fixture.refresh();
        assert_eq!(fixture.container.begin_search(NOW), None, "a search is pending");
    }
    assert!(!fixture.container.identity().searched);
    let found = own_process(&mut search);
    let polled = fixture.container.found(NOW, search, found, Nanos::ZERO);
    assert_eq!(fixture.container.host_ids.len(), 100);
    // Their exits are polled for, up to a bound that leaves descriptors for other containers.
    assert_eq!((polled.len(), fixture.container.exits.len()), (MAX_EXIT_WATCHES, MAX_EXIT_WATCHES));
    let rest = fixture.container.begin_search(NOW).unwrap();
    assert_eq!(rest.processes.len(), 50);
    // A result for files that were replaced meanwhile is ignored, and the next search may begin.
    let mut elsewhere = rest.clone();
    elsewhere.file = (0, 0);
    let found = own_process(&mut elsewhere);
    assert_eq!(fixture.container.found(NOW, elsewhere, found, Nanos::ZERO), []);
    assert_eq!(fixture.container.host_ids.len(), 100);
    assert_eq!(fixture.container.begin_search(NOW).as_ref(), Some(&rest));
    // An interrupted one goes on before the next one begins.
    let late = fixture.claim();
    fixture.refresh();
    let mut rest = rest;
    let not_found = |rest: &mut Search, count: usize| {
        rest.processes.drain(..count).map(|process| (process, None)).collect()
    };
    let first = not_found(&mut rest, 20);
    fixture.container.found(NOW, rest.clone(), first, Nanos::ZERO);
    assert!(!fixture.container.identity().searched);
    assert_eq!(fixture.container.begin_search(NOW).as_ref(), Some(&rest));
    let second = not_found(&mut rest, 30);
    fixture.container.found(NOW, rest, second, Nanos::ZERO);
    drop(late);
    fixture.refresh();
    assert!(fixture.container.identity().searched, "found or not, all have been searched for");
}

#[test]
fn search_that_has_left_out_a_process_is_made_again_and_keeps_no_new_one_waiting() {
    let mut fixture = Fixture::new();
    let _first = fixture.claim();
    fixture.refresh();
    let mut search = fixture.container.begin_search(NOW).unwrap();
    search.left_out.extend(search.processes.drain(..).map(|process| process.pid));
    fixture.container.found(NOW, search, Vec::new(), Nanos::ZERO);
    assert!(!fixture.container.identity().searched);
    let _second = fixture.claim();
    fixture.refresh();
    assert_eq!(fixture.container.begin_search(NOW + AGAIN - Nanos(1)), None);
    let search = fixture.container.begin_search(NOW + AGAIN).unwrap();
    assert_eq!((search.processes.len(), search.is_partial()), (2, false));
}

#[test]
fn costly_search_delays_the_next_one_of_its_container() {
    let mut fixture = Fixture::new();
    let _first = fixture.claim();
    fixture.refresh();
    let mut search = fixture.container.begin_search(NOW).unwrap();
    let used = Nanos::from_millis(1);
    let found = own_process(&mut search);
    fixture.container.found(NOW, search, found, used);
    let _second = fixture.claim();
    fixture.refresh();
    let next = NOW + Nanos(used.0 * SEARCH_RATIO);
    assert_eq!(fixture.container.begin_search(next - Nanos(1)), None);
    assert!(fixture.container.begin_search(next).is_some());
}

#[test]
fn process_that_left_its_slot_still_belongs_to_its_container() {
    let mut fixture = Fixture::new();
    let claim = fixture.claim();
    fixture.refresh();
    let mut search = fixture.container.begin_search(NOW).unwrap();
    let own = ProcessId::of(std::process::id()).unwrap();
    let found = own_process(&mut search);
    fixture.container.found(NOW, search, found, Nanos::ZERO);
    assert_eq!(fixture.container.exits.len(), 1);
    let identity = fixture.container.identity();
    assert_eq!((identity.verified, identity.former), (vec![own], vec![]));
    drop(claim);
    fixture.refresh();
    fixture.container.note_exits(Nanos(5));
    assert!(fixture.container.exits.is_empty());
    let identity = fixture.container.identity();
    assert_eq!((identity.verified, identity.former, identity.closed), (vec![], vec![own], false));
}

#[test]
fn unreadable_region_is_not_an_unused_one() {
    let fixture = Fixture::new();
    let identity = fixture.container.identity().file;
    assert!(identity.is_some() && !fixture.container.identity().closed);
    fixture.write(0, &(layout::LAYOUT_VERSION + 7).to_ne_bytes());
    let mut other = Container::new(TenantId(2), "b".into(), fixture.directory.path().to_owned());
    assert!(!other.access(NOW).region);
    assert_eq!((other.identity().file, other.identity().closed), (identity, true));
    // A directory without files is not an error.
    let empty = tempfile::tempdir().unwrap();
    let mut none = Container::new(TenantId(3), "c".into(), empty.path().to_owned());
    assert!(!none.access(NOW).region);
    assert_eq!((none.identity().file, none.identity().closed), (None, false));
}

#[test]
fn containers_claim_about_its_gpus_is_not_trusted() {
    let mut fixture = Fixture::new();
    assert_eq!((fixture.container.may_share(GPU), fixture.container.disowns(GPU)), (None, false));
    fixture.write(RECORD, &[9; 16]);
    fixture.refresh();
    assert_eq!((fixture.container.may_share(GPU), fixture.container.disowns(GPU)), (None, true));
    assert_eq!(fixture.container.identity().unnamed, [], "it may have none");
    fixture.container.limits.gpus.push((GPU, Bytes(500)));
    assert_eq!(fixture.container.may_share(GPU), Some(true));
    assert_eq!(fixture.container.may_share(Uuid([9; 16])), Some(false));
    assert_eq!(fixture.container.identity().unnamed, [GPU]);
    assert_eq!(fixture.container.requested_limit(GPU), Some(Bytes(500)));
    fixture.write(RECORD + offset_of!(layout::Gpu, limit), &u64::MAX.to_ne_bytes());
    fixture.refresh();
    assert_eq!(fixture.container.requested_limit(GPU), Some(Bytes(500)));
}

#[test]
fn container_cannot_erase_a_gpu_that_it_has_named() {
    let mut fixture = Fixture::new();
    let (other, count) = (Uuid([9; 16]), offset_of!(Use, header) + offset_of!(UseHeader, gpus));
    fixture.container.region.as_mut().unwrap().keep_gpu(other);
    fixture.container.region.as_mut().unwrap().keep_gpu(GPU);
    let index = DeviceIndex::new(0);
    for (at, bytes) in [(RECORD, &other.0[..]), (count, &[0; 4])] {
        fixture.write(at, bytes);
        fixture.refresh();
        let region = fixture.container.region.as_ref().unwrap();
        assert_eq!((region.gpu(GPU), region.gpu(other)), (index, None));
        assert!(fixture.container.gpus().contains(&GPU) && !fixture.container.disowns(GPU));
        assert!(fixture.container.identity().unnamed.is_empty());
    }
}

#[test]
fn accesses_to_slow_files_are_bounded_beyond_the_replacement_of_the_files() {
    let (mut fixture, other) = (Fixture::new(), Fixture::new());
    let start = Monotonic.now();
    assert!(fixture.container.lock_queries.begin(start));
    let used = Nanos::from_millis(10_000);
    fixture.container.lock_queries.end(start, used, &Round::default(), 1);
    for name in ["use", "grant"] {
        let path = |of: &Fixture| of.directory.path().join(name);
        std::fs::rename(path(&other), path(&fixture)).unwrap();
    }
    assert!(fixture.container.begin_access(start + Nanos(used.0 * 31), 1, true).is_none());
    assert!(fixture.container.has_slow_files());
    assert!(fixture.container.access(start + Nanos(used.0 * 32)).replaced);
    assert!(fixture.container.access(start + Nanos(used.0 * 32)).region);
    let again = start + Nanos(used.0 * 32);
    fixture.container.lock_queries.begin(again);
    fixture.container.lock_queries.end(again, used, &Round::default(), 1);
    assert!(fixture.container.begin_access(again + Nanos(used.0 * 31), 1, true).is_none());
}

/// The next file system of a container can have the device number of the one before, and its files
/// the same inodes.
#[test]
fn container_whose_files_were_gone_was_started_again() {
    let mut fixture = Fixture::new();
    let (file, away) =
        (fixture.directory.path().join("use"), fixture.directory.path().join("away"));
    let now = Monotonic.now();
    std::fs::rename(&file, &away).unwrap();
    assert!(fixture.container.access(now).replaced);
    std::fs::rename(&away, &file).unwrap();
    let found = fixture.container.access(now);
    assert!(found.region && found.restarted);
}

#[test]
fn process_lives_until_its_lock_or_its_descriptor_shows_its_exit() {
    let mut fixture = Fixture::new();
    let claims = [fixture.claim(), fixture.claim()];
    let slots = claims.each_ref().map(|claim| claim.slot);
    let live = |container: &Container| {
        let live = &container.region.as_ref().unwrap().live;
        live.iter().map(|(slot, _)| *slot).collect::<Vec<_>>()
    };
    let region = fixture.container.region.as_mut().unwrap();
    region.refresh();
    assert_eq!(live(&fixture.container), slots, "before a query");
    assert_eq!(fixture.container.begin_search(NOW), None, "they may have exited long ago");
    let now = Monotonic.now();
    assert!(fixture.container.access(now).processes);
    assert!(!fixture.container.access(now).processes, "nothing new");
    assert!(fixture.container.begin_search(NOW).is_some());
    // The answer is of a query before the exit.
    let before = fixture.container.begin_access(now, 1, true).unwrap().run(liveness);
    drop(claims);
    let region = fixture.container.region.as_mut().unwrap();
    region.refresh();
    let first = region.live[0];
    assert!(region.take_liveness(first, Liveness::Exited));
    assert!(!fixture.container.end_access(now, before, 1).processes);
    assert_eq!(live(&fixture.container), slots[1..]);
    assert!(fixture.container.access(now).processes);
    assert_eq!(live(&fixture.container), []);
    // An exit that was noticed is final, and a new process in the slot is another one.
    let claim = fixture.claim();
    fixture.refresh();
    assert_eq!(live(&fixture.container), [claim.slot]);
}

#[test]
fn processes_of_an_unreadable_file_exit_by_their_locks() {
    let mut fixture = Fixture::new();
    let claim = fixture.claim();
    fixture.refresh();
    fixture.write(0, &(layout::LAYOUT_VERSION + 7).to_ne_bytes());
    fixture.refresh();
    let region = fixture.container.region.as_ref().unwrap();
    assert_eq!((region.live.len(), region.unreadable.is_some()), (1, true));
    drop(claim);
    fixture.refresh();
    assert_eq!(fixture.container.region.as_ref().unwrap().live, []);
}
