use std::cell::RefCell;
use std::fs;
use std::process::{Child, Command};

use cgpu_client::process::Process;

use super::super::decision::Wanted;
use super::*;

const GPU: Uuid = Uuid([7; 16]);
const ID: &str = "0123456789ab";

const fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib)
}

/// The driver's limits by folder, as one back end keeps them.
#[derive(Default)]
struct Fake {
    limits: RefCell<BTreeMap<PathBuf, GroupMemory>>,
    is_misc: bool,
    is_away: RefCell<bool>,
    refuses: RefCell<Option<Refused>>,
    sets: RefCell<u64>,
}

impl Fake {
    fn hard(&self, folder: &Path) -> Option<Bytes> {
        self.limits.borrow().get(folder)?.limits.hard
    }

    fn change(&self, folder: &Path, change: impl FnOnce(&mut GroupMemory)) {
        change(self.limits.borrow_mut().entry(folder.to_owned()).or_default());
    }
}

impl Driver for Fake {
    fn get(&self, _: Uuid, group: &Path) -> Result<GroupMemory, Refused> {
        let memory = self.limits.borrow().get(group).copied();
        match memory {
            Some(memory) if !self.is_misc || memory.limits.hard.is_some() => Ok(memory),
            _ if self.is_misc => Err(Refused::NotSupported),
            _ => Ok(GroupMemory::default()),
        }
    }

    fn set(&self, _: Uuid, group: &Path, to: Limits) -> Result<(), Refused> {
        if let Some(refused) = self.refuses.borrow().clone() {
            return Err(refused);
        }
        *self.sets.borrow_mut() += 1;
        let mut limits = self.limits.borrow_mut();
        let memory = limits.entry(group.to_owned()).or_default();
        if self.is_misc && to.hard.is_some_and(|hard| hard < memory.used) {
            return Err(Refused::Other("In use by another client".into()));
        }
        memory.limits = to;
        if to == Limits::default() && memory.used == Bytes::ZERO {
            limits.remove(group);
        }
        Ok(())
    }

    fn has(&self, _: Uuid) -> bool {
        !*self.is_away.borrow()
    }
}

/// A container with a process, and a host's folders.
struct Fixture {
    root: tempfile::TempDir,
    child: Child,
    driver: Fake,
}

impl Fixture {
    fn new(is_misc: bool) -> Self {
        let root = tempfile::tempdir().unwrap();
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let fixture = Self { root, child, driver: Fake { is_misc, ..Fake::default() } };
        let at = fixture.root.path();
        fs::create_dir_all(at.join("proc/self")).unwrap();
        let mount = at.join("cg");
        let line = format!("25 20 0:21 / {} rw - cgroup2 cgroup2 rw\n", mount.display());
        fs::write(at.join("proc/self/mountinfo"), line).unwrap();
        fixture.add(ID, fixture.child.id());
        fixture
    }

    /// Records a container with this first process, in a group of its own.
    fn add(&self, id: &str, pid: u32) {
        let at = self.root.path();
        let first = Process::find(pid.cast_signed()).unwrap();
        let record = serde_json::json!({ "bundle": "/b", "first": first });
        fs::create_dir_all(at.join("containers").join(id)).unwrap();
        fs::create_dir_all(at.join("records")).unwrap();
        fs::write(at.join("records").join(id), record.to_string()).unwrap();
        fs::create_dir_all(at.join("proc").join(pid.to_string())).unwrap();
        let path = format!("0::/docker/{id}\n");
        fs::write(at.join("proc").join(pid.to_string()).join("cgroup"), path).unwrap();
        fs::create_dir_all(self.folder_of(id)).unwrap();
    }

    fn folder_of(&self, id: &str) -> PathBuf {
        self.root.path().join("cg/docker").join(id)
    }

    fn folder(&self) -> PathBuf {
        self.folder_of(ID)
    }

    fn walls(&self) -> Walls {
        Walls::new(self.root.path().join("walls"), self.root.path().join("proc"))
    }

