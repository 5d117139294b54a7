//! Processes that are killed at any point: the others run on, and their memory is reclaimed.

use std::time::Duration;

use cgpu_e2e::{Child, Container, Fixture, MIB, Monitor, Outcome, Random};
use serde_json::Value;

#[test]
fn hundred_kills_leave_no_charge() {
    let fixture = Fixture::new("A10:23028");
    // The limit has room for the lingering memory of exited processes, so a new process always
    // finds enough for its context.
    let container = fixture.limited("a", 20 * 1024);
    let mut random = Random::new(20_260_101);
    let mut started = 0;
    let mut start = || {
        let mut command = fixture.program_in(&container, "churn");
        started += 1;
        command.args([started.to_string().as_str(), "8M"]);
        let mut child = Child::start_for(command, Duration::from_secs(280));
        child.line();
        child
    };
    let mut children: Vec<Child> = (0..4).map(|_| start()).collect();
    for _ in 0..100 {
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        let victim = usize::try_from(random.below(4)).expect("below four");
        let replaced = std::mem::replace(&mut children[victim], start());
        assert_eq!(replaced.kill().signal(), Some(libc::SIGKILL), "the victim had ended before");
        for child in &mut children {
            assert!(child.runs(), "a surviving process ended");
        }
    }
    for child in children {
        child.finish().silent();
    }
    fixture.wait_until_empty(&container);
}

#[test]
fn memory_of_exited_processes_is_reclaimed() {
    let fixture = Fixture::new("A10:23028");
    let container = fixture.limited("a", 4096);
    for _ in 0..5 {
        let mut command = fixture.program_in(&container, "hold");
        command.arg("3G");
        let mut holder = Child::start(command);
        assert!(holder.line().contains("\"held\": 3221225472"), "3 of 4 GiB are to be had");
        holder.kill();
    }
    let mut command = fixture.program_in(&container, "alloc_fill");
    command.arg("64M");
    Outcome::of(command).silent();
}

/// Room for the processes that are killed and for memory that is draining.
const LIMIT_MIB: u64 = 16 * 1024;

/// A process of the container that survives and sometimes allocates all that is free.
struct Sibling {
    child: Child,
    /// Bytes that are free when no other process has any.
    all: u64,
}

impl Sibling {
    fn of(fixture: &Fixture, container: &Container) -> Self {
        let mut child =
            Child::start_for(fixture.program_in(container, "take"), Duration::from_secs(280));
        child.line();
        let mut sibling = Self { child, all: 0 };
        let free = sibling.request("info")["free"].as_u64().expect("bytes");
        sibling.all = free / (2 * MIB) * (2 * MIB);
        sibling
    }

    fn request(&mut self, what: &str) -> Value {
        self.child.write(&format!("{what}\n"));
        serde_json::from_str(&self.child.line()).expect("an answer")
    }

    /// Allocates the whole limit as soon as it is granted, so when the exited processes' memory has
    /// been reclaimed. By then it must be free on the GPU, too, apart from what was never charged.
    /// Frees it then.
    fn allocates_all(&mut self, fixture: &Fixture, uncharged: u64) {
        let take = format!("take {}", self.all);
        let answer = fixture.eventually("memory of exited processes can be allocated", || {
            let answer = self.request(&take);
            if answer["result"] == 0 {
                return Some(answer);
            }
            // A monitor reconciles memory that was passed between processes only while the charges
            // do not change. Reading changes none.
            fixture.eventually("memory of exited processes is free", || {
                (self.request("info")["free"].as_u64() >= Some(self.all)).then_some(())
            });
            None
        });
        let on_gpu = answer["on_gpu"].as_u64().expect("bytes");
        assert!(
            on_gpu <= LIMIT_MIB * MIB + uncharged,
            "{on_gpu} bytes are in use of a GPU of {LIMIT_MIB} MiB"
        );
        assert_eq!(self.request("give")["result"], 0);
    }

    fn ends(self, fixture: &Fixture, container: &Container) {
        self.child.finish().silent();
        fixture.wait_until_empty(container);
        fixture.eventually("the GPU is empty", || (fixture.on_gpu() == 0).then_some(()));
    }
}

/// A driver version with all functions.
const NEWEST: &str = "13050";
const AT_ONCE: usize = 4;

/// Kills processes with this kind of memory inside of each of these calls (`NAME`, or `NAME:N` for
/// the N-th one), before the driver has done anything and after it has done everything.
fn kill_inside(route: &str, calls: &[&str], uncharged: u64) {
    kill_inside_on(&Fixture::new("A10:23028"), route, calls, uncharged);
}

