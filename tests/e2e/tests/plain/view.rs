//! What a container sees of a GPU: its limit, its own processes by their own IDs, and no others.

use std::process::Command;

use cgpu_e2e::{Child, Container, ControlGroups, Fixture, MIB, Monitor, Outcome, contained, skip};
use serde_json::Value;

const A10: &str = "A10:23028";
const LIMIT: u64 = 4 * 1024 * MIB;

struct NvmlView(Child);

impl NvmlView {
    fn start(command: Command) -> Self {
        Self(Child::start(command))
    }

    fn read(&mut self) -> Value {
        self.send("")
    }

    fn send(&mut self, line: &str) -> Value {
        self.0.write(&format!("{line}\n"));
        serde_json::from_str(&self.0.line()).expect("JSON")
    }
}

fn list(seen: &Value, name: &str) -> Vec<(u64, u64)> {
    let entries = seen[name].as_array().unwrap_or_else(|| panic!("no {name} in {seen}"));
    let number = |value: &Value| value.as_u64().expect("a number");
    entries.iter().map(|entry| (number(&entry[0]), number(&entry[1]))).collect()
}

fn sum(list: &[(u64, u64)]) -> u64 {
    list.iter().map(|(_, figure)| figure).sum()
}

fn pids(list: &[(u64, u64)]) -> Vec<u64> {
    list.iter().map(|(pid, _)| *pid).collect()
}

/// The process IDs of a GPU's NVML, and whether they can be translated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Naming {
    /// Those of the caller's PID namespace.
    Container,
    /// Those of the host, with a monitor that translates them.
    Host,
    /// Those of the host, without a monitor.
    HostUntranslated,
}

/// Two containers in PID namespaces of their own, two processes in the first, one in the second,
/// and the host.
struct Setup {
    fixture: Fixture,
    a: NvmlView,
    b: NvmlView,
    host: NvmlView,
    _monitor: Option<Monitor>,
}

impl Setup {
    fn set(naming: Naming) -> Option<Self> {
        let fixture = Fixture::new(A10);
        let named = |mut command: Command| {
            command.env("CGPU_SIM_HOST_PIDS", if naming == Naming::Container { "0" } else { "1" });
            command
        };
        // The first process sets the naming of the GPU's NVML.
        let mut host = NvmlView::start(named(fixture.program("who")));
        host.read();
        let monitor = (naming == Naming::Host).then(|| Monitor::start(&fixture));
        let limited = |name| fixture.limited(name, LIMIT / MIB);
        let inside = |container: &Container, script: &str| {
            let mut command = fixture.native_in(container, "/bin/sh".as_ref());
            command.args(["-c", script]).arg(fixture.dist().program("who"));
            contained(&named(command), naming == Naming::Container).map(NvmlView::start)
        };
        let Some(mut a) = inside(&limited("a"), "(sleep 300 | \"$0\" 100M) & exec \"$0\" 200M")
        else {
            skip("view", "unshare", "PID namespaces need root or user namespaces");
            return None;
        };
        // A context's cost is measured by the GPU's free memory. Until the monitor corrects it, it
        // may include a neighbour's memory.
        fixture
            .eventually("two processes", || (list(&a.read(), "compute").len() == 2).then_some(()));
        let b = inside(&limited("b"), "exec \"$0\" 300M")?;
        Some(Self { fixture, a, b, host, _monitor: monitor })
    }

    /// Waits until all are on the GPU and nothing changes any more, so that consecutive samples
    /// agree.
    fn wait_until_stable(&mut self) -> [Value; 3] {
        let Self { fixture, a, b, host, .. } = self;
        let mut before = None;
        fixture.eventually("three processes on the GPU", || {
            let seen = [a.read(), b.read(), host.read()];
            let lengths = seen.each_ref().map(|seen| list(seen, "compute").len());
            (before.replace(seen.clone()).as_ref() == Some(&seen) && lengths == [2, 1, 3])
                .then_some(seen)
        })
    }
}

/// Asserts that a container lists its own processes by its own IDs, that the host lists all, and
/// that the bytes agree.
fn lists(naming: Naming) {
    let Some(mut setup) = Setup::set(naming) else { return };
    let [a, b, host] = setup.wait_until_stable();
    for (seen, count) in [(&a, 2), (&b, 1)] {
        let own = list(seen, "compute");
        assert_eq!(own.len(), count);
        assert!(pids(&own).contains(&1), "the first process of its namespace: {seen}");
        assert_eq!(seen["total"], LIMIT);
        assert_eq!(sum(&own), seen["used"].as_u64().expect("used"), "{seen}");
        assert_eq!(sum(&own) + seen["free"].as_u64().expect("free"), LIMIT, "{seen}");
        assert!(list(seen, "graphics").is_empty() && list(seen, "mps").is_empty());
    }
    let all = list(&host, "compute");
    let inside = [list(&a, "compute"), list(&b, "compute")].concat();
    assert_eq!(sum(&all), sum(&inside), "inside {a} {b}, outside {host}");
    assert!(
        pids(&all).iter().all(|pid| !pids(&inside).contains(pid)),
        "inside {a} {b}, outside {host}"
    );
    assert_eq!(host["total"], 23_028 * MIB);
}