    fn order(&self, limit: u64) -> Order {
        let wanted =
            Wanted { limit: mib(limit), margin: mib(512), total: mib(8192), ..Wanted::default() };
        Order {
            tenant: 1,
            dir: self.root.path().join("containers").join(ID),
            registrants: Vec::new(),
            released: Vec::new(),
            devices: vec![Device { uuid: GPU, wanted, may_have_memory: false }],
        }
    }

    fn apply(&self, walls: &mut Walls, order: &Order) -> Wall {
        walls.apply(std::slice::from_ref(order), &self.driver).remove(0).walls.remove(0).1
    }

    fn recorded(&self) -> usize {
        fs::read_dir(self.root.path().join("walls")).map_or(0, Iterator::count)
    }

    fn end(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn set(wall: &Wall) -> &Present {
    match wall {
        Wall::Set(present) => present,
        Wall::Absent(reason) => panic!("{reason}"),
    }
}

#[test]
fn wall_is_set_and_removed_with_the_container() {
    for is_misc in [false, true] {
        let mut fixture = Fixture::new(is_misc);
        let mut walls = fixture.walls();
        let wall = fixture.apply(&mut walls, &fixture.order(1000));
        assert_eq!(set(&wall).hard, mib(1512));
        assert_eq!(fixture.driver.hard(&fixture.folder()), Some(mib(1512)));
        fixture.apply(&mut walls, &fixture.order(1000));
        assert_eq!((*fixture.driver.sets.borrow(), fixture.recorded()), (1, 1));
        fixture.end();
        let wall = fixture.apply(&mut walls, &fixture.order(1000));
        assert_eq!(wall, Wall::Absent(Reason::NotRegistered));
        assert_eq!((fixture.driver.hard(&fixture.folder()), fixture.recorded()), (None, 0));
    }
}

#[test]
fn wall_stays_while_the_group_has_a_process() {
    let mut fixture = Fixture::new(false);
    let mut walls = fixture.walls();
    fixture.apply(&mut walls, &fixture.order(1000));
    // Its first process may end before the others.
    fs::write(fixture.folder().join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
    fixture.end();
    let wall = fixture.apply(&mut walls, &fixture.order(1000));
    assert_eq!(set(&wall).hard, mib(1512));
    fs::write(fixture.folder().join("cgroup.events"), "populated 0\nfrozen 0\n").unwrap();
    fixture.apply(&mut walls, &fixture.order(1000));
    assert_eq!(fixture.driver.hard(&fixture.folder()), None);
}

#[test]
fn released_process_has_no_wall_though_it_lives() {
    let fixture = Fixture::new(false);
    let mut walls = fixture.walls();
    fixture.apply(&mut walls, &fixture.order(1000));
    fs::write(fixture.folder().join("cgroup.events"), "populated 1\n").unwrap();
    let released = vec![ProcessId::of(fixture.child.id()).unwrap()];
    let order = Order { released, ..fixture.order(1000) };
    for _ in 0..2 {
        fixture.apply(&mut walls, &order);
        assert_eq!((fixture.driver.hard(&fixture.folder()), fixture.recorded()), (None, 0));
    }
}

#[test]
fn limit_of_another_program_stays_if_it_is_lower() {
    let fixture = Fixture::new(false);
    let mut walls = fixture.walls();
    fixture.apply(&mut walls, &fixture.order(1000));
    let folder = fixture.folder();
    for (other, expected) in [(Some(900), 900), (Some(3000), 1512), (None, 1512), (Some(700), 700)]
    {
        fixture.driver.change(&folder, |memory| memory.limits.hard = other.map(mib));
        let wall = fixture.apply(&mut walls, &fixture.order(1000));
        assert_eq!(set(&wall).hard, mib(expected), "{other:?}");
        assert!(set(&wall).changed.is_some());
        assert_eq!(fixture.driver.hard(&folder), Some(mib(expected)), "{other:?}");
    }
    // The other program's limit is not ours to remove. Its soft limit would outlive the group.
    fixture.driver.change(&folder, |memory| memory.limits.soft = mib(600));
    walls.apply(&[], &fixture.driver);
    assert_eq!((fixture.driver.hard(&folder), fixture.recorded()), (Some(mib(700)), 0));
    assert_eq!(fixture.driver.limits.borrow()[&folder].limits.soft, Bytes::ZERO);
}

#[test]
fn monitor_that_is_killed_while_it_sets_a_limit_knows_it_for_its_own() {
    for is_set in [false, true] {
        let fixture = Fixture::new(false);
        fixture.apply(&mut fixture.walls(), &fixture.order(1000));
        let folder = fixture.folder();
        // The record is written, and the driver is called or not.
        *fixture.driver.refuses.borrow_mut() = Some(Refused::Other("killed".into()));
        fixture.apply(&mut fixture.walls(), &fixture.order(2000));
        *fixture.driver.refuses.borrow_mut() = None;
        if is_set {
            fixture.driver.change(&folder, |memory| memory.limits.hard = Some(mib(2512)));
        }
        let wall = fixture.apply(&mut fixture.walls(), &fixture.order(3000));
        assert_eq!((set(&wall).hard, set(&wall).changed.clone()), (mib(3512), None), "{is_set}");
    }
}

#[test]
fn new_monitor_removes_the_limits_of_containers_that_are_gone() {
    let fixture = Fixture::new(false);
    fixture.apply(&mut fixture.walls(), &fixture.order(1000));
    let folder = fixture.folder();
    *fixture.driver.is_away.borrow_mut() = true;
    let mut walls = fixture.walls();
    walls.apply(&[], &fixture.driver);
    assert!(fixture.driver.hard(&folder).is_some(), "NVML is away");
    *fixture.driver.is_away.borrow_mut() = false;
    walls.apply(&[], &fixture.driver);
    assert_eq!((fixture.driver.hard(&folder), fixture.recorded()), (None, 0));
}

#[test]
fn limit_of_a_later_group_with_the_same_path_is_left() {
    let fixture = Fixture::new(false);
    let mut walls = fixture.walls();
    fixture.apply(&mut walls, &fixture.order(1000));
    let folder = fixture.folder();
    // Kept, so that the later folder has another inode.
    fs::rename(&folder, folder.with_extension("old")).unwrap();
    fs::create_dir(&folder).unwrap();
    fixture.driver.change(&folder, |memory| memory.limits.hard = Some(mib(5)));
    walls.apply(&[], &fixture.driver);
    assert_eq!((fixture.driver.hard(&folder), fixture.recorded()), (Some(mib(5)), 0));
}

#[test]
fn wall_below_the_use_follows_it_down() {
    for is_misc in [false, true] {
        let fixture = Fixture::new(is_misc);
        let mut walls = fixture.walls();
        fixture.apply(&mut walls, &fixture.order(3000));
        let folder = fixture.folder();
        for (used, expected) in [(2800, 2800), (2000, 2000), (100, 1512)] {
            fixture.driver.change(&folder, |memory| memory.used = mib(used));
            let wall = fixture.apply(&mut walls, &fixture.order(1000));
            assert_eq!(set(&wall).hard, mib(expected), "{used}");
            assert_eq!(set(&wall).changed, None);
        }
    }
}

#[test]
fn refusals_are_reasons() {
    let fixture = Fixture::new(true);
    let mut walls = fixture.walls();
    for (refused, reason) in [
        (Refused::OldDriver, Reason::OldDriver),
        (Refused::NotSupported, Reason::NotSupported),
        (Refused::NotFound, Reason::NotFound),
        (Refused::Other("x".into()), Reason::Refused("x".into())),
    ] {
        *fixture.driver.refuses.borrow_mut() = Some(refused);
        let wall = fixture.apply(&mut walls, &fixture.order(1000));
        assert_eq!(wall, Wall::Absent(reason));
    }
    *fixture.driver.refuses.borrow_mut() = None;
    assert_eq!(set(&fixture.apply(&mut walls, &fixture.order(1000))).hard, mib(1512));
    *fixture.driver.is_away.borrow_mut() = true;
    let wall = fixture.apply(&mut walls, &fixture.order(1000));
    assert_eq!(wall, Wall::Absent(Reason::NoNvml));
}

#[test]
fn ancestor_that_does_not_pass_dmem_on_is_the_reason() {
    let fixture = Fixture::new(false);
    let mut walls = fixture.walls();
    let (mount, engine) = (fixture.root.path().join("cg"), fixture.root.path().join("cg/docker"));
    let write = |folder: &Path, file: &str| {
        fs::write(folder.join(file), "cpu memory dmem\n").unwrap();
    };
    *fixture.driver.refuses.borrow_mut() = Some(Refused::NotFound);
    let mut reason = || match fixture.apply(&mut walls, &fixture.order(1000)) {
        Wall::Absent(reason) => reason,
        Wall::Set(present) => panic!("{present:?}"),
    };
    assert_eq!(reason(), Reason::NotFound, "the kernel has no dmem");
    write(&mount, "cgroup.controllers");
    assert_eq!(reason(), Reason::NoDmem(mount.clone()));
    write(&mount, "cgroup.subtree_control");
    assert_eq!(reason(), Reason::NoDmem(engine.clone()));
    let told = reason();
    assert!(told.to_string().contains(&engine.display().to_string()), "{told}");
    assert_eq!(told.name(), "no_dmem");
    write(&engine, "cgroup.subtree_control");
    assert_eq!(reason(), Reason::NotFound, "the group has the controller's files");
}

#[test]
fn containers_of_one_directory_each_have_a_wall() {
    let fixture = Fixture::new(false);
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    fixture.add("fedcba987654", other.id());
    let [first, second] = [ID, "fedcba987654"].map(|id| {
        let text = fs::read(fixture.root.path().join("records").join(id)).unwrap();
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()["first"].clone()
    });
    let record = serde_json::json!({"bundle": "/b", "first": first, "others":
        [{"id": "fedcba987654", "bundle": "/c", "first": second}]});
    fs::write(fixture.root.path().join("records").join(ID), record.to_string()).unwrap();
    let wall = fixture.apply(&mut fixture.walls(), &fixture.order(1000));
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(set(&wall).groups, 2);
    assert_eq!(fixture.driver.hard(&fixture.folder_of("fedcba987654")), Some(mib(1512)));
}

#[test]
fn container_with_earlier_memory_is_late_and_stays_so_for_the_next_monitor() {
    let fixture = Fixture::new(true);
    let mut order = fixture.order(1000);
    order.devices[0].may_have_memory = true;
    assert!(set(&fixture.apply(&mut fixture.walls(), &order)).is_late);
    order.devices[0].may_have_memory = false;
    assert!(set(&fixture.apply(&mut fixture.walls(), &order)).is_late);
}

#[test]
fn thousand_containers_leave_nothing() {
    let fixture = Fixture::new(false);
    let mut walls = fixture.walls();
    let own = std::process::id();
    for number in 0..1000 {
        let id = format!("{number:012}");
        fixture.add(&id, own);
        let order =
            Order { dir: fixture.root.path().join("containers").join(&id), ..fixture.order(1000) };
        assert_eq!(set(&fixture.apply(&mut walls, &order)).hard, mib(1512));
    }
    walls.apply(&[], &fixture.driver);
    assert_eq!((fixture.driver.limits.borrow().len(), fixture.recorded()), (0, 0));
    assert!(walls.known.is_empty() && walls.logged.is_empty());
}

/// The driver of `misc` keeps the limit of a group that is gone; with `dmem` only a soft one stays.
#[test]
fn limit_of_a_group_that_is_gone_is_counted() {
    for (is_misc, has_mps, expected) in [(true, false, 1), (false, false, 0), (false, true, 1)] {
        let fixture = Fixture::new(is_misc);
        let mut walls = fixture.walls();
        let mut order = fixture.order(1000);
        order.devices[0].wanted.has_mps = has_mps;
        fixture.apply(&mut walls, &order);
        fs::remove_dir(fixture.folder()).unwrap();
        walls.apply(&[], &fixture.driver);
        let left = walls.left().get(&GPU).copied().unwrap_or_default();
        assert_eq!((left, fixture.recorded()), (expected, 0), "{is_misc} {has_mps}");
    }
}
