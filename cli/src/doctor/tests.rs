//! Plants each cause in a file system or a monitor's status, and checks that it is found.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use cgpu_client::message::{
    self, ContainerStatus, Ended, Finding, GpuStatus, ProcessStatus, ShareStatus, Sharing, Shim,
    Signal, Status,
};
use cgpu_client::wall::{WallState, WallStatus};
use cgpu_shm::grant::GrantWriter;
use cgpu_shm::layout::LAYOUT_VERSION;
use tempfile::TempDir;

use super::elf::tests::made;
use super::view::View;
use super::{container, examine_program, host, host_memory, preload};
use crate::region;
use cgpu_host_diagnosis::causes::{Cause, Findings, Question};

const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
const SHIM: &str = "/opt/libcgpu.so";

/// A file system in which all is well.
struct Fixture {
    root: TempDir,
    view: View,
}

impl Fixture {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let variables = [("LD_PRELOAD", SHIM), ("ALIYUN_COM_GPU_MEM_CONTAINER", "3")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let view = View { root: root.path().to_owned(), variables, user: 7, group: 7 };
        let fixture = Self { root, view };
        fixture.put(SHIM, &library(&[]));
        fixture.put("/opt/program", &made(MACHINE, Some(LOADER), true));
        for name in ["libcuda.so.1", "libnvidia-ml.so.1", "libc.so.6"] {
            fixture.put(&format!("/usr/lib/{name}"), &library(&["GLIBC_2.2.5", "GLIBC_2.17"]));
        }
        // Lets other users pass.
        fs::set_permissions(fixture.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fixture
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        let path = self.view.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        self.allow(&path, 0o755);
    }

    fn allow(&self, path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.view.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.view.variables.remove(name);
        self
    }

    /// Makes a container's folder and region.
    fn region(&self) -> &'static str {
        let folder = "/run/cgpu";
        fs::create_dir_all(self.view.path(folder)).unwrap();
        region::make(&self.view.path(folder), "a", None).unwrap();
        folder
    }

    fn preloaded(&self) -> Vec<&'static str> {
        let mut findings = Findings::default();
        preload::examine(&self.view, "it", None, &mut findings);
        findings.names()
    }

    fn program(&self) -> Vec<&'static str> {
        let mut findings = Findings::default();
        examine_program(&self.view, "/opt/program", true, &mut findings).unwrap();
        findings.names()
    }

    fn settings(&self) -> Vec<&'static str> {
        let mut findings = Findings::default();
        container::check_settings(&self.view, "it", &mut findings);
        findings.names()
    }

    fn container(&self) -> Vec<&'static str> {
        let mut findings = Findings::default();
        container::check_files(&self.view, Path::new("/run/cgpu"), "it", &mut findings);
        findings.names()
    }
}

/// A library that names these versions.
fn library(versions: &[&str]) -> Vec<u8> {
    let mut bytes = made(MACHINE, None, true);
    for version in versions {
        bytes.extend(version.bytes().chain([0]));
    }
    bytes
}

#[test]
fn healthy_system_has_no_findings() {
    let fixture = Fixture::new();
    assert_eq!(fixture.preloaded(), [""; 0]);
    assert_eq!(fixture.program(), [""; 0]);
    assert_eq!(fixture.settings(), [""; 0]);
}

#[test]
fn program_without_the_loader_has_a_cause() {
    let fixture = Fixture::new().with("PATH", "/nowhere:/opt");
    for (bytes, cause) in [
        (made(MACHINE, None, false), "static_program"),
        // Position-independent, but static.
        (made(MACHINE, None, true), "static_program"),
        (made(MACHINE, Some("/lib/ld-musl-x86_64.so.1"), true), "other_loader"),
        (made(3, Some("/lib/ld-linux.so.2"), true), "other_architecture"),
    ] {
        fixture.put("/opt/program", &bytes);
        assert_eq!(fixture.program(), [cause]);
    }
    // A script counts as its interpreter.
    fixture.put("/opt/static", &made(MACHINE, None, false));
    for script in ["#!/opt/static\n", "#! /opt/static -x\nmore", "#!/usr/bin/env -S static\n"] {
        fixture.put("/opt/program", script.as_bytes());
        assert_eq!(fixture.program(), ["static_program"], "{script}");
    }
    assert!(
        examine_program(&fixture.view, "/opt/nothing", true, &mut Findings::default()).is_err()
    );
}

