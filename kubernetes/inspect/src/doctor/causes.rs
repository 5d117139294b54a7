//! The table of causes: what can be wrong, and what to do about it. `docs/troubleshooting.md` is
//! written from it.

/// A question of the user. Its help text is the heading of its causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Question {
    /// Why is this pod pending?
    Pending,
    /// Why is it not limited?
    Unlimited,
    /// Why has it no GPU?
    NoGpu,
}

/// Causes that the checks found.
pub(crate) type Findings = cgpu_diagnosis::Findings<Cause>;

cgpu_diagnosis::causes! {
    // The pod is pending.
    NotUnderstood, Pending, Wrong, "not_understood",
        "The pod's request is invalid, so no node can take it.",
        "Correct its limits or its label aliyun.com/gpu-count, as the message says.";
    NeverFits, Pending, Wrong, "never_fits",
        "No node could take the pod, even without other pods.",
        "Request less of each GPU, divide the request over several (label aliyun.com/gpu-count), \
         or add a node with larger GPUs.";
    NoRoom, Pending, Wrong, "no_room",
        "No node has enough free for the pod.",
        "Wait until other pods end, request less, divide the request over several GPUs (label \
         aliyun.com/gpu-count), or add a node.";
    NoNodes, Pending, Wrong, "no_nodes",
        "No node shares its GPUs.",
        "Label a node (kubectl label node NODE gpushare=true), and check that cgpu-device-plugin \
         runs on it.";
    Unseen, Pending, Wrong, "unseen",
        "A node fits the pod, but no scheduler has tried it.",
        "Run a scheduler with the name in the pod's schedulerName, or change that name to a \
         scheduler that runs.";
    ExtenderSilent, Pending, Wrong, "extender_silent",
        "A node fits the pod, but the extender does not answer the scheduler.",
        "Check that cgpu-scheduler-extender runs, and that urlPrefix in the scheduler's \
         configuration is its address.";
    OtherObstacle, Pending, Wrong, "other_obstacle",
        "A node has free GPUs for the pod, but the scheduler does not place it for another reason.",
        "Do what the scheduler's message says; the extender does not check taints, selectors, CPU \
         and memory.";
    Claimed, Pending, ByDesign, "claimed",
        "GPUs are claimed for the pod, and it is not bound yet.",
        "Wait: a claim that is not bound within a minute is withdrawn, and the scheduler tries \
         again.";
    NodeNotReady, Pending, Wrong, "node_not_ready",
        "The pod's node is not ready.",
        "Find out why (kubectl describe node); to run the pod elsewhere, delete it.";
    StartRefused, Pending, Wrong, "start_refused",
        "A container of the pod is not started.",
        "Do what the message says; if cgpu-runtime refused the container, the node's log has the \
         message, too.";
    Starting, Pending, ByDesign, "starting",
        "The pod is on its node, has its GPUs, and has not been started yet.",
        "Wait, and read its events (kubectl describe pod): images are pulled, volumes mounted.";
    // It runs without a limit.
    IsolationOff, Unlimited, ByDesign, "isolation_off",
        "The node's label cgpu.disable.isolation is `true`: its containers have no limits.",
        "Remove the label, and recreate the pods.";
    ModeShare, Unlimited, ByDesign, "mode_share",
        "The node's label ack.node.gpu.schedule is `share`: its GPUs are shared without limits.",
        "Set it to `cgpu` (memory) or `core_mem` (memory and compute), and recreate the pods.";
    SwitchedOff, Unlimited, ByDesign, "switched_off",
        "The pod sets CGPU_DISABLE.",
        "Remove the variable.";
    NoRuntime, Unlimited, Wrong, "no_runtime",
        "The node's engine has no runtime `cgpu`: containers that request a GPU are not started, \
         or have no limit.",
        "Check that cgpu-node runs there, or install cgpu and run `cgpu setup containerd \
         --default`; then recreate the pods.";
    OtherRuntime, Unlimited, Wrong, "other_runtime",
        "The pod's runtime class is not that of cgpu: its containers bypass cgpu-runtime, and are \
         not started, or have no limit.",
        "Set the class `cgpu`, or none if cgpu is the node's default.";
    NotBound, Unlimited, Wrong, "not_bound",
        "The pod runs, but cgpu-runtime has not requested its slice: its containers were started \
         by another runtime. They have no GPU, or no limit if they name a GPU themselves.",
        "Configure the node's engine to start containers by cgpu-runtime (cgpu-node, or `cgpu \
         setup containerd --default`), and recreate the pod.";
    // It has no GPU.
    RequestsNothing, NoGpu, ByDesign, "requests_nothing",
        "The pod requests no part of a GPU.",
        "Set aliyun.com/gpu-mem in the limits of a container.";
    Bypassed, NoGpu, Wrong, "bypassed",
        "The pod was bound without the extender: no GPU was chosen for it, and its containers are \
         not started.",
        "Delete it, and have its owner set schedulerName to a scheduler with the extender, and no \
         nodeName.";
    Spoilt, NoGpu, Wrong, "spoilt",
        "The pod's annotations about its GPUs do not match its request; it counts on every GPU of \
         its node.",
        "Delete the pod; its owner makes another one.";
    Rejected, NoGpu, Wrong, "rejected",
        "The kubelet has rejected the pod, which is final.",
        "Do what the message says, and delete the pod: its owner creates another.";
    Ended, NoGpu, ByDesign, "ended",
        "The pod has ended: it holds nothing, and does not start again.",
        "Read its logs (kubectl logs); if it has an owner, that may create another.";
    TakenOut, NoGpu, ByDesign, "taken_out",
        "The node's labels exclude it: its GPUs are not shared.",
        "Set gpushare to `true`, and ack.node.gpu.schedule to `cgpu`, `core_mem` or `share`.";
    GpusUnreadable, NoGpu, Wrong, "gpus_unreadable",
        "The node's record of its GPUs is invalid.",
        "Do what the message says.";
    NoPlugin, NoGpu, Wrong, "no_plugin",
        "The node is labelled for sharing, but cgpu-device-plugin has reported no GPUs.",
        "Check the plugin's pod on that node and its log (kubectl logs); it needs the driver.";
    PluginFailing, NoGpu, Wrong, "plugin_failing",
        "cgpu-device-plugin does not run on the node.",
        "Read its log (kubectl logs) and its events.";
    NoUnits, NoGpu, Wrong, "no_units",
        "The node has GPUs, but its kubelet has no aliyun.com/gpu-mem to allocate.",
        "Restart the plugin's pod on that node: it registers with the kubelet when it starts.";
    GpuUnhealthy, NoGpu, Wrong, "gpu_unhealthy",
        "A GPU is unhealthy: no new pods are placed on it.",
        "Read the driver's messages (dmesg, nvidia-smi -q); the GPU is used again when it is \
         healthy.";
    OverFull, NoGpu, Wrong, "over_full",
        "Pods hold more of a GPU than it has: no new pods are placed on it.",
        "Find its pods (kubectl inspect gpushare -d), and delete those that bypassed the extender.";
    LabelIgnored, NoGpu, ByDesign, "label_ignored",
        "A label has an unknown name or value, and is ignored.",
        "Correct the label, or remove it.";
    // Files of the node.
    RuntimeMissing, Unlimited, Wrong, "runtime_missing",
        "This node lacks a file of cgpu that containers need.",
        "Check that cgpu-node runs here, or install cgpu (deploy/install.sh).";
    EngineUnconfigured, Unlimited, Wrong, "engine_unconfigured",
        "No engine of this node is configured for cgpu-runtime.",
        "Run `cgpu setup containerd --default` (or crio), and restart the engine.";
    NotDefault, Unlimited, Wrong, "not_default",
        "cgpu-runtime is configured, but not as the default: pods without a runtime class bypass \
         it.",
        "Run `cgpu setup containerd --default` (or crio) and restart the engine, or set the \
         runtime class cgpu in the pods.";
    PluginAbsent, NoGpu, Wrong, "plugin_absent",
        "The plugin's socket is not in the kubelet's folder: the kubelet knows of no GPUs.",
        "Check that cgpu-device-plugin runs on this node.";
}