#[test]
fn lists_have_the_containers_own_processes_by_their_own_ids() {
    lists(Naming::Container);
}

#[test]
fn lists_with_host_pids_are_made_from_the_ledger() {
    lists(Naming::HostUntranslated);
}

#[test]
fn client_of_mps_is_on_the_lists_on_which_the_host_has_it() {
    let fixture = Fixture::new(A10);
    let start = |mut command: Command, bytes: &str| {
        command.arg(bytes).env("CGPU_SIM_MPS", "1");
        NvmlView::start(command)
    };
    let mut host = start(fixture.program("who"), "100M");
    host.read();
    let mut own = start(fixture.program_in(&fixture.limited("a", LIMIT / MIB), "who"), "200M");
    let seen = own.read();
    let all = host.read();
    for name in ["compute", "mps"] {
        assert_eq!(pids(&list(&seen, name)), [seen["pid"].as_u64().expect("an id")], "{seen}");
        assert_eq!(list(&all, name).len(), 2, "{all}");
    }
}

fn utilisation(naming: Naming) {
    let Some(mut setup) = Setup::set(naming) else { return };
    setup.wait_until_stable();
    let Setup { fixture, a, b, host, .. } = &mut setup;
    let own = |seen: &Value| {
        let (busy, info) = (list(seen, "busy"), list(seen, "busy_info"));
        // A window may end between the two calls.
        let mine = |list: &[(u64, u64)]| pids(list).iter().all(|pid| *pid == seen["pid"]);
        assert!(mine(&busy) && mine(&info), "another container's: {seen}");
        !busy.is_empty() && !info.is_empty()
    };
    fixture.eventually("own utilisation", || {
        let seen = [a.send("work"), b.send("work")];
        let computing = seen.each_ref().map(own);
        (computing == [true; 2] || naming == Naming::HostUntranslated).then_some(())
    });
    let all = fixture.eventually("the host's utilisation", || {
        a.send("work");
        b.send("work");
        let seen = host.read();
        (list(&seen, "busy").len() == 2).then_some(seen)
    });
    assert_eq!(list(&all, "compute").len(), 3);
}

#[test]
fn utilisation_is_the_containers_own() {
    utilisation(Naming::Container);
}

#[test]
fn utilisation_by_host_pids_is_translated_by_the_monitor() {
    utilisation(Naming::Host);
}

#[test]
fn untranslatable_utilisation_is_hidden() {
    utilisation(Naming::HostUntranslated);
}

#[test]
fn exited_process_leaves_the_list_at_once() {
    let fixture = Fixture::new(A10);
    let container = fixture.limited("a", LIMIT / MIB);
    let start = |bytes: &[&str]| {
        let mut command = fixture.program_in(&container, "who");
        command.args(bytes);
        NvmlView::start(command)
    };
    let (mut tool, mut holder) = (start(&[]), start(&["1G"]));
    let pid = holder.read()["pid"].as_u64().expect("a process");
    assert_eq!(pids(&list(&tool.read(), "compute")), [pid], "the tool itself is not on the GPU");
    holder.0.kill();
    let seen = tool.read();
    assert!(list(&seen, "compute").is_empty(), "{seen}");
    // Its memory may still be used, but has no owner in the list.
    fixture.eventually("all free", || (tool.read()["used"] == 0).then_some(()));
}

/// Live processes by their own IDs; the maximum use is the ledger's.
#[test]
fn accounting_lists_the_containers_own_processes() {
    let fixture = Fixture::new(A10);
    // SAFETY: no obligations; geteuid cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return skip("view", "root", "accounting is switched on by root");
    }
    let start = |mut command: Command, bytes: &[&str]| {
        command.args(bytes);
        NvmlView::start(command)
    };
    let mut host = start(fixture.program("who"), &[]);
    host.send("account");
    let (a, b) = (fixture.limited("a", LIMIT / MIB), fixture.limited("b", LIMIT / MIB));
    let own = |view: &mut NvmlView| {
        let seen = view.read();
        (seen["pid"].as_u64().expect("a process"), list(&seen, "accounted"))
    };
    // One after the other: without a monitor, a context is charged for what others allocate while
    // it is created (up to 1 GiB).
    let one_more = |container: &Container, bytes: &str| {
        let mut view = start(fixture.program_in(container, "who"), &[bytes]);
        let _ = own(&mut view);
        view
    };
    let (mut first, mut ended) = (one_more(&a, "1G"), one_more(&a, "2G"));
    let mut other = one_more(&b, "500M");
    let (gone, _) = own(&mut ended);
    let (theirs, accounted) = own(&mut other);
    assert_eq!(pids(&accounted), [theirs]);
    ended.0.kill();
    let (mine, accounted) = own(&mut first);
    assert_eq!(pids(&accounted), [mine], "neither a neighbour's nor an exited process's");
    assert!((1024 * MIB..LIMIT).contains(&accounted[0].1), "{accounted:?}");
    let all = pids(&list(&host.read(), "accounted"));
    assert!([mine, theirs, gone].iter().all(|pid| all.contains(pid)), "{all:?}");
}