#[test]
fn program_with_extra_rights_is_secure() {
    let fixture = Fixture::new();
    for mode in [0o4755, 0o2755] {
        fixture.allow(&fixture.view.path("/opt/program"), mode);
        assert_eq!(fixture.program(), ["secure_program"]);
    }
    // /etc/ld.so.preload applies to such programs, too.
    fixture.put("/etc/ld.so.preload", format!("# ours\n{SHIM}\n").as_bytes());
    let fixture = fixture.without("LD_PRELOAD");
    assert_eq!(fixture.program(), [""; 0]);
}

#[test]
fn invalid_preload_list_has_a_cause() {
    assert_eq!(Fixture::new().without("LD_PRELOAD").preloaded(), ["no_preload"]);
    assert_eq!(Fixture::new().with("LD_PRELOAD", "/opt/libother.so").preloaded(), ["no_preload"]);
    let other = |list| Fixture::new().with("LD_PRELOAD", list).preloaded();
    assert_eq!(other("/opt/libother.so:/opt/libcgpu.so"), ["other_preload_first"]);
    assert_eq!(other("/opt/libcgpu.so /opt/libother.so"), [""; 0]);
    assert_eq!(other("/opt/nowhere/libcgpu.so"), ["preload_missing"]);
    assert_eq!(other("libcgpu.so"), ["preload_missing"]);
    let fixture = Fixture::new();
    fixture.put("/usr/lib/libcgpu.so", &library(&[]));
    assert_eq!(fixture.with("LD_PRELOAD", "libcgpu.so").preloaded(), [""; 0]);

    let fixture = Fixture::new();
    fixture.put(SHIM, b"not a library");
    assert_eq!(fixture.preloaded(), ["preload_invalid"]);
    fixture.put(SHIM, &made(3, None, true));
    assert_eq!(fixture.preloaded(), ["preload_invalid"]);
    fixture.put(SHIM, &library(&["GLIBC_2.34", "GLIBC_2.17"]));
    assert_eq!(fixture.preloaded(), ["preload_too_new"]);
    fixture.put(SHIM, &library(&["GLIBC_2.17"]));
    assert_eq!(fixture.preloaded(), [""; 0]);

    // The C library beside the program's own loader counts.
    fixture.put(SHIM, &library(&["GLIBC_2.5"]));
    fixture.put("/opt/program", &made(MACHINE, Some("/opt/old/ld-2.5.so"), true));
    for (version, causes) in [("GLIBC_2.4", &["preload_too_new"][..]), ("GLIBC_2.5", &[])] {
        fixture.put("/usr/lib/libc.so.6", &library(&["GLIBC_2.5"]));
        fixture.put("/opt/old/libc.so.6", &library(&[version]));
        assert_eq!(fixture.program(), causes);
    }
    fixture.put(SHIM, &library(&["GLIBC_2.17"]));
    fixture.put("/usr/lib/libc.so.6", &library(&["GLIBC_2.17"]));

    for (path, mode) in [(SHIM, 0o600), ("/opt", 0o700)] {
        let mut fixture = Fixture::new();
        fixture.allow(&fixture.view.path(path), mode);
        assert_eq!(fixture.preloaded(), ["preload_unreadable"], "{path}");
        fixture.view.user = 0;
        assert_eq!(fixture.preloaded(), [""; 0]);
        fixture.allow(&fixture.view.path("/opt"), 0o755);
    }
}

