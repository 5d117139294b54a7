//! The control tree under load: many programs read and write it while tenants start, compute and
//! are killed, and while its monitor is killed.
//!
//! `cargo xtask soak` runs both for longer: CGPU_SOAK_SECONDS, CGPU_SOAK_KILLS.
//!
//! Beside other tests the programs are paced over a minute, which leaves the processors to others.
//! In the soak they run unpaced.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cgpu_e2e::{Child, Container, Fixture, Monitor, Outcome, Worker, skip};

fn told(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

/// Seconds of access to the tree, unless `CGPU_TREE_SECONDS` or a soak sets them.
const SECONDS: u64 = 60;

/// Returns the minimum number of accesses of each of the eight programs: 10,000 of all in a minute.
fn least(seconds: u64) -> u64 {
    1250 * seconds.min(SECONDS) / SECONDS
}

const TENANTS: usize = 20;
/// Maximum resident memory of a monitor with these tenants, in KiB.
const MOST_RESIDENT: u64 = 30 << 10;

pub(crate) fn has_fuse(test: &str) -> bool {
    // SAFETY: no obligations; geteuid cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if !device {
        skip(test, "fuse", "/dev/fuse cannot be opened");
    } else if !is_root {
        skip(test, "fuse", "what a killed monitor leaves is unmounted by root here");
    }
    device && is_root
}

/// A tree that is unmounted however the test ends.
pub(crate) struct Tree(PathBuf);

impl Tree {
    pub(crate) fn of(fixture: &Fixture) -> Self {
        Self(fixture.root().join("cgpu_km"))
    }

    pub(crate) fn path(&self, node: &str) -> PathBuf {
        self.0.join(node)
    }

    pub(crate) fn read(&self, node: &str) -> std::io::Result<String> {
        fs::read_to_string(self.path(node))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // After a successful test nothing is mounted there.
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// Reads and writes at random. A value that it wrote must be read again, since no other process
/// writes that node; invalid writes must be refused; other values must be in range. A container may
/// be gone at any time. It uses shell builtins only, so that an access needs no process.
const CLIENT_SCRIPT: &str = r#"
tree=$1 own=$2 lo=$3 hi=$4 least=$5 seconds=$6 r=$7 pace=$8
start=$(date +%s) n=0 writes=0
next() { r=$(((r * 1103515245 + 12345) % 2147483648)); pick=$((r / 65536 % $1)); }
wrong() { echo "wrong: $*"; exit 1; }
within() { case $2 in '' | *[!0-9]*) wrong "$1 is '$2'" ;; esac; [ "$2" -ge "$3" ] && [ "$2" -le "$4" ] || wrong "$1 is $2"; }
echo $lo > $tree/$own || wrong "$own does not take $lo"
while :; do
    if [ $((n % 64)) = 0 ]; then
        past=$(($(date +%s) - start))
        if [ $n -ge $least ] && [ $past -ge $seconds ]; then break; fi
        if [ $pace = 1 ] && [ $((n * seconds)) -gt $((least * past)) ]; then sleep 1; fi
    fi
    n=$((n + 1))
    next 7
    case $pick in
    0 | 1)
        next $((hi - lo + 1)); value=$((lo + pick)); writes=$((writes + 1))
        echo $value > $tree/$own || wrong "$own does not take $value"
        read -r got < $tree/$own || wrong "$own cannot be read"
        [ "$got" = $value ] || wrong "$own: wrote $value, read $got" ;;
    2)
        { echo $((hi + 1)) > $tree/$own; } 2> /dev/null && wrong "$own takes $((hi + 1))"
        read -r got < $tree/$own || wrong "$own cannot be read"
        within $own "$got" $lo $hi ;;
    3)
        next 4; gpu=$pick
        read -r got < $tree/$gpu/policy || wrong "no policy"; within policy "$got" 0 5
        read -r got < $tree/$gpu/free_weight || wrong "no free_weight"; within free_weight "$got" 0 25 ;;
    4)
        for folder in $tree/0/*/; do
            folder=${folder%/}
            if { read -r got < $folder/id; } 2> /dev/null; then [ "$got" = "${folder##*/}" ] || wrong "$folder is $got"; fi
            if { read -r word got < $folder/meminfo; } 2> /dev/null; then
                [ "$word" = Free: ] || wrong "$folder/meminfo begins with $word"
                within meminfo "$got" 0 24146608128
            fi
        done ;;
    5)
        next 3; value=$((1 + pick))
        for folder in $tree/0/t*/; do
            { echo $value > ${folder}weight; } 2> /dev/null
            if { read -r got < ${folder}weight; } 2> /dev/null; then within weight "$got" 0 3; fi
            break
        done ;;
    6)
        { echo 1 > $tree/version; } 2> /dev/null && wrong "the version can be written"
        { read -r got < $tree/9/policy; } 2> /dev/null && wrong "there is a GPU 9"
        read -r got < $tree/version || wrong "no version" ;;
    esac
