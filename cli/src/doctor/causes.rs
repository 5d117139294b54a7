//! The table of causes: what can be wrong, and what to do about it. `docs/troubleshooting.md` is written
//! from it. The checks beside this file add them to the findings; causes of a cluster are in
//! `kubernetes/inspect/src/doctor/causes.rs`.

/// What a user asks; its help is the heading of its causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Question {
    /// Why is the shim not active?
    Shim,
    /// Why is there no throttle?
    Throttle,
    /// Why was this allocation refused?
    Memory,
}

/// What the checks found.
pub(crate) type Findings = cgpu_diagnosis::Findings<Cause>;

cgpu_diagnosis::causes! {
    // The program, and what the loader does with it.
    StaticProgram, Shim, Wrong, "static_program",
        "The program is statically linked: no loader runs for it that could preload anything.",
        "Link it dynamically; nothing in a process can limit one that is not (end_unshimmed in monitor.toml ends such processes of containers).";
    SecureProgram, Shim, Wrong, "secure_program",
        "The program runs with more rights than its user (set-user-ID, set-group-ID, capabilities): the loader ignores LD_PRELOAD for it.",
        "Name libcgpu.so in /etc/ld.so.preload, which counts for such programs too, or take the extra rights from the program.";
    OtherLoader, Shim, Wrong, "other_loader",
        "The program is for another C library than glibc: libcgpu.so cannot be loaded into it.",
        "Use an image with glibc, as the driver's own libraries need one too.";
    OtherArchitecture, Shim, Wrong, "other_architecture",
        "The program is for another architecture than libcgpu.so: the loader ignores the library.",
        "Use a build of the program for the architecture of libcgpu.so.";
    NoPreload, Shim, Wrong, "no_preload",
        "Nothing loads libcgpu.so into the program: neither LD_PRELOAD nor /etc/ld.so.preload names it.",
        "Start the program with `cgpu run`; where something between clears the environment, name libcgpu.so in /etc/ld.so.preload.";
    PreloadMissing, Shim, Wrong, "preload_missing",
        "The libcgpu.so that is to be preloaded is not there: the loader ignores it and goes on.",
        "Put libcgpu.so where LD_PRELOAD or /etc/ld.so.preload says, or correct those.";
    PreloadUnreadable, Shim, Wrong, "preload_unreadable",
        "The libcgpu.so that is to be preloaded may not be read by this user: the loader ignores it and goes on.",
        "Let everybody read the file and pass its folders (chmod a+r, a+x).";
    PreloadInvalid, Shim, Wrong, "preload_invalid",
        "The file that is to be preloaded is no shared library for this architecture: the loader ignores it and goes on.",
        "Put the libcgpu.so of this architecture there.";
    PreloadTooNew, Shim, Wrong, "preload_too_new",
        "libcgpu.so needs a newer C library than the program has: the loader ignores it and goes on.",
        "Use the portable build (`cargo xtask build --portable`), which is for glibc 2.17 and newer.";
    OtherPreloadFirst, Shim, Wrong, "other_preload_first",
        "Another library is preloaded before libcgpu.so: if it looks functions up itself, it hides the driver from the shim.",
        "Name libcgpu.so first, as `cgpu run` does.";
    ReplacedShim, Shim, ByDesign, "replaced_shim",
        "The process has a libcgpu.so that has been replaced on disk since: it keeps it until it ends.",
        "Start the process again to have it use the new one.";
    // What the shim was told.
    SwitchedOff, Shim, ByDesign, "switched_off",
        "CGPU_DISABLE switches the shim off.",
        "Unset CGPU_DISABLE.";
    LimitsOff, Shim, ByDesign, "limits_off",
        "No memory limit is set: ALIYUN_COM_GPU_MEM_CONTAINER is not set, or has a zero in it.",
        "Set ALIYUN_COM_GPU_MEM_CONTAINER, or start the program with `cgpu run --mem`.";
    Refused, Shim, Wrong, "refused",
        "The shim refused to start: cuInit fails, and nothing can be allocated.",
        "Do what its sentence says, and start the program again.";
    DriverMissing, Shim, Wrong, "driver_missing",
        "There is no driver: libcuda.so.1 is on none of the loader's paths.",
        "Install the driver, or start the container with it (--gpus, the NVIDIA runtime, CDI).";
    NvmlMissing, Shim, Wrong, "nvml_missing",
        "NVML is missing: libnvidia-ml.so.1 is on none of the loader's paths, so GPUs cannot be told apart by index.",
        "Start the container with the driver's `utility` capability (NVIDIA_DRIVER_CAPABILITIES), or name the GPUs by UUID.";
    NotStarted, Shim, ByDesign, "not_started",
        "The shim is there, and nobody has started CUDA yet: there is nothing to limit.",
        "Nothing: it begins with the first cuInit.";
    // The region.
    RegionUnreadable, Shim, Wrong, "region_unreadable",
        "The container's files cannot be used: no books can be kept in them.",
        "Do what the sentence about the file says; files that nobody uses may be removed.";
    RegionVersion, Shim, Wrong, "region_version",
        "The container's files are of another version of their layout.",
        "Use the same release inside and outside; end the container and start it again.";
    ContainerFault, Shim, Wrong, "container_fault",
        "The monitor has found something wrong with the container.",
        "Do what its sentence says.";
    // The monitor.
    NoMonitor, Throttle, Wrong, "no_monitor",
        "No monitor runs: memory limits hold, and time is not shared out.",
        "Start cgpu-monitor on the host (systemctl start cgpu-monitor).";
    NeverMet, Throttle, Wrong, "never_met",
        "No monitor has ever found this container: memory limits hold, and its time is not shared out.",
        "Start cgpu-monitor on the host, with a root that has the container's folder below containers/, or register the folder.";
    MonitorStale, Throttle, Wrong, "monitor_stale",
        "The monitor's heart has not beaten for a second: gates are open until it does.",
        "See whether cgpu-monitor runs on the host, and its log (systemctl status cgpu-monitor).";
    MonitorSilent, Throttle, Wrong, "monitor_silent",
        "The monitor has its socket open and does not answer.",
        "Restart it (systemctl restart cgpu-monitor): tenants go on meanwhile, and nothing that was set is lost.";
    ReleaseMismatch, Throttle, Wrong, "release_mismatch",
        "The monitor is of another release than this command.",
        "Have the installed one take over: cgpu upgrade.";
    MonitorWarning, Throttle, Wrong, "monitor_warning",
        "The monitor has a warning.",
        "Do what it says.";
    MonitorBlind, Throttle, Wrong, "monitor_blind",
        "The monitor has no NVML: it knows of no GPUs but those that containers name, and of no process without the shim.",
        "Install the driver where the monitor runs, or say which NVML to load (nvml in monitor.toml); it looks again every 2 s.";
    NativePolicy, Throttle, ByDesign, "native_policy",
        "The GPU's policy is 5 (native): only memory is limited.",
        "Set another: cgpu set N/policy 1.";
    Alone, Throttle, ByDesign, "alone",
        "No other container computes on the GPU: there is nobody to take turns with.",
        "Nothing: turns begin when a second container computes. A part also for who is alone is policy 3.";
    NoWeight, Throttle, Wrong, "no_weight",
        "The GPU has no places left for the container: it gets less than it asked for, or no compute at all.",
        "Lower a weight (cgpu set N/ID/weight), raise N/max_inst, or end another container.";
    UnshimmedProcess, Throttle, Wrong, "unshimmed_process",
        "A process of the container uses a GPU without the shim: nothing limits it, and it waits for no turn.",
        "Start it so that the shim is loaded (what else is said of it here tells why it was not); end_unshimmed in monitor.toml ends such processes.";
    HostProcess, Throttle, ByDesign, "host_process",
        "A process of no container uses the GPU beside them: nothing limits it, and it waits for no turn.",
        "Start it with `cgpu run` to have it share the GPU.";
    LetThrough, Throttle, Wrong, "let_through",
        "Launches were let through because the monitor's heart did not beat.",
        "See why the monitor was away or held up (its log, the load of the host).";
    GpuClock, Throttle, Wrong, "gpu_clock",
        "The GPU's clock gave lengths of work that cannot be: the clock was set, or is more than 500 ppm off.",
        "If the count no longer grows, nothing: a reset of the GPU does this once. Otherwise report it, with the GPU and the driver's version.";
    EndedProcess, Throttle, ByDesign, "ended_process",
        "The monitor has ended a process that used a GPU without the shim, or held too much of it, as its configuration wants.",
        "Start the process with the shim and within its limit, or take end_unshimmed, end_over_limit_mib out of monitor.toml.";
    // Memory.
    OverLimit, Memory, Wrong, "over_limit",
        "Allocations were refused because they would have gone over the container's limit.",
        "Raise the limit (cgpu set N/ID/memsize), or have the program take less; what contexts and modules take counts too.";
    UseOverLimit, Memory, Wrong, "use_over_limit",
        "The container has more than its limit: nothing new is granted until its use has fallen.",
        "Free memory or end processes in it, or raise the limit; a limit that was lowered and code of first launches bring this about.";
    GpuFull, Memory, Wrong, "gpu_full",
        "The driver refused memory that the limit allows: the GPU itself is full.",
        "See who holds it (cgpu smi); limits that add up to more than the GPU, and processes of no container, bring this about.";
    ManagedMemory, Memory, Wrong, "managed_memory",
        "Managed memory was refused, as it always is: no limit could hold it.",
        "Use device memory (cuMemAlloc, cudaMalloc, pools).";
    Unsupported, Memory, Wrong, "unsupported",
        "A call was refused because it is not supported under a limit, or the driver lacks it.",
        "docs/support.md lists what is refused, and why; use another call.";
    StoppedProcess, Memory, Wrong, "stopped_process",
        "An allocation gave up because a stopped process of the container holds the books.",
        "Continue (kill -CONT) or end the process that is stopped.";
    Draining, Memory, ByDesign, "draining",
        "Memory of processes that have ended is still on the books: the driver has not given it back yet.",
        "Wait a moment; an allocation that fails for it alone waits by itself.";
    Orphans, Memory, ByDesign, "orphans",
        "Memory that dead processes had handed to others is on the container's books until nobody has it.",
        "End whoever has imported it.";
}

#[cfg(test)]
mod tests {
    use cgpu_diagnosis::fixture;

    use super::Cause;

    #[test]
    fn each_cause_has_a_name_a_message_and_a_remedy() {
        fixture::check_table::<Cause>();
    }

    #[test]
    fn the_page_lists_every_cause() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/troubleshooting.md");
        fixture::check_page::<Cause>(page, "causes");
    }

    #[test]
    fn every_cause_is_planted_by_a_test() {
        let end_to_end = include_str!("../../../tests/e2e/tests/plain/doctor.rs");
        fixture::check_planted::<Cause>(&[include_str!("tests.rs"), end_to_end].concat());
    }
}