#[test]
fn settings_of_the_shim_name_each_cause() {
    let set = |name, value| Fixture::new().with(name, value).settings();
    assert_eq!(set("CGPU_DISABLE", "true"), ["switched_off"]);
    assert_eq!(set("CGPU_DISABLE", "0"), [""; 0]);
    assert_eq!(set("CGPU_KEEP_DEEPBIND", "1"), ["keeps_deep_bind"]);
    assert_eq!(set("CGPU_KEEP_DEEPBIND", "0"), [""; 0]);
    assert_eq!(set("ALIYUN_COM_GPU_SCHD_WIEGHT", "2"), ["unknown_variable"]);
    assert_eq!(set("ALIYUN_COM_GPU_MEM_CONTAINER", "0"), ["limits_off"]);
    assert_eq!(set("ALIYUN_COM_GPU_MEM_CONTAINER", "1, 0,2"), ["limits_off"]);
    let fixture = Fixture::new().without("ALIYUN_COM_GPU_MEM_CONTAINER").with("CGPU_DISABLE", "0");
    assert_eq!(fixture.settings(), ["limits_off"]);
    // Limits from outside: variables do not count.
    let fixture = fixture.with("CGPU_KEEP_DEEPBIND", "1");
    fixture.put("/run/cgpu/limits", b"version 1\n");
    assert_eq!(fixture.settings(), [""; 0]);

    for (name, cause) in [("libcuda.so.1", "driver_missing"), ("libnvidia-ml.so.1", "nvml_missing")]
    {
        let fixture = Fixture::new();
        fs::remove_file(fixture.view.path(format!("/usr/lib/{name}"))).unwrap();
        assert_eq!(fixture.settings(), [cause]);
        fixture.put(&format!("/opt/driver/{name}"), b"");
        fixture.put("/etc/ld.so.cache", format!("x\0/opt/driver/{name}\0").as_bytes());
        assert_eq!(fixture.settings(), [""; 0]);
        fs::remove_file(fixture.view.path("/etc/ld.so.cache")).unwrap();
        assert_eq!(fixture.with("LD_LIBRARY_PATH", "/nowhere:/opt/driver").settings(), [""; 0]);
    }
}

#[test]
fn invalid_files_of_container_have_a_cause() {
    let fixture = Fixture::new();
    assert_eq!(fixture.container(), ["not_started"]);
    fixture.put("/run/cgpu/refused", b"A message.\n");
    assert_eq!(fixture.container(), ["refused"]);
    fs::remove_file(fixture.view.path("/run/cgpu/refused")).unwrap();

    let folder = fixture.region();
    let mut findings = Findings::default();
    assert!(container::check_region(&fixture.view.path(folder), "it", &mut findings));
    assert_eq!(findings.names(), ["not_started"]);
    assert_eq!(fixture.container(), ["not_started", "never_met"]);

    // A monitor that wrote once and exited.
    GrantWriter::open(&fixture.view.path(folder)).unwrap().adopt(1);
    assert_eq!(fixture.container(), ["not_started", "monitor_stale"]);

    let file = fs::File::options().write(true).open(fixture.view.path("/run/cgpu/use")).unwrap();
    file.write_all_at(&99_u32.to_ne_bytes(), 0).unwrap();
    assert_eq!(fixture.container(), ["region_version"]);
    file.write_all_at(&LAYOUT_VERSION.to_ne_bytes(), 0).unwrap();
    file.set_len(100).unwrap();
    assert_eq!(fixture.container(), ["region_unreadable"]);
}

/// A container may replace its region by a link; targets outside of its root do not count.
#[test]
fn link_out_of_container_is_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    region::make(outside.path(), "another", None).unwrap();
    GrantWriter::open(outside.path()).unwrap().adopt(1);
    for link in ["/run/cgpu", "/run"] {
        let fixture = Fixture::new();
        let target = if link == "/run" { outside.path().parent().unwrap() } else { outside.path() };
        let at = fixture.view.path(link);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, at).unwrap();
        let mut findings = Findings::default();
        let folder = if link == "/run" {
            Path::new("/run").join(outside.path().file_name().unwrap())
        } else {
            link.into()
        };
        container::check_files(&fixture.view, &folder, "it", &mut findings);
        assert_eq!(findings.names(), ["not_started"], "{link}");
    }
    // A link within the root is followed.
    let fixture = Fixture::new();
    let folder = fixture.view.path("/elsewhere");
    fs::create_dir_all(&folder).unwrap();
    region::make(&folder, "a", None).unwrap();
    fs::create_dir_all(fixture.view.path("/run")).unwrap();
    std::os::unix::fs::symlink("/elsewhere", fixture.view.path("/run/cgpu")).unwrap();
    assert_eq!(fixture.container(), ["not_started", "never_met"]);
    let mut findings = Findings::default();
    container::check_files(&fixture.view, Path::new("/run/cgpu"), "it", &mut findings);
    let text = findings.text();
    assert!(!text.contains("/proc/self/fd"), "{text}");
}