/// As [`kill_inside`], for memory that can be shared, with a monitor that sees when the last
/// process frees it. Without one the charge stays as long as a process of the container lives.
fn kill_inside_with_monitor(route: &str, calls: &[&str]) {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start(&fixture);
    kill_inside_on(&fixture, route, calls, 0);
}

fn kill_inside_on(fixture: &Fixture, route: &str, calls: &[&str], uncharged: u64) {
    let container = fixture.limited("a", LIMIT_MIB);
    let mut sibling = Sibling::of(fixture, &container);
    for moment in ["KILL", "KILL_AFTER"] {
        for calls in calls.chunks(AT_ONCE) {
            let start = |call: &&str| {
                let nth = if call.contains(':') { "" } else { ":1" };
                let fault = format!("{call}{nth}:{moment}");
                let mut command = fixture.program_in(&container, "mortal");
                command.arg(route).env("CGPU_SIM_DRIVER", NEWEST).env("CGPU_SIM_FAULT", &fault);
                (fault, Child::start(command))
            };
            let dying: Vec<_> = calls.iter().map(start).collect();
            for (fault, child) in dying {
                let outcome = child.end();
                assert_eq!(outcome.signal(), Some(libc::SIGKILL), "{fault}: {outcome:?}");
            }
            sibling.allocates_all(fixture, uncharged);
        }
    }
    sibling.ends(fixture, &container);
}

#[test]
fn kill_inside_process_start_leaves_no_charge() {
    kill_inside("linear", &["cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"], 0);
}

#[test]
fn kill_inside_linear_memory_calls_leaves_no_charge() {
    kill_inside(
        "linear",
        &["cuMemAlloc_v2", "cuMemAlloc_v2:2", "cuMemAllocPitch_v2", "cuMemFree_v2"],
        0,
    );
}

#[test]
fn kill_inside_pool_calls_leaves_no_charge() {
    let calls = [
        "cuMemPoolCreate",
        "cuMemPoolSetAttribute",
        "cuMemAllocAsync",
        "cuMemAllocFromPoolAsync",
        "cuMemFreeAsync",
        "cuStreamSynchronize",
        "cuMemPoolTrimTo",
        "cuMemPoolDestroy",
        "cuMemPoolGetAttribute",
    ];
    kill_inside("pools", &calls, 0);
}

#[test]
fn kill_inside_physical_memory_calls_leaves_no_charge() {
    let calls = [
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemRetainAllocationHandle",
        "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle",
        "cuMemUnmap",
        "cuMemRelease",
    ];
    kill_inside_with_monitor("physical", &calls);
    let calls = [
        "cuMemGetHandleForAddressRange",
        "cuMemFree_v2",
        "cuMemGetHandleForAddressRange:2",
        "cuMemUnmap",
    ];
    kill_inside_with_monitor("ranges", &calls);
}

#[test]
fn kill_inside_array_calls_leaves_no_charge() {
    // The first array is created only to measure its size.
    let calls = [
        "cuArray3DCreate_v2",
        "cuArray3DCreate_v2:2",
        "cuMipmappedArrayCreate",
        "cuMipmappedArrayCreate:2",
        "cuArrayDestroy",
        "cuArrayDestroy:2",
        "cuMipmappedArrayDestroy",
    ];
    kill_inside("arrays", &calls, 0);
}

#[test]
fn kill_inside_graph_calls_leaves_no_charge() {
    let calls = [
        "cuGraphAddMemAllocNode",
        "cuGraphInstantiateWithFlags",
        "cuGraphUpload",
        "cuGraphLaunch",
        "cuGraphLaunch:3",
        "cuDeviceGetGraphMemAttribute",
        "cuStreamSynchronize",
        "cuGraphExecDestroy",
        "cuGraphDestroy",
        "cuDeviceGraphMemTrim",
        "cuMemAllocAsync",
        "cuStreamEndCapture",
    ];
    kill_inside("graphs", &calls, 0);
}

#[test]
fn kill_inside_module_and_library_calls_leaves_no_charge() {
    let calls = [
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuLaunchKernel",
        "cuModuleUnload",
        "cuLibraryLoadData",
        "cuLibraryGetModule",
        "cuKernelGetFunction",
        "cuLibraryUnload",
    ];
    // A block of code for each, which is loaded at a first launch or look-up and charged
    // afterwards.
    kill_inside("modules", &calls, AT_ONCE as u64 * 2 * MIB);
}