#[test]
fn vendor_limits_are_capped_at_the_limit() {
    // The program names the group of that folder.
    let _groups = match ControlGroups::mount_for_engines("vendor_limits") {
        Ok(groups) => groups,
        Err(reason) => return skip("view", "cgroups", &reason),
    };
    let fixture = Fixture::new(A10).walled("dmem");
    let mut command = fixture.program_in(&fixture.limited("a", LIMIT / MIB), "who");
    command.arg("1G");
    let seen = NvmlView::start(command).read();
    let limits = &seen["limits"];
    assert_eq!((&limits["soft"], &limits["hard"]), (&0.into(), &LIMIT.into()), "{seen}");
    assert_eq!(limits["used"], seen["used"]);
    // Without the shim, the driver's answer: no limit.
    let seen = NvmlView::start(fixture.program("who")).read();
    assert_eq!(seen["limits"]["hard"], u64::MAX, "{seen}");
    // A driver with the functions, and without such limits.
    let fixture = Fixture::new(A10);
    for mut command in
        [fixture.program("who"), fixture.program_in(&fixture.limited("a", LIMIT / MIB), "who")]
    {
        command.env("CGPU_SIM_DRIVER", "13050");
        assert!(NvmlView::start(command).read()["limits"].is_null());
    }
}

/// The container's processes are unknown then, so none is listed; the GPU's own values stay.
#[test]
fn process_list_is_empty_after_a_refused_start() {
    let fixture = Fixture::new(A10);
    let mut neighbour = NvmlView::start({
        let mut command = fixture.program("who");
        command.arg("1G");
        command
    });
    assert_eq!(list(&neighbour.read(), "compute").len(), 1);
    let refused = fixture.container("a").with("ALIYUN_COM_GPU_MEM_CONTAINER", "lots");
    let seen = NvmlView::start(fixture.program_in(&refused, "who")).read();
    assert!(seen["compute"].is_null() && seen["mps"].is_null(), "{seen}");
    assert_eq!(seen["total"], 23_028 * MIB);
}

#[test]
fn all_processes_are_shown_without_a_limit() {
    let fixture = Fixture::new(A10);
    let mut command = fixture.program("who");
    command.arg("1G");
    let mut neighbour = NvmlView::start(command);
    let pid = neighbour.read()["pid"].as_u64().expect("a process");
    for off in
        [fixture.container("a"), fixture.container("b").with("ALIYUN_COM_GPU_MEM_CONTAINER", "0")]
    {
        let seen = NvmlView::start(fixture.program_in(&off, "who")).read();
        assert_eq!(pids(&list(&seen, "compute")), [pid], "{seen}");
    }
}

/// An instance is a device of its own; the partitioned GPU lists the processes of all of the
/// container's instances.
#[test]
fn instances_are_as_large_as_their_limits() {
    let fixture = Fixture::new("A100:40960/mig=3g.20gb,1g.5gb");
    let container = fixture.container("a").with("ALIYUN_COM_GPU_MEM_CONTAINER", "4,2");
    Outcome::of(fixture.program_in(&container, "init")).silent();
    let accounting = fixture.accounting(&container);
    let named = |gpu: &Value| gpu["uuid"].as_str().expect("a UUID").replacen("GPU", "MIG", 1);
    let uuids: Vec<String> =
        accounting["gpus"].as_array().expect("gpus").iter().map(named).collect();
    let command = |instance: &str, bytes: &str| {
        let rank = container.clone().with("CUDA_VISIBLE_DEVICES", instance);
        let mut command = fixture.program_in(&rank, "who");
        command.arg(bytes);
        command
    };
    let pid = |view: &mut NvmlView| view.read()["pid"].as_u64().expect("a process");
    let mut first = NvmlView::start(command(&uuids[0], "500M"));
    let one = pid(&mut first);
    let mut second = NvmlView::start(command(&uuids[1], "700M"));
    let other = pid(&mut second);
    let seen = first.read();
    assert_eq!(pids(&list(&seen, "compute")), [one, other]);
    let instances = seen["instances"].as_array().expect("instances");
    for (instance, (gib, pid)) in instances.iter().zip([(4, one), (2, other)]) {
        assert_eq!(instance["mib"], gib * 1024);
        assert_eq!(instance["total"], gib * 1024 * MIB);
        let own = list(instance, "compute");
        assert_eq!(pids(&own), [pid]);
        assert_eq!(instance["used"], sum(&own));
    }
}