/// The status of a monitor with one GPU and one container, where all is well.
fn well() -> Status {
    let share = ShareStatus { limit: 1 << 30, used: 100 << 20, ..ShareStatus::default() };
    let container = ContainerStatus {
        id: "a".into(),
        dir: "/nowhere".into(),
        gpus: vec![share],
        ..ContainerStatus::default()
    };
    let gpu = GpuStatus {
        name: "NVIDIA A10".into(),
        policy: 1,
        sharing: Sharing::Contended,
        ..GpuStatus::default()
    };
    Status {
        version: env!("CARGO_PKG_VERSION").into(),
        gpus: vec![gpu],
        containers: vec![container],
        ..Status::default()
    }
}

fn causes_of(change: impl FnOnce(&mut Status)) -> Vec<&'static str> {
    let mut status = well();
    change(&mut status);
    let mut findings = Findings::default();
    host::check_status(&status, None, &mut findings);
    findings.names()
}

fn fault(kind: &str) -> Vec<&'static str> {
    causes_of(|status| {
        status.containers[0].faults.insert(kind.into(), "A message.".into());
    })
}

fn counted(reason: &str) -> Vec<&'static str> {
    causes_of(|status| status.containers[0].counters = BTreeMap::from([(reason.into(), 3)]))
}

#[test]
fn what_reaches_the_driver_past_the_shim_is_listed() {
    let list = |change: fn(&mut ContainerStatus)| {
        let mut status = well();
        change(&mut status.containers[0]);
        let mut findings = Findings::default();
        host::check_status(&status, None, &mut findings);
        (findings.names(), findings.text())
    };
    let (names, text) = list(|container| {
        container.export_tables = BTreeMap::from([
            ("6bd5fb6c-5bf4-e74a-8987-d93912fd9df9".into(), 2),
            ("others".into(), 70),
        ]);
    });
    assert_eq!(names, ["export_tables"]);
    assert!(text.contains("6bd5fb6c-5bf4-e74a-8987-d93912fd9df9 (2), others (70)"), "{text}");
    let (names, text) =
        list(|container| container.unknown_functions = [("cuMemAlloc_v3".into(), 1)].into());
    assert_eq!(names, ["unknown_function"]);
    assert!(text.contains("cuMemAlloc_v3 (1)"), "{text}");
}

fn finding(cause: message::Cause, container: Option<&str>) -> Finding {
    Finding {
        gpu: 0.into(),
        // No process has this id.
        pid: u32::MAX,
        comm: "x".into(),
        cause,
        container: container.map(str::to_owned),
        shim: Shim::Absent,
        memory: None,
        container_memory: 2 << 30,
        since_ms: 0,
    }
}

#[test]
fn container_without_seccomp_has_a_cause() {
    let found = |fixture: &Fixture, status: &str| {
        let mut findings = Findings::default();
        container::check_seccomp(&fixture.view, status, "it", &mut findings);
        findings.names()
    };
    let (none, filtered) = ("Name:\ta\nSeccomp:\t0\nSeccomp_filters:\t0\n", "Seccomp:\t2\n");
    let fixture = Fixture::new();
    assert_eq!(found(&fixture, none), [""; 0], "a program of the host");
    fixture.put("/run/cgpu/libcgpu.so", b"");
    assert_eq!(found(&fixture, none), ["no_seccomp"]);
    assert_eq!(found(&fixture, filtered), [""; 0]);
    assert_eq!(found(&fixture, ""), [""; 0]);
}

