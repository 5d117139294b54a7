//! Folders of containers: room, records, and what is left behind.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::time::Duration;

use cgpu_client::device_id::DeviceId;
use cgpu_client::process::may_have_process;
use cgpu_client::record;
use cgpu_shm::slots::SlotOwner;
use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;
use rustix::fs::FlockOperation;

use super::room::MAX_CONTAINERS;
use super::*;

const GPU: Uuid = Uuid([1; 16]);

/// A monitor's root that unmounts what is left in it.
struct Root(tempfile::TempDir);

impl Root {
    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        for entry in fs::read_dir(paths::containers(self.path())).into_iter().flatten().flatten() {
            tmpfs::unmount(&entry.path());
        }
    }
}

fn root() -> Root {
    let memory = Path::new("/dev/shm");
    Root(if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap())
}

fn make(root: &Path, id: &str, mib: u64) -> Result<Folder> {
    make_of_shares(root, id, mib, &[])
}

fn make_of_shares(root: &Path, id: &str, mib: u64, shares: &[&str]) -> Result<Folder> {
    let shares: Vec<_> = shares.iter().map(|share| (*share).to_owned()).collect();
    let bundle = root.join("bundles").join(id);
    fs::create_dir_all(&bundle)?;
    fs::write(bundle.join("config.json"), "{}")?;
    let limits = Limits { gpus: vec![(GPU, Bytes(mib << 20))], ..Limits::default() };
    let gpus = [GpuCapacity { uuid: GPU, id: DeviceId::of_gpu(0), total: Bytes(15109 << 20) }];
    Folder::make(&FolderSpec {
        root,
        id,
        shares: &shares,
        bundle: &bundle,
        image: None,
        pod: None,
        limits: &limits,
        gpus: &gpus,
        overcommit: false,
        stays: true,
        monitor_hangs: false,
        requires_wall: false,
    })
}

#[test]
fn limits_beyond_the_gpu_are_refused() {
    let root = root();
    make(root.path(), "a", 6043).unwrap();
    let b = make(root.path(), "b", 8058).unwrap();
    let refused = make(root.path(), "c", 1009).unwrap_err().to_string();
    assert!(
        refused.contains(
            "15109 MiB, of which 14101 MiB are given to 2 containers, so that 1009 MiB more"
        ),
        "{refused}"
    );
    make(root.path(), "c", 1008).unwrap();
    b.remove().unwrap();
    make(root.path(), "d", 8058).unwrap();
}

#[test]
fn make_of_26th_container_is_refused() {
    let root = root();
    for number in 0..MAX_CONTAINERS {
        make(root.path(), &format!("c{number}"), 10).unwrap();
    }
    let refused = make(root.path(), "late", 10).unwrap_err().to_string();
    assert!(refused.contains("more than 25 cannot share a GPU"), "{refused}");
}