#[test]
fn kill_inside_context_calls_leaves_no_charge() {
    let calls = [
        "cuCtxCreate_v2",
        "cuCtxSetLimit",
        "cuCtxDestroy_v2",
        "cuGreenCtxCreate",
        "cuGreenCtxDestroy",
        "cuDevicePrimaryCtxReset_v2",
        "cuDevicePrimaryCtxRelease_v2",
        "cuDevicePrimaryCtxRetain:2",
    ];
    // A green context's own memory is charged after it was created.
    kill_inside("contexts", &calls, AT_ONCE as u64 * 8 * MIB);
}

#[test]
fn kill_inside_external_memory_calls_leaves_no_charge() {
    let calls = [
        "cuImportExternalMemory",
        "cuExternalMemoryGetMappedBuffer",
        "cuExternalMemoryGetMappedMipmappedArray",
        "cuDestroyExternalMemory",
        "cuMemFree_v2",
        "cuMipmappedArrayDestroy",
    ];
    // Its allocation is not seen.
    kill_inside("foreign", &calls, AT_ONCE as u64 * 16 * MIB);
}

#[test]
fn kill_inside_bound_memory_calls_leaves_no_charge() {
    let calls = [
        "cuMulticastCreate",
        "cuMulticastAddDevice",
        "cuMulticastBindMem",
        "cuMulticastUnbind",
        "cuMemRelease",
        "cuMemRelease:3",
        "cuLogicalEndpointCreate",
        "cuLogicalEndpointBindMem",
        "cuLogicalEndpointUnbind",
        "cuLogicalEndpointDestroy",
        "cuLogicalEndpointIdRelease",
        "cuMemMapArrayAsync",
        "cuArrayDestroy",
    ];
    kill_inside_on(&Fixture::new("B200:23028"), "bound", &calls, 0);
}

#[test]
fn kill_inside_export_and_import_calls_leaves_no_charge() {
    let exports = [
        "cuIpcGetMemHandle",
        "cuMemExportToShareableHandle",
        "cuMemPoolExportToShareableHandle",
        "cuMemPoolExportPointer",
        "cuMemFree_v2",
        "cuMemRelease",
        "cuMemFreeAsync",
        "cuMemPoolDestroy",
    ];
    kill_inside_with_monitor("export", &exports);
    let imports = [
        "cuIpcOpenMemHandle_v2",
        "cuMemImportFromShareableHandle",
        "cuMemMap",
        "cuMemPoolImportFromShareableHandle",
        "cuMemPoolImportPointer",
        "cuIpcCloseMemHandle",
        "cuMemUnmap",
        "cuMemFreeAsync",
    ];
    kill_inside_with_monitor("import", &imports);
}

#[test]
fn kills_at_random_times_leave_no_charge() {
    const ROUTES: [&str; 12] = [
        "linear", "pools", "physical", "ranges", "arrays", "graphs", "foreign", "modules",
        "contexts", "bound", "export", "import",
    ];
    let fixture = Fixture::new("B200:23028");
    let _monitor = Monitor::start(&fixture);
    let container = fixture.limited("a", LIMIT_MIB);
    let mut sibling = Sibling::of(&fixture, &container);
    let mut random = Random::new(20_261_123);
    let mut routes = ROUTES.into_iter().cycle();
    let mut start = || {
        let route = routes.next().expect("there is no end");
        let mut command = fixture.program_in(&container, "mortal");
        command.arg(route).env("CGPU_SIM_DRIVER", NEWEST);
        let mut child = Child::start_for(command, Duration::from_secs(280));
        child.line();
        (route, child)
    };
    let mut children: Vec<_> = (0..AT_ONCE).map(|_| start()).collect();
    for _ in 0..4 * ROUTES.len() {
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        let victim = usize::try_from(random.below(AT_ONCE as u64)).expect("below four");
        let (route, replaced) = std::mem::replace(&mut children[victim], start());
        let outcome = replaced.kill();
        assert_eq!(outcome.signal(), Some(libc::SIGKILL), "{route} had ended before: {outcome:?}");
        assert_eq!(sibling.request("take 2M")["result"], 0, "its sibling goes on");
        assert_eq!(sibling.request("give")["result"], 0);
    }
    for (route, child) in children {
        let outcome = child.finish();
        assert_eq!(outcome.code(), Some(0), "{route}: {outcome:?}");
    }
    sibling.allocates_all(&fixture, 0);
    sibling.ends(&fixture, &container);
}