done
echo "$n $writes"
"#;

fn client(
    tree: &Path,
    own: &str,
    bounds: [u64; 2],
    seconds: u64,
    seed: u64,
    keeps_pace: bool,
) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", CLIENT_SCRIPT, "client"]).arg(tree).arg(own);
    let numbers = [bounds[0], bounds[1], least(seconds), seconds, seed, keeps_pace.into()];
    command.args(numbers.map(|number| number.to_string()));
    Child::start_for(command, Duration::from_secs(180 + 3 * seconds))
}

#[derive(Debug)]
struct Size {
    descriptors: usize,
    /// Memory in KiB, without pages of regions and of simulated GPUs, which are not the monitor's.
    resident: u64,
    /// Private memory in KiB.
    own: u64,
}

impl Size {
    fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("its memory");
            line.trim().trim_end_matches(" kB").parse().expect("a number")
        };
        Self {
            descriptors: fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").count(),
            resident: kib("RssAnon:") + kib("RssFile:"),
            own: kib("RssAnon:"),
        }
    }
}

fn holder(fixture: &Fixture, container: &Container) -> Child {
    let mut command = fixture.program_in(container, "hold");
    // Longer than the test takes on a slow machine.
    command.args(["64M", "600"]);
    let mut holder = Child::start_for(command, fixture.lifetime());
    holder.line();
    holder
}

#[test]
fn tree_access_is_consistent_while_tenants_start_and_end() {
    if !has_fuse("tree") {
        return;
    }
    let soak = told("CGPU_SOAK_SECONDS");
    let seconds = soak.or_else(|| told("CGPU_TREE_SECONDS")).unwrap_or(SECONDS);
    let fixture = Fixture::new("A10:23028,A10:23028,A10:23028,A10:23028")
        .with_extra_time(Duration::from_secs(2 * seconds));
    let tree = Tree::of(&fixture);
    let monitor = Monitor::start_with_tree(&fixture);
    let stay = [fixture.limited("a", 8192), fixture.limited("b", 8192)];
    let mut workers = stay.each_ref().map(|container| Worker::start(&fixture, container));
    let transient: Vec<Container> =
        (2..TENANTS).map(|n| fixture.limited(&format!("t{n}"), 1024)).collect();
    let mut holders: Vec<Child> = transient.iter().map(|one| holder(&fixture, one)).collect();
    // The monitor has each container's files open from now on, with or without processes in it.
    for container in stay.iter().chain(&transient) {
        let known = || {
            fixture.accounting(container)["gpus"].as_array().is_some_and(|gpus| !gpus.is_empty())
        };
        fixture.eventually("a container with its GPUs", || known().then_some(()));
    }
    let pid = monitor.process.pid();
    let before = Size::of(pid);

    // Each has its own node to write. All tenants together weigh 22 at most, so these capacity
    // units always suffice.
    let nodes = [("prio_ratio", [20, 99]), ("max_inst", [22, 25])];
    let own = (0..4).flat_map(|gpu| nodes.map(|(node, bounds)| (format!("{gpu}/{node}"), bounds)));
    let mut clients: Vec<Child> = own
        .zip(1..)
        .map(|((node, bounds), seed)| {
            client(&tree.0, &node, bounds, seconds, seed * 7919, soak.is_none())
        })
        .collect();
    #[allow(clippy::cast_precision_loss)] // some seconds
    workers.iter_mut().for_each(|worker| worker.begin(seconds as f64));
    let (mut rounds, mut highest) = (0, before.resident);
    let (start, mut told) = (Instant::now(), 0);
    while clients.iter_mut().any(Child::runs) {
        let (finishing, killed) =
            (rounds % transient.len(), (rounds + transient.len() / 2) % transient.len());
        let mut replace =
            |at: usize| std::mem::replace(&mut holders[at], holder(&fixture, &transient[at]));
        replace(finishing).finish().silent();
        replace(killed).kill();
        rounds += 1;
        let size = Size::of(pid);
        highest = highest.max(size.resident);
        if start.elapsed().as_secs() / 30 > told {
            told = start.elapsed().as_secs() / 30;
            println!(
                "tree: {} of {seconds} s, {rounds} rounds of tenants, {size:?} (KiB)",
                told * 30
            );
        }
        std::thread::sleep(Duration::from_millis(if soak.is_none() { 200 } else { 0 }));
    }
    let mut accesses = 0;
    for client in clients {
        let outcome = client.finish();
        assert!(outcome.code() == Some(0) && outcome.stderr.is_empty(), "{outcome:?}");
        let mut counts =
            outcome.stdout.split_whitespace().map(|count| count.parse::<u64>().expect("a count"));
        accesses += counts.next().unwrap_or(0);
    }
    for mut worker in workers {
        assert!(worker.rate() > 0.0);
        worker.finish();
    }
    assert!(accesses >= 8 * least(seconds));
    println!(
        "tree: {accesses} accesses in {} s, {rounds} rounds of {TENANTS} tenants, at most {highest} KiB resident; {before:?}, then {:?}",
        start.elapsed().as_secs(),
        Size::of(pid)
    );
    assert!(highest < MOST_RESIDENT, "{highest} KiB resident");
    for holder in holders {
        holder.finish().silent();
    }
    fixture.eventually("as many descriptors as before", || {
        (Size::of(pid).descriptors <= before.descriptors).then_some(())
    });
    let grown = Size::of(pid).own.saturating_sub(before.own);
    assert!(grown <= 4096, "grown by {grown} KiB");
    monitor.process.signal(libc::SIGTERM);
    let outcome = monitor.process.finish();
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
}