#[test]
fn status_of_monitor_and_gpus_has_causes() {
    assert_eq!(causes_of(|_| {}), [""; 0]);
    assert_eq!(causes_of(|status| status.version = "0.0.1".into()), ["release_mismatch"]);
    assert_eq!(causes_of(|status| status.warnings.push("A message.".into())), ["monitor_warning"]);
    assert_eq!(causes_of(|status| status.gpus[0].name.clear()), ["monitor_blind"]);
    assert_eq!(causes_of(|status| status.gpus[0].policy = 5), ["native_policy"]);
    let mps = |status: &mut Status| {
        status.gpus[0].policy = 5;
        status.gpus[0].mps = Some("It runs two.".into());
    };
    assert_eq!(causes_of(mps), ["mps"]);
    for sharing in [Sharing::Open, Sharing::Watched] {
        assert_eq!(causes_of(|status| status.gpus[0].sharing = sharing), ["alone"]);
    }
    let unverified = |status: &mut Status| {
        status.gpus[0].limits_unverified = Some("NVML does not answer.".into());
    };
    assert_eq!(causes_of(unverified), ["limits_unverified"]);
    let unattributed = |status: &mut Status| status.gpus[0].memory_unattributed = 900 << 20;
    assert_eq!(causes_of(unattributed), ["unattributed_memory"]);
    // A GPU without a container has no findings.
    assert_eq!(causes_of(|status| status.containers.clear()), [""; 0]);
}

#[test]
fn limits_of_the_driver_have_causes() {
    let wall =
        |wall: WallStatus| causes_of(|status| status.containers[0].gpus[0].wall = Some(wall));
    let driver = || WallStatus {
        state: WallState::Driver,
        hard: Some(9 << 30),
        used: Some(1 << 30),
        ..WallStatus::default()
    };
    assert_eq!(wall(driver()), [""; 0]);
    assert_eq!(wall(WallStatus { state: WallState::Partial, ..driver() }), ["wall_partial"]);
    let changed = Some("It.".into());
    assert_eq!(wall(WallStatus { changed, ..driver() }), ["wall_changed"]);
    assert_eq!(wall(WallStatus { is_forgotten: true, ..driver() }), ["wall_forgotten"]);
    for (options, expected) in [("rw", &["no_nsdelegate"][..]), ("rw,nsdelegate", &[])] {
        let (mut status, mut findings) = (well(), Findings::default());
        status.containers[0].gpus[0].wall = Some(driver());
        let mounts = format!("25 20 0:21 / /cg rw - cgroup2 cg {options}\n");
        host::check_delegation(&status, mounts.as_bytes(), &mut findings);
        assert_eq!(findings.names(), expected);
    }
    assert_eq!(wall(WallStatus { excess: 1 << 30, ..driver() }), ["wall_excess"]);
    assert_eq!(wall(WallStatus { excess: 1 << 20, ..driver() }), [""; 0], "a context");
    let shim = |absent: &str| WallStatus { absent: Some(absent.into()), ..WallStatus::default() };
    for refused in ["refused", "no_dmem", "not_found"] {
        assert_eq!(wall(shim(refused)), ["wall_refused"]);
    }
    for other in ["off", "old_driver", "mig", "no_own_group", "version_1", "pending"] {
        assert_eq!(wall(shim(other)), [""; 0], "{other}");
    }
}