#[test]
fn sweep_removes_abandoned_folders_and_keeps_living_ones() {
    let root = root();
    let gone = make(root.path(), "gone", 6000).unwrap();
    fs::remove_dir_all(root.path().join("bundles/gone")).unwrap();
    let starting = make(root.path(), "starting", 6000).unwrap();
    assert!(!gone.exists() && starting.exists());
    let living = make(root.path(), "lives", 6000).unwrap();
    living.record_first_process(std::process::id().cast_signed()).unwrap();
    assert!(make(root.path(), "lives", 1).unwrap_err().to_string().contains("is there already"));
    let dead = make(root.path(), "dead", 1000).unwrap();
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    dead.record_first_process(child.id().cast_signed()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    make(root.path(), "next", 1).unwrap();
    assert!(living.exists() && starting.exists() && !dead.exists());
    // The next runtime refused it.
    let mut record = starting.recorded().unwrap();
    record.container.creator.as_mut().unwrap().started += 1;
    starting.record(&record).unwrap();
    make(root.path(), "last", 1).unwrap();
    assert!(!starting.exists());
    // Without a creator that stays, a missing first process means nothing.
    record.container.creator = None;
    let starting = make(root.path(), "starting", 1).unwrap();
    starting.record(&record).unwrap();
    make(root.path(), "later", 1).unwrap();
    assert!(starting.exists());
}

#[test]
fn sweep_keeps_processes_of_other_pid_namespaces() {
    let root = root();
    let elsewhere = make(root.path(), "elsewhere", 6000).unwrap();
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    elsewhere.record_first_process(child.id().cast_signed()).unwrap();
    let mut record = elsewhere.recorded().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    record.container.first.as_mut().unwrap().namespace += 1;
    elsewhere.record(&record).unwrap();
    make(root.path(), "next", 1).unwrap();
    // No process is in that namespace, which can be seen from the initial one only.
    let may_be_alive =
        may_have_process(record.container.first.unwrap().namespace, INITIAL, Path::new("/proc"));
    assert_eq!((elsewhere.exists(), elsewhere.is_alive()), (may_be_alive, may_be_alive));
    record.container.first.as_mut().unwrap().namespace -= 1;
    elsewhere.remove().unwrap();
    let elsewhere = make(root.path(), "elsewhere", 6000).unwrap();
    elsewhere.record(&record).unwrap();
    make(root.path(), "other", 1).unwrap();
    assert!(!elsewhere.exists());
}

#[test]
fn earlier_run_in_another_pid_namespace_is_not_in_the_way() {
    let root = root();
    let earlier = make(root.path(), "a", 6000).unwrap();
    earlier.record_first_process(std::process::id().cast_signed()).unwrap();
    let mut record = earlier.recorded().unwrap();
    let bundle = record.container.bundle.clone();
    let elsewhere = INITIAL + 1000;
    assert!(earlier.is_in_the_way(&bundle, elsewhere), "its process is alive, here");
    // The number is of another namespace, which has no process, or cannot be seen.
    record.container.first.as_mut().unwrap().namespace = u64::MAX;
    earlier.record(&record).unwrap();
    assert!(!earlier.is_in_the_way(&bundle, elsewhere));
    assert_eq!(earlier.is_in_the_way(Path::new("/another"), elsewhere), earlier.is_alive());
    // No engine's container is restarted there.
    assert_eq!(earlier.is_in_the_way(&bundle, INITIAL), earlier.is_alive());
    let region = Region::open(&earlier.path).unwrap();
    let claim =
        region.claim(SlotOwner { pid: 1, comm: b"program" }, Nanos::ZERO, false).unwrap().unwrap();
    assert!(earlier.is_in_the_way(&bundle, elsewhere), "a process has the region open");
    drop((claim, region));
    assert_eq!(
        make(root.path(), "a", 15109).is_ok(),
        own_namespace() != INITIAL || !earlier.is_alive()
    );
}

#[test]
fn containers_with_the_same_shares_have_one_folder() {
    let root = root();
    let one = make_of_shares(root.path(), "one", 10000, &["a", "b"]).unwrap();
    let own = std::process::id().cast_signed();
    one.record_first_process(own).unwrap();
    // Their limit counts once.
    let two = make_of_shares(root.path(), "two", 10000, &["a", "b"]).unwrap();
    assert_eq!((one.path(), two.path()), (two.path(), one.path()));
    assert!(one.own() != two.own() && one.own().is_dir() && two.own().is_dir());
    two.record_first_process(own).unwrap();
    assert!(make_of_shares(root.path(), "two", 1, &["a", "b"]).is_err(), "it is there already");
    // A share belongs to one limit.
    for (id, shares) in [("three", &["a"][..]), ("four", &["b"]), ("five", &["b", "c"])] {
        let refused = make_of_shares(root.path(), id, 1, shares).unwrap_err().to_string();
        assert!(refused.contains("is in use"), "{refused}");
    }
    let others = make_of_shares(root.path(), "six", 5000, &["c"]).unwrap();
    for folder in [&one, &two, &others] {
        let id = folder.sharing.as_deref().unwrap();
        assert_eq!(Folder::with_shares_of(root.path(), id).as_ref(), Some(folder));
    }
    assert_eq!(Folder::with_shares_of(root.path(), "unknown"), None);
    assert_eq!((two.has_others(), two.first_process()), (true, Some(own)));
    assert_eq!((others.has_others(), others.first_process()), (false, None));
    // The first goes, whose record was the folder's.
    one.remove().unwrap();
    assert!(two.exists() && two.is_alive() && !one.own().exists());
    Folder::of_share(root.path(), "a", "unknown").unwrap().remove().unwrap();
    assert!(two.exists(), "another container's hook removes nothing");
    let held = record::holdings(root.path(), |shares| shares == ["a", "b"]).unwrap();
    assert_eq!(held[0].shares, ["a", "b"]);
    assert_eq!(held[0].limits.gpus, [(GPU, Bytes(10000 << 20))]);
    assert_eq!(record::holdings(root.path(), |_| true).unwrap().len(), 2, "and those of `six`");
    two.remove().unwrap();
    assert!(!two.path().exists() && others.exists());
    make_of_shares(root.path(), "four", 10000, &["b"]).unwrap();
}

/// Fifteen filled the folder once.
#[test]
fn files_of_many_containers_with_the_same_shares_fit() {
    let root = root();
    for number in 0..MAX_SHARING {
        let id = format!("{number}").repeat(32);
        let folder = make_of_shares(root.path(), &id, 10, &["a"]).unwrap();
        for name in ["ld.so.preload", "ld-nix.so.preload", "mounts", "another"] {
            folder.put_own(name, &[b'x'; 4000], 0o644).unwrap();
        }
        folder.record_first_process(std::process::id().cast_signed()).unwrap();
    }
    let dir = paths::containers(root.path()).join("a");
    assert_eq!(record::containers(&dir).len(), MAX_SHARING as usize);
}

#[test]
fn folder_of_shares_is_left_behind_when_all_of_its_containers_have_ended() {
    let root = root();
    let [first, second] = ["first", "second"].map(|id| {
        let folder = make_of_shares(root.path(), id, 10000, &["a"]).unwrap();
        let child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        folder.record_first_process(child.id().cast_signed()).unwrap();
        (folder, child)
    });
    let end = |mut child: std::process::Child| {
        child.kill().unwrap();
        child.wait().unwrap();
    };
    end(first.1);
    make(root.path(), "next", 1).unwrap();
    assert!(second.0.exists());
    end(second.1);
    let again = make_of_shares(root.path(), "third", 10000, &["a"]).unwrap();
    assert!(again.exists() && !first.0.own().exists() && !second.0.own().exists());
}

/// An engine in a container sees the host's files of a container, and not those in its mount.
#[test]
fn container_in_a_mount_that_is_not_seen_counts_against_the_gpu() {
    let root = root();
    let hosts = make(root.path(), "hosts", 8000).unwrap();
    let bundle = hosts.recorded().unwrap().container.bundle;
    tmpfs::unmount(hosts.path());
    let _ = fs::remove_file(hosts.path.join("use"));
    let refused = make(root.path(), "b", 8000).unwrap_err().to_string();
    assert!(refused.contains("8000 MiB are given to 1 containers"), "{refused}");
    assert_eq!(hosts.is_in_the_way(&bundle, own_namespace()), !tmpfs::mounts_for_host());
    // It may still be being made.
    assert!(!hosts.is_abandoned());
    // Its engine has deleted it.
    fs::remove_dir_all(&bundle).unwrap();
    assert_eq!(hosts.is_abandoned(), tmpfs::mounts_for_host());
}

/// Every start writes a record, under the lock of all. Root in a container may hold the files that
/// it sees, and fill their file system.
#[test]
fn what_a_container_holds_or_fills_keeps_no_record_from_being_written() {
    let root = root();
    let [one, two] = ["one", "two"].map(|id| make_of_shares(root.path(), id, 10, &["a"]).unwrap());
    let mut held = Vec::new();
    for entry in fs::read_dir(one.path()).unwrap().flatten() {
        if entry.file_type().unwrap().is_file() {
            let file = File::open(entry.path()).unwrap();
            const F_SETSIG: i32 = 10;
            // The signal of a broken lease would end the process.
            for (command, argument) in [(F_SETSIG, libc::SIGURG), (libc::F_SETLEASE, libc::F_RDLCK)]
            {
                // SAFETY: neither command takes a pointer.
                let done = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
                assert_eq!(done, 0, "{}", entry.path().display());
            }
            held.push(file);
        }
    }
    if tmpfs::is_mounted(one.path()) {
        let mut filling = File::create(one.path().join("filling")).unwrap();
        io::copy(&mut io::repeat(1), &mut filling).unwrap_err();
    }
    let (sender, recorded) = mpsc::channel();
    std::thread::spawn(move || {
        two.record_first_process(std::process::id().cast_signed()).unwrap();
        sender.send(two.recorded().unwrap().containers().filter(|it| it.first.is_some()).count())
    });
    assert_eq!(recorded.recv_timeout(Duration::from_secs(20)), Ok(1));
    make(root.path(), "neighbour", 10).unwrap();
}

/// A container passes the descriptor of its region to a process of another one.
#[test]
fn lock_that_another_process_holds_keeps_no_ended_container() {
    let root = root();
    let ended = make(root.path(), "ended", 10000).unwrap();
    let region = Region::open(&ended.path).unwrap();
    let owner = SlotOwner { pid: 1, comm: b"program" };
    let _claim = region.claim(owner, Nanos::ZERO, false).unwrap().unwrap();
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    ended.record_first_process(child.id().cast_signed()).unwrap();
    assert!(ended.is_alive());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!ended.is_alive());
    make(root.path(), "next", 10000).unwrap();
    assert!(!ended.exists());
}