/// An oracle: a value that it can read must be the one that was set. A read may fail while the
/// monitor is down.
const READER_SCRIPT: &str = r#"
while [ ! -e $2 ]; do
    if { read -r got < $1/0/prio_ratio; } 2> /dev/null; then [ "$got" = 77 ] || { echo "prio_ratio is $got"; exit 1; }; fi
done
"#;

#[test]
fn repeatedly_killed_monitor_loses_no_setting_and_no_tenant() {
    if !has_fuse("tree") {
        return;
    }
    let kills = told("CGPU_SOAK_KILLS").or_else(|| told("CGPU_TREE_KILLS")).unwrap_or(10);
    let fixture = Fixture::new("A10:23028").with_extra_time(Duration::from_secs(10 * kills));
    let tree = Tree::of(&fixture);
    let mut monitor = Monitor::start_with_tree(&fixture);
    let stay = [fixture.limited("a", 8192), fixture.limited("b", 8192)];
    let mut workers = stay.each_ref().map(|container| Worker::start(&fixture, container));
    stay.iter().for_each(|container| _ = fixture.accounting(container));
    fixture.set("0/prio_ratio", "77");
    fixture.set("0/policy", "4");
    fixture.set("0/a/weight", "3");
    #[allow(clippy::cast_precision_loss)] // some seconds
    workers.iter_mut().for_each(|worker| worker.begin(kills as f64));
    let end = fixture.path("end");
    let mut command = Command::new("sh");
    command.args(["-c", READER_SCRIPT, "reader"]).arg(&tree.0).arg(&end);
    let mut oracle = Child::start_for(command, Duration::from_secs(120 + 10 * kills));
    let mut random = 12345u64;
    for kill in 0..kills {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_millis(random >> 55));
        let value = ((20 + kill % 80) << 20).to_string();
        // It was acknowledged, so it must be kept.
        fixture.set("default_memsize", &value);
        monitor.process.kill();
        monitor = Monitor::start_with_tree(&fixture);
        fixture.eventually("the tree is mounted again", || tree.read("0/a/weight").ok());
        for (node, value) in [
            ("0/prio_ratio", "77"),
            ("0/policy", "4"),
            ("0/a/weight", "3"),
            ("default_memsize", &value),
        ] {
            assert_eq!(
                tree.read(node).expect("a node"),
                format!("{value}\n"),
                "{node} after kill {kill}"
            );
        }
        assert!(oracle.runs(), "it has read something else");
        if kill % 10 == 9 {
            println!("tree: {} of {kills} kills", kill + 1);
        }
    }
    fs::write(&end, "").expect("a file");
    oracle.finish().silent();
    for mut worker in workers {
        assert!(worker.rate() > 0.0);
        worker.finish();
    }
    monitor.process.signal(libc::SIGTERM);
    let outcome: Outcome = monitor.process.finish();
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    assert!(tree.read("version").is_err(), "it is unmounted");
}