#[test]
fn doctor_says_what_holds_each_limit_and_why() {
    let report = |wall: WallStatus, why| {
        let (mut status, mut findings) = (well(), Findings::default());
        status.containers[0].gpus[0].wall = Some(wall);
        host::check_status(&status, None, &mut findings);
        findings.about(why)
    };
    let shim = |absent: &str| WallStatus { absent: Some(absent.into()), ..WallStatus::default() };
    let driver = WallStatus {
        state: WallState::DriverExceptManaged,
        hard: Some(9 << 30),
        margin: 1 << 30,
        ..WallStatus::default()
    };
    for (wall, expected) in [
        (
            driver,
            "container a, GPU 0: limit held by: driver, except managed memory (9216 MiB, margin \
             1024 MiB); unconfirmed on a real GPU",
        ),
        (shim("mig"), "container a, GPU 0: limit held by: shim (MIG instance)"),
        (
            shim("version_1"),
            "container a, GPU 0: limit held by: shim (control groups of version 1)",
        ),
        (shim("old_driver"), "GPU 0: limits held by: shim (driver older than r615)"),
        (shim("off"), "GPU 0: limits held by: shim (switched off in monitor.toml)"),
    ] {
        for why in [None, Some(Question::Memory)] {
            let found = report(wall.clone(), why);
            assert!(found.is_well());
            assert_eq!(
                found.text(),
                format!("{expected}\nnothing is wrong; examined: container a\n")
            );
            assert_eq!(found.json()["notes"], serde_json::json!([expected]));
        }
        let other = report(wall, Some(Question::Shim));
        assert!(other.json()["notes"].is_null(), "{}", other.text());
    }
}

#[test]
fn status_of_containers_has_causes() {
    assert_eq!(
        causes_of(|status| status.containers[0].refused = Some("A message.".into())),
        ["refused"]
    );
    assert_eq!(fault("no_weight"), ["no_weight"]);
    assert_eq!(fault("unreadable"), ["region_unreadable"]);
    assert_eq!(fault("no_doorbell"), ["container_fault"]);
    assert_eq!(fault("tampered"), ["tampered"]);
    assert_eq!(fault("blocked"), ["blocked"]);
    assert_eq!(causes_of(|status| status.containers[0].gpus[0].used = 2 << 30), ["use_over_limit"]);
    assert_eq!(causes_of(|status| status.containers[0].gpus[0].draining = 1), ["draining"]);
    assert_eq!(causes_of(|status| status.containers[0].gpus[0].orphan = 1), ["orphans"]);
    for (reason, cause) in [
        ("over_limit", "over_limit"),
        ("context_over_limit", "over_limit"),
        ("code_over_limit", "over_limit"),
        ("driver_refused", "gpu_full"),
        ("managed_refused", "managed_memory"),
        ("unsupported", "unsupported"),
        ("missing_function", "unsupported"),
        ("lock_held", "stopped_process"),
        ("tampered", "tampered"),
        ("stale_monitor", "let_through"),
        ("length_clamped", "gpu_clock"),
    ] {
        assert_eq!(counted(reason), [cause], "{reason}");
    }
    assert_eq!(counted("capturing"), [""; 0]);
    assert_eq!(counted("clock_reanchored"), [""; 0], "a pause of 8 s causes it");
    assert_eq!(counted("of another release"), [""; 0]);
}

#[test]
fn host_memory_that_can_be_a_gpus_has_causes() {
    let fixture = Fixture::new();
    let found = || {
        let mut findings = Findings::default();
        host_memory::check(&fixture.view.root, &mut findings);
        findings.names()
    };
    assert_eq!(found(), [""; 0]);
    fixture.put("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm", b"N\n");
    assert_eq!(found(), ["hmm"]);
    fixture.put("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm", b"Y\n");
    assert_eq!(found(), [""; 0]);
    fixture.put("/sys/devices/system/node/has_cpu", b"0\n");
    fixture.put("/sys/devices/system/node/has_memory", b"0,1\n");
    fixture.put("/proc/driver/nvidia/gpus/0009:01:00.0/numa_status", b"Node: 1\n");
    assert_eq!(found(), ["gpu_numa_node"]);
    // What setup prints: the option, and the file to write it to.
    let advice = host_memory::advice(&fixture.view.root);
    let [advice] = &advice[..] else { panic!("{advice:?}") };
    assert!(advice.contains("options nvidia NVreg_CoherentGPUMemoryMode=driver"), "{advice}");
    assert!(advice.contains("/etc/modprobe.d"), "{advice}");
    assert!(!fixture.view.root.join("etc/modprobe.d").exists());
}

