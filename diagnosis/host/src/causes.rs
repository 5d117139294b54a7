//! The table of causes: what can be wrong, and what to do about it. `docs/troubleshooting.md` is
//! generated from it. [`status`](crate::status) and the checks of
//! `cli/src/doctor` add them to the findings. Causes of a cluster are
//! in `kubernetes/inspect/src/doctor/causes.rs`.

/// A user's question; its help is the heading of its causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Question {
    /// Why is the shim not active?
    Shim,
    /// Why is compute not limited?
    Throttle,
    /// Why was this allocation refused?
    Memory,
}

/// Causes that were found.
pub type Findings = cgpu_diagnosis::Findings<Cause>;

cgpu_diagnosis::causes! {
    pub enum Cause:

    // The program, and what the loader does with it.
    StaticProgram, Shim, Wrong, "static_program",
        "The program is statically linked: it has no loader to preload libcgpu.so.",
        "Link it dynamically. A static program cannot be limited; end_unshimmed in monitor.toml ends such processes.";
    SecureProgram, Shim, Wrong, "secure_program",
        "The program runs with more rights than its user (set-user-ID, set-group-ID, capabilities): the loader ignores LD_PRELOAD for it.",
        "Name libcgpu.so in /etc/ld.so.preload, which also applies to such programs, or remove the extra rights.";
    OtherLoader, Shim, Wrong, "other_loader",
        "The program uses another C library than glibc, so libcgpu.so cannot be loaded.",
        "Use an image with glibc, which the driver's libraries need, too.";
    OtherArchitecture, Shim, Wrong, "other_architecture",
        "The program is for another architecture than libcgpu.so: the loader ignores the library.",
        "Use a program for the architecture of libcgpu.so.";
    NoPreload, Shim, Wrong, "no_preload",
        "libcgpu.so is not loaded: neither LD_PRELOAD nor /etc/ld.so.preload names it.",
        "Start the program with `cgpu run`; if something clears the environment in between, name libcgpu.so in /etc/ld.so.preload.";
    PreloadMissing, Shim, Wrong, "preload_missing",
        "The libcgpu.so to preload does not exist, so the loader ignores it.",
        "Put libcgpu.so where LD_PRELOAD or /etc/ld.so.preload expects it, or correct the path.";
    PreloadUnreadable, Shim, Wrong, "preload_unreadable",
        "This user may not read the libcgpu.so to preload, so the loader ignores it.",
        "Let all users read the file and search its folders (chmod a+r, a+x).";
    PreloadInvalid, Shim, Wrong, "preload_invalid",
        "The file to preload is not a shared library for this architecture, so the loader ignores it.",
        "Replace it by the libcgpu.so for this architecture.";
    PreloadTooNew, Shim, Wrong, "preload_too_new",
        "libcgpu.so needs a newer glibc than the program has, so the loader ignores it.",
        "Use the portable build (`cargo xtask build --portable`), which needs glibc 2.17 or newer.";
    OtherPreloadFirst, Shim, Wrong, "other_preload_first",
        "Another library is preloaded before libcgpu.so: if it hooks dlsym, it hides the driver from the shim.",
        "Name libcgpu.so first in LD_PRELOAD, as `cgpu run` does. In a container of cgpu-runtime, begin LD_PRELOAD with /run/cgpu/libcgpu.so.";
    ReplacedShim, Shim, ByDesign, "replaced_shim",
        "libcgpu.so was replaced on disk after the process started; the process keeps the old one.",
        "Restart the process to use the new one.";
    NoSeccomp, Shim, Wrong, "no_seccomp",
        "The container has no seccomp filter: its programs may make namespaces and mounts, hide libcgpu.so from themselves and leave their limits.",
        "Start the container with the engine's default profile (seccompProfile RuntimeDefault in a pod; not --privileged, not seccomp=unconfined). end_unshimmed in monitor.toml ends processes that left.";
    // The shim's settings.
    SwitchedOff, Shim, ByDesign, "switched_off",
        "CGPU_DISABLE switches the shim off.",
        "Unset CGPU_DISABLE.";
    KeepsDeepBind, Shim, ByDesign, "keeps_deep_bind",
        "CGPU_KEEP_DEEPBIND is set: libraries that the program opens with RTLD_DEEPBIND may bypass the shim.",
        "Unset CGPU_KEEP_DEEPBIND, unless a plugin needs the flag and does not use the GPU.";
    UnknownVariable, Shim, Wrong, "unknown_variable",
        "A variable's name begins as those of cgpu, and cgpu has no such variable.",
        "Correct the name, or unset the variable.";
    LimitsOff, Shim, ByDesign, "limits_off",
        "No memory limit is set: ALIYUN_COM_GPU_MEM_CONTAINER is not set, or contains a zero.",
        "Set ALIYUN_COM_GPU_MEM_CONTAINER, or start the program with `cgpu run --mem`.";
    Refused, Shim, Wrong, "refused",
        "The shim refused to start: cuInit fails.",
        "Do what its message says, and restart the program.";
    DriverMissing, Shim, Wrong, "driver_missing",
        "The driver is missing: libcuda.so.1 is in no folder of the loader.",
        "Install the driver, or start the container with a GPU (--gpus, the NVIDIA runtime, CDI).";
    NvmlMissing, Shim, Wrong, "nvml_missing",
        "NVML is missing: libnvidia-ml.so.1 is in no folder of the loader, so GPUs cannot be selected by index.",
        "Start the container with the driver's `utility` capability (NVIDIA_DRIVER_CAPABILITIES), or select the GPUs by UUID.";
    NotStarted, Shim, ByDesign, "not_started",
        "No process has initialized CUDA yet, so there is nothing to limit.",
        "Nothing: limits start with the first cuInit.";
    // The region.
    RegionUnreadable, Shim, Wrong, "region_unreadable",
        "The container's files cannot be used, so its memory cannot be accounted.",
        "Do what the message about the file says; unused files may be removed.";
    RegionVersion, Shim, Wrong, "region_version",
        "The container's files have another layout version.",
        "Use the same release inside and outside, and restart the container.";
    ContainerFault, Shim, Wrong, "container_fault",
        "The monitor reports a fault of the container.",
        "Do what its message says.";
    // The host.
    InvalidConfig, Shim, Wrong, "invalid_config",
        "A configuration file of the host is invalid: no container with a slice starts, or the monitor does not.",
        "Correct the line that the message names, and check again with cgpu check-config.";
    // The monitor.
    NoMonitor, Throttle, Wrong, "no_monitor",
        "No monitor runs: memory limits apply, compute is not shared.",
        "Start cgpu-monitor on the host (systemctl start cgpu-monitor).";
    NeverMet, Throttle, Wrong, "never_met",
        "No monitor has found this container: memory limits apply, compute is not shared.",
        "Start cgpu-monitor on the host, with the root whose containers/ has the container's folder, or register the folder.";
    MonitorStale, Throttle, Wrong, "monitor_stale",
        "The monitor's heartbeat has stopped for 1 s or more, so compute is not limited.",
        "Check cgpu-monitor on the host (systemctl status cgpu-monitor) and its log.";
    MonitorSilent, Throttle, Wrong, "monitor_silent",
        "The monitor has its socket open but does not answer.",
        "Restart it (systemctl restart cgpu-monitor). Containers continue, and settings are kept.";
    ReleaseMismatch, Throttle, Wrong, "release_mismatch",
        "The monitor has another release than this command.",
        "Replace it by the installed one: cgpu upgrade.";
    MonitorWarning, Throttle, Wrong, "monitor_warning",
        "The monitor reports a warning.",
        "Do what the warning says.";
    MonitorBlind, Throttle, Wrong, "monitor_blind",
        "The monitor has no NVML, so it cannot find GPUs that no container uses, or programs that bypass cgpu.",
        "Install the driver where the monitor runs, or set nvml in monitor.toml; it tries again every 2 s.";
    SimulatedGpu, Throttle, ByDesign, "simulated_gpu",
        "The GPU is simulated inside its programs, so the monitor has no NVML for it: utilisation, temperature and the memory that others use are not known.",
        "Nothing. A real GPU needs the driver where the monitor runs.";
    NativePolicy, Throttle, ByDesign, "native_policy",
        "The GPU's policy is 5 (native): only memory is limited.",
        "Set another policy: cgpu set N/policy 1.";
    Mps, Throttle, ByDesign, "mps",
        "MPS runs the work of several containers on the GPU at the same time, so the GPU has no turns (policy 5). Memory is limited.",
        "For turns, end the daemon of MPS (nvidia-cuda-mps-control, command quit), and start the containers' programs again.";
    Alone, Throttle, ByDesign, "alone",
        "No other container computes on the GPU, so there are no turns.",
        "Nothing: turns begin when a second container computes. Policy 3 also limits a single container.";
    NoWeight, Throttle, Wrong, "no_weight",
        "The GPU has too few free capacity units: the container gets a smaller weight, or no compute.",
        "Lower a weight (cgpu set N/ID/weight), raise N/max_inst, or end another container.";
    UnshimmedProcess, Throttle, Wrong, "unshimmed_process",
        "A process of the container uses a GPU without the shim, so it is not limited.",
        "Start it so that the shim is loaded (other causes of this process say why it was not). end_unshimmed in monitor.toml ends such processes.";
    HostProcess, Throttle, ByDesign, "host_process",
        "A process outside of containers uses the GPU, so it is not limited.",
        "Start it with `cgpu run` to limit it.";
    LetThrough, Throttle, Past, "let_through",
        "Launches were not limited while the monitor's heartbeat had stopped.",
        "Check why the monitor was stopped or slow (its log, the load of the host).";
    GpuClock, Throttle, Past, "gpu_clock",
        "The GPU's clock gave impossible durations: it was set, or is off by more than 500 ppm.",
        "If the count does not grow, nothing: a reset of the GPU causes this once. Otherwise report it with the GPU's and the driver's version.";
    EndedProcess, Throttle, Past, "ended_process",
        "The monitor ended a process that used a GPU without the shim or exceeded its limit, as configured.",
        "Start the process with the shim and within its limit, or change end_unshimmed or over_limit in monitor.toml.";
    // Memory.
    OverLimit, Memory, Past, "over_limit",
        "Allocations were refused because they exceeded the container's limit.",
        "Raise the limit (cgpu set N/ID/memsize), or allocate less. Memory of contexts and modules counts, too.";
    UseOverLimit, Memory, Wrong, "use_over_limit",
        "The container uses more than its limit: allocations are refused until it uses less.",
        "Free memory, end processes, or raise the limit. A lowered limit or code loaded by a first launch can cause this.";
    Tampered, Memory, Wrong, "tampered",
        "Something other than cgpu has written to the container's file `use`, or the driver charges its control group more than the file has though all of its processes have the shim: its accounting is wrong.",
        "Find the program that writes there, and start the container again. over_limit in monitor.toml blocks or ends containers that hold more than their limit.";
    Blocked, Memory, Wrong, "blocked",
        "The container holds more than its limit and the margin, so the monitor lets it allocate nothing (over_limit in monitor.toml).",
        "End the processes that hold it. If code that the driver loads takes that much, raise over_limit_margin_mib.";
    LimitsUnverified, Memory, Wrong, "limits_unverified",
        "NVML does not report what the containers hold of a GPU: only their own accounting is compared with their limits.",
        "Run the monitor in the host's PID namespace. Some MIG and WSL drivers have no such figures: do not give those GPUs to tenants that you do not trust.";
    WallPartial, Memory, Wrong, "wall_partial",
        "The driver limits the container's control group, and does not charge all that the container holds (unconfirmed on a real GPU).",
        "Start the container again while the monitor runs. Containers that share a limit: the shim holds it for them together. A process in another control group: find out how it came there, and end it.";
    WallChanged, Memory, Wrong, "wall_changed",
        "Another program has changed the driver's limit of the container's control group: the lower one applies (unconfirmed on a real GPU).",
        "Find the program (nvidia-smi memory-limits, NVIDIA's container hook), and let one of the two set the limit: wall = \"off\" in monitor.toml leaves it to the other.";
    WallRefused, Memory, Wrong, "wall_refused",
        "The driver does not limit the container's control group, so the shim alone holds the limit (unconfirmed on a real GPU).",
        "Do what the reason says: where dmem is missing, write +dmem into cgroup.subtree_control of the group that it names; or set wall = \"off\" in monitor.toml.";
    WallExcess, Memory, Wrong, "wall_excess",
        "The driver charges the container's control group more than its ledger has: that came past the shim (unconfirmed on a real GPU).",
        "Find the processes (cgpu smi) and why they have no shim (cgpu doctor --pid). over_limit in monitor.toml blocks or ends containers that hold more than their limit.";
    WallForgotten, Memory, Wrong, "wall_forgotten",
        "The GPU's persistence mode is off: the driver forgets the limits of control groups when no program uses the GPU and no monitor runs (unconfirmed on a real GPU).",
        "Switch it on: start nvidia-persistenced, or run nvidia-smi -pm 1.";
    NoNsdelegate, Memory, Wrong, "no_nsdelegate",
        "The host's control groups are mounted without nsdelegate: a container without a seccomp filter can start a program in another container's control group, where the driver does not limit it (unconfirmed on a real GPU).",
        "Mount them with it, as systemd does: mount -o remount,nsdelegate /sys/fs/cgroup; and start containers with the engine's default seccomp profile. over_limit in monitor.toml ends programs that hold more than the limit.";
    UnattributedMemory, Memory, Wrong, "unattributed_memory",
        "Memory of the GPU is in use that no process has and no container is charged for: a container exported it and ended, and another program still holds a descriptor of it.",
        "Find the program among those that have the driver's files open (sudo lsof /dev/nvidiactl) and do not use the GPU, and end it.";
    Hmm, Memory, Wrong, "hmm",
        "HMM is on: a kernel that uses memory of plain malloc can move it to the GPU, where no limit counts it.",
        "Write `options nvidia_uvm uvm_disable_hmm=1` into a file in /etc/modprobe.d, and restart the host. Kernels can then no longer use memory of plain malloc.";
    GpuNumaNode, Memory, Wrong, "gpu_numa_node",
        "The GPU's memory is a NUMA node of the host: programs and the kernel can place host memory there, where no limit counts it.",
        "Write `options nvidia NVreg_CoherentGPUMemoryMode=driver` into a file in /etc/modprobe.d (driver 580 or newer), and restart the host; or keep containers off the node (docker run --cpuset-mems).";
    GpuFull, Memory, Past, "gpu_full",
        "The driver refused memory that the limit allows: the GPU itself is full.",
        "Find what uses it (cgpu smi): limits that add up to more than the GPU has, or processes outside of containers.";
    ManagedMemory, Memory, Past, "managed_memory",
        "Managed memory was refused, as always: it cannot be limited.",
        "Use device memory (cuMemAlloc, cudaMalloc, memory pools).";
    UnknownFunction, Memory, Wrong, "unknown_function",
        "The driver has functions that take memory, by their names, and that this release of cgpu does not know: memory that programs take by them is not limited.",
        "Install a release of cgpu that knows the driver, or an older driver. Until then over_limit in monitor.toml blocks or ends containers that hold more than their limit.";
    ExportTables, Memory, ByDesign, "export_tables",
        "Programs got private tables of the driver, whose functions cgpu does not see (cuGetExportTable).",
        "Nothing: the CUDA runtime gets some in every program. docs/limits.md says what their functions can do.";
    Unsupported, Memory, Past, "unsupported",
        "A call was refused because it is not supported under a limit, or missing in the driver.",
        "Use another call; docs/support.md lists what is refused, and why.";
    StoppedProcess, Memory, Past, "stopped_process",
        "An allocation failed because a stopped process holds the container's ledger lock.",
        "Continue (kill -CONT) or end the stopped process.";
    Draining, Memory, ByDesign, "draining",
        "Memory of ended processes is still accounted: the driver has not freed it yet.",
        "Nothing: the memory is freed soon, and an allocation that fails only for it waits.";
    Orphans, Memory, ByDesign, "orphans",
        "Exported memory of ended processes is accounted until no process has it imported.",
        "End the processes that have imported it.";
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
    fn page_lists_every_cause() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/troubleshooting.md");
        fixture::check_page::<Cause>(page, "causes");
    }

    #[test]
    fn every_cause_is_planted_by_a_test() {
        let tests = include_str!("../../../cli/src/doctor/tests.rs");
        let end_to_end = include_str!("../../../tests/e2e/tests/plain/doctor.rs");
        fixture::check_planted::<Cause>(&[tests, end_to_end].concat());
    }
}
