use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;

use cgpu_shm::gpus::Gpu;
use cgpu_shm::layout::{self, Use, UseHeader};
use cgpu_shm::liveness::LivenessLock;
use cgpu_shm::region::{Region as Shared, RegionSpec};
use cgpu_shm::slots::{Claim, SlotOwner};

use super::*;

const GPU: Uuid = Uuid([7; 16]);

/// A container with its files, one GPU of 1000 bytes in them.
struct Fixture {
    container: Container,
    shared: Shared,
    place: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        Shared::make(place.path(), RegionSpec { name: "", created: Nanos(1), time_scale: None })
            .unwrap();
        let shared = Shared::open(place.path()).unwrap();
        let container = Container::new(TenantId(1), "a".into(), place.path().to_owned());
        let mut fixture = Self { container, shared, place };
        let first = fixture.claim();
        let gpu = Gpu { uuid: GPU, total: Bytes(9000), limit: Bytes(1000), ordinal: 0 };
        fixture.shared.register(first.slot, &gpu).unwrap();
        drop(first);
        fixture.refresh();
        fixture
    }

    /// A process of it, which lives as long as this.
    fn claim(&self) -> Claim<LivenessLock> {
        let who = SlotOwner { pid: std::process::id(), comm: b"p" };
        self.shared.claim(who, Nanos(1), true).unwrap().unwrap()
    }

    fn refresh(&mut self) {
        if !self.container.find_region(1) {
            self.container.region.as_mut().unwrap().refresh();
        }
    }

    /// Writes over the container's own file, as it may.
    fn write(&self, place: usize, bytes: &[u8]) {
        let file = File::options().write(true).open(self.place.path().join("use")).unwrap();
        file.write_all_at(bytes, u64::try_from(place).unwrap()).unwrap();
    }
}

/// So many times ourselves, with a descriptor of us each.
fn ourselves(times: usize) -> Vec<Option<FoundProcess>> {
    let us = rustix::process::getpid();
    let one = || FoundProcess {
        id: ProcessId::of(std::process::id()).unwrap(),
        exit: Some(rustix::process::pidfd_open(us, PidfdFlags::empty()).unwrap()),
    };
    (0..times).map(|_| Some(one())).collect()
}

/// Where the only GPU is in `use`.
const RECORD: usize = offset_of!(Use, header) + offset_of!(UseHeader, gpu);

#[test]
fn one_search_at_a_time_however_many_slots_are_locked() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.container.begin_search(), None);
    let mut claims: Vec<_> = (0..100).map(|_| fixture.claim()).collect();
    fixture.refresh();
    let search = fixture.container.begin_search().unwrap();
    assert_eq!(search.processes.len(), 100);
    for _ in 0..50 {
        claims.push(fixture.claim());
        fixture.refresh();
        assert_eq!(fixture.container.begin_search(), None, "a search is under way");
    }
    assert!(!fixture.container.identity().searched);
    let heard = fixture.container.found(&search, ourselves(100));
    assert_eq!(fixture.container.host_ids.len(), 100);
    // Their deaths are heard of at once, but not of so many that nobody else's would be.
    assert_eq!((heard.len(), fixture.container.exits.len()), (MAX_EXIT_WATCHES, MAX_EXIT_WATCHES));
    let rest = fixture.container.begin_search().unwrap();
    assert_eq!(rest.processes.len(), 50);
    // What was found in files that were replaced meanwhile is of nobody, and the next search may begin.
    let elsewhere = Search { file: (0, 0), ..rest.clone() };
    assert_eq!(fixture.container.found(&elsewhere, ourselves(50)), []);
    assert_eq!(fixture.container.host_ids.len(), 100);
    assert_eq!(fixture.container.begin_search().as_ref(), Some(&rest));
    fixture.container.found(&rest, (0..50).map(|_| None).collect());
    assert!(fixture.container.identity().searched, "found or not, all have been searched for");
}

#[test]
fn process_that_left_its_slot_still_belongs_to_its_container() {
    let mut fixture = Fixture::new();
    let claim = fixture.claim();
    fixture.refresh();
    let search = fixture.container.begin_search().unwrap();
    let own = ProcessId::of(std::process::id()).unwrap();
    fixture.container.found(&search, ourselves(1));
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
    let mut other = Container::new(TenantId(2), "b".into(), fixture.place.path().to_owned());
    assert!(!other.find_region(1));
    assert_eq!((other.identity().file, other.identity().closed), (identity, true));
    // None at all is another thing.
    let empty = tempfile::tempdir().unwrap();
    let mut none = Container::new(TenantId(3), "c".into(), empty.path().to_owned());
    assert!(!none.find_region(1));
    assert_eq!((none.identity().file, none.identity().closed), (None, false));
}

#[test]
fn containers_claim_about_its_gpus_is_not_trusted() {
    let mut fixture = Fixture::new();
    assert_eq!((fixture.container.may_share(GPU), fixture.container.disowns(GPU)), (None, false));
    fixture.write(RECORD, &[9; 16]);
    fixture.refresh();
    assert_eq!((fixture.container.may_share(GPU), fixture.container.disowns(GPU)), (None, true));
    fixture.container.limits.gpus.push((GPU, Bytes(500)));
    assert_eq!(fixture.container.may_share(GPU), Some(true));
    assert_eq!(fixture.container.may_share(Uuid([9; 16])), Some(false));
    assert_eq!(fixture.container.requested_limit(GPU), Some(Bytes(500)));
    fixture.write(RECORD + offset_of!(layout::Gpu, limit), &u64::MAX.to_ne_bytes());
    fixture.refresh();
    assert_eq!(fixture.container.requested_limit(GPU), Some(Bytes(500)));
}