#[test]
fn refusals_are_past_and_can_be_left_out_by_their_age() {
    let mut status = well();
    let container = &mut status.containers[0];
    container.counters = [("over_limit", 3), ("context_over_limit", 1), ("managed_refused", 1)]
        .map(|(name, count)| (name.to_owned(), count))
        .into();
    container.counted_ago_ms = [("over_limit", 7_200_500), ("context_over_limit", 90_000)]
        .map(|(name, ago)| (name.to_owned(), ago))
        .into();
    let found = |since: Option<u64>| {
        let mut findings = Findings::default();
        host::check_status(&status, None, &mut findings);
        findings.since(since.map(Duration::from_secs))
    };
    let all = found(None);
    assert!(all.is_well(), "{}", all.text());
    assert_eq!(all.names(), ["over_limit", "managed_memory"]);
    assert_eq!(all.json()["causes"][0]["ago_s"], 90, "the last of both kinds");
    assert_eq!(all.json()["causes"][0]["severity"], "past");
    assert!(all.text().contains("(over_limit, past)"), "{}", all.text());
    assert!(all.text().contains("    last:  90 s ago\n"), "{}", all.text());
    assert!(all.text().contains("nothing is wrong now; examined: "), "{}", all.text());
    // The time of the other one is not known.
    assert_eq!(found(Some(90)).names(), ["over_limit", "managed_memory"]);
    assert_eq!(found(Some(89)).names(), ["managed_memory"]);
}

#[test]
fn tampered_accounting_stays_wrong() {
    let mut status = well();
    status.containers[0].counters.insert("tampered".into(), 1);
    status.containers[0].counted_ago_ms.insert("tampered".into(), 7_200_000);
    let mut findings = Findings::default();
    host::check_status(&status, None, &mut findings);
    let findings = findings.since(Some(Duration::from_secs(1)));
    assert!(!findings.is_well());
    assert_eq!(findings.names(), ["tampered"]);
}

#[test]
fn missing_nvml_is_by_design_on_a_simulated_gpu() {
    let (model, part) = (&cgpu_sim::gpu::MODELS[0], cgpu_sim::instance::Part::Whole);
    let spec =
        cgpu_sim::GpuSpec { model, total: cgpu_sim::Bytes::ZERO, part, place: Default::default() };
    let uuid = cgpu_shm::uuid::Uuid(spec.uuid(3)).to_string();
    let blind = |uuid: &str| {
        let mut status = well();
        let gpu = &mut status.gpus[0];
        (gpu.name, gpu.uuid) = (String::new(), uuid.to_owned());
        gpu.limits_unverified = Some("NVML does not answer.".into());
        let mut findings = Findings::default();
        host::check_status(&status, None, &mut findings);
        (findings.is_well(), findings.names())
    };
    assert_eq!(blind(&uuid), (true, vec!["simulated_gpu"]));
    let real = "GPU-5e8f5d7c-0000-4000-8000-000000000001";
    assert_eq!(blind(real), (false, vec!["monitor_blind", "limits_unverified"]));
}

#[test]
fn period_has_a_unit() {
    for (text, seconds) in [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86_400)] {
        assert_eq!(super::period(text), Ok(Duration::from_secs(seconds)), "{text}");
    }
    for text in ["", "m", "-1m", "1.5h", "1w", "99999999999", "1 m"] {
        assert!(super::period(text).is_err(), "{text}");
    }
}

#[test]
fn watcher_findings_have_causes() {
    use message::Cause::{OverLimit, Unshimmed};
    assert_eq!(
        causes_of(|status| status.findings.push(finding(Unshimmed, Some("a")))),
        ["unshimmed_process"]
    );
    assert_eq!(
        causes_of(|status| status.findings.push(finding(Unshimmed, None))),
        ["host_process"]
    );
    assert_eq!(
        causes_of(|status| status.findings.push(finding(OverLimit, Some("a")))),
        ["use_over_limit"]
    );
    let ended = Ended {
        pid: 1,
        comm: "x".into(),
        cause: Unshimmed,
        gpu: "GPU-1".into(),
        container: "a".into(),
        signal: Signal::Term,
        ago_ms: 0,
    };
    assert_eq!(causes_of(|status| status.ended.push(ended)), ["ended_process"]);
    // A finding of another container.
    let mut findings = Findings::default();
    let status = Status { findings: vec![finding(Unshimmed, Some("b"))], ..well() };
    host::check_status(&status, Some("a"), &mut findings);
    assert_eq!(findings.names(), [""; 0]);
}