/// A start or a removal that is killed leaves files without a folder.
#[test]
fn files_without_a_folder_are_removed() {
    let root = root();
    let gone = make(root.path(), "gone", 10000).unwrap();
    tmpfs::unmount(gone.path());
    fs::remove_dir_all(gone.path()).unwrap();
    make(root.path(), "next", 10000).unwrap().remove().unwrap();
    for folder in ["records", "slices"] {
        assert_eq!(fs::read_dir(root.path().join(folder)).unwrap().count(), 0, "{folder}");
    }
}

/// A container can hold its own copies so that they cannot be opened.
#[test]
fn limits_count_if_the_container_hides_them() {
    let root = root();
    let first = make(root.path(), "first", 8000).unwrap();
    first.record_first_process(std::process::id().cast_signed()).unwrap();
    fs::remove_file(first.path.join(LIMITS)).unwrap();
    fs::create_dir(first.path.join(LIMITS)).unwrap();
    let refused = make(root.path(), "second", 8000).unwrap_err().to_string();
    assert!(refused.contains("first") || refused.contains("8000"), "{refused}");
    first.remove().unwrap();
    assert_eq!(fs::read_dir(root.path().join("slices")).unwrap().count(), 0);
    make(root.path(), "second", 8000).unwrap();
}

#[test]
fn sweep_leaves_foreign_folders_alone() {
    let root = root();
    let other = root.path().join("containers/run");
    fs::create_dir_all(&other).unwrap();
    make(root.path(), "a", 10).unwrap();
    assert!(other.exists());
}

#[test]
fn id_with_path_is_refused() {
    for id in ["", ".", "..", "../x", "a/b", "a b", ".x", "é"] {
        assert!(Folder::of(Path::new("/run/cgpu"), id).is_err(), "{id}");
    }
    assert!(Folder::of(Path::new("/r"), &"0".repeat(64)).is_ok());
}

#[test]
fn lock_on_the_containers_folder_by_another_process_delays_no_start() {
    let root = root();
    make(root.path(), "a", 10).unwrap();
    // Every user can open the folder, and lock what it has open.
    let folder = File::open(paths::containers(root.path())).unwrap();
    rustix::fs::flock(&folder, FlockOperation::LockExclusive).unwrap();
    let (sender, made) = mpsc::channel();
    let path = root.path().to_owned();
    std::thread::spawn(move || sender.send(make(&path, "b", 10).is_ok()));
    assert_eq!(made.recv_timeout(Duration::from_secs(60)), Ok(true));
}