#[test]
fn container_is_named_as_its_engine_names_it() {
    use message::Cause::OverLimit;
    let mut status = well();
    status.containers[0].name = "trainer".into();
    status.containers[0].faults.insert("no_weight".into(), "A message.".into());
    status.findings.push(finding(OverLimit, Some("a")));
    let mut findings = Findings::default();
    host::check_status(&status, None, &mut findings);
    let text = findings.text();
    assert_eq!(text.matches("  container trainer (a) (").count(), 2, "{text}");
    assert!(text.contains("examined: container trainer (a)"), "{text}");
}

#[test]
fn misspelt_variable_of_a_containers_process_has_a_cause() {
    use std::process::{Command, Stdio};
    let mut program = Command::new("sh");
    // It ends with the test, which holds its input.
    program.args(["-c", "echo started; read line"]).env("ALIYUN_COM_GPU_SCHD_WIEGHT", "2");
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    program.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
    let mut status = well();
    let process = ProcessStatus { host_pid: Some(program.id()), live: true, ..Default::default() };
    status.containers[0].processes.push(process);
    let mut findings = Findings::default();
    host::check_status(&status, None, &mut findings);
    program.wait().unwrap();
    assert!(findings.names().contains(&"unknown_variable"), "{}", findings.text());
}

#[test]
fn invalid_configuration_file_has_a_cause() {
    let mut findings = Findings::default();
    let faults = vec![("/etc/cgpu/runtime.toml", "line 2: unknown field `runtme`".to_owned())];
    host::add_invalid_files(faults, &mut findings);
    assert_eq!(findings.names(), ["invalid_config"]);
}

#[test]
fn absent_or_silent_monitor_has_a_cause() {
    let root = tempfile::tempdir().unwrap();
    let mut findings = Findings::default();
    host::examine(root.path(), None, &mut findings).unwrap();
    assert_eq!(findings.names(), ["no_monitor"]);
    assert!(host::examine(root.path(), Some("a"), &mut findings).is_err());

    // Reads the request and sends an invalid reply.
    let listener = UnixListener::bind(root.path().join("monitor.sock")).unwrap();
    let server = std::thread::spawn(move || {
        for stream in listener.incoming().take(2) {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(b"?\n");
        }
    });
    let mut findings = Findings::default();
    host::examine(root.path(), None, &mut findings).unwrap();
    assert_eq!(findings.names(), ["monitor_silent"]);
    // Unblocks `take(2)` if the command has connected only once.
    let _ = std::os::unix::net::UnixStream::connect(root.path().join("monitor.sock"));
    server.join().unwrap();
}

#[test]
fn findings_are_reported_as_text_and_json_wrong_first() {
    let mut findings = Findings::default();
    findings.examined("the environment");
    findings.add(Cause::Alone, "GPU 0", "");
    findings.add(Cause::NoMonitor, "the monitor", "no\x1b[2J");
    findings.add(Cause::LimitsOff, "it", "");
    findings.add(Cause::LimitsOff, "it", "");
    assert!(!findings.is_well() && findings.names().contains(&"alone"));
    let findings = findings.about(None);
    assert_eq!(findings.names(), ["limits_off", "no_monitor", "alone"]);
    let text = findings.text();
    assert!(
        text.starts_with(
            "Why is the shim not active?\n  it (limits_off, by design)\n    No memory limit"
        ),
        "{text}"
    );
    assert!(text.contains("    found: no?[2J\n    do:    Start cgpu-monitor"), "{text}");
    assert!(text.ends_with("something is wrong; examined: the environment\n"), "{text}");
    let data = findings.json();
    assert_eq!((&data["ok"], &data["causes"][1]["question"]), (&false.into(), &"throttle".into()));
    assert_eq!(data["causes"][0]["severity"], "by_design");
    let findings = findings.about(Some(Question::Shim));
    assert!(findings.is_well());
    assert!(findings.text().ends_with("nothing is wrong; examined: the environment\n"));
}
