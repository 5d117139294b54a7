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
    // The pod waits.
    NotUnderstood, Pending, Wrong, "not_understood",
        "What the pod asks for is not understood, so it is on no node.",
        "Correct its limits or its label aliyun.com/gpu-count, as the sentence says.";
    NeverFits, Pending, Wrong, "never_fits",
        "No node could take the pod, whoever went.",
        "Ask for less of each GPU, spread it over several (label aliyun.com/gpu-count), or add a node with larger GPUs.";
    NoRoom, Pending, Wrong, "no_room",
        "No node has room for the pod now.",
        "Wait until others end, ask for less, spread it over several GPUs (label aliyun.com/gpu-count), or add a node.";
    NoNodes, Pending, Wrong, "no_nodes",
        "No node shares its GPUs.",
        "Mark one (kubectl label node NODE gpushare=true), and see that cgpu-device-plugin runs on it.";
    Unseen, Pending, Wrong, "unseen",
        "There is room for the pod, and no scheduler has looked at it.",
        "Run a scheduler of the name that the pod says (schedulerName), or have the pod name one that runs.";
    ExtenderSilent, Pending, Wrong, "extender_silent",
        "There is room for the pod, but the scheduler gets no answer from the extender.",
        "See that cgpu-scheduler-extender runs, and that urlPrefix in the scheduler's configuration is its address.";
    OtherObstacle, Pending, Wrong, "other_obstacle",
        "There is room for the pod on a GPU, and the scheduler keeps it for another reason.",
        "Do what the scheduler's words say: taints, selectors, CPU and memory are not the extender's.";
    Claimed, Pending, ByDesign, "claimed",
        "GPUs are chosen for the pod, and it is not bound yet.",
        "Wait: a claim that is not bound within a minute is withdrawn, and the scheduler asks again.";
    NodeNotReady, Pending, Wrong, "node_not_ready",
        "The pod's node is not ready.",
        "See why (kubectl describe node); a pod that is to run elsewhere must be deleted.";
    StartRefused, Pending, Wrong, "start_refused",
        "A container of the pod is not started.",
        "Do what the sentence says; what cgpu-runtime refuses it refuses in one sentence, and also in the node's log.";
    Starting, Pending, ByDesign, "starting",
        "The pod is on its node, has its GPUs, and has not been started yet.",
        "Wait, and see its events (kubectl describe pod): images are pulled, volumes mounted.";
    // It runs, and nothing holds it.
    IsolationOff, Unlimited, ByDesign, "isolation_off",
        "The node's label cgpu.disable.isolation is `true`: its containers have no limits.",
        "Take the label off, and start the pods anew.";
    ModeShare, Unlimited, ByDesign, "mode_share",
        "The node's label ack.node.gpu.schedule is `share`: its GPUs are shared without limits.",
        "Set it to `cgpu` (memory) or `core_mem` (memory and compute), and start the pods anew.";
    SwitchedOff, Unlimited, ByDesign, "switched_off",
        "The pod sets CGPU_DISABLE.",
        "Take the variable out.";
    NoRuntime, Unlimited, Wrong, "no_runtime",
        "The node's engine has no runtime `cgpu`: containers that ask for a GPU are not started there, or have no limit.",
        "See that cgpu-node runs there, or install cgpu and say `cgpu setup containerd --default`; then start the pods anew.";
    OtherRuntime, Unlimited, Wrong, "other_runtime",
        "The pod's runtime class is another one than cgpu's: its containers come past cgpu-runtime, and are not started, or have no limit.",
        "Name `cgpu`, or none where that is the node's default.";
    NotBound, Unlimited, Wrong, "not_bound",
        "The pod runs, and no runtime has asked for its slice: its containers came past cgpu-runtime. They have no GPU, or, if they name one themselves, no limit.",
        "Have the node's engine start containers by cgpu-runtime (cgpu-node, or `cgpu setup containerd --default`), and start the pod anew.";
    // It has no GPU.
    RequestsNothing, NoGpu, ByDesign, "requests_nothing",
        "The pod asks for no part of a GPU.",
        "Set aliyun.com/gpu-mem in a container's limits.";
    Bypassed, NoGpu, Wrong, "bypassed",
        "The pod came to its node past the extender, so no GPU was chosen for it, and its containers are not started.",
        "Delete it, and have its owner name a scheduler that has the extender (schedulerName), and no nodeName.";
    Spoilt, NoGpu, Wrong, "spoilt",
        "What the pod's annotations say of its GPUs does not agree with what it asks for; it counts on every GPU of its node.",
        "Put the annotations right again, or delete the pod.";
    Rejected, NoGpu, Wrong, "rejected",
        "The kubelet has rejected the pod; it does not come back to life.",
        "Do what the sentence says, and delete the pod: its owner makes another.";
    Ended, NoGpu, ByDesign, "ended",
        "The pod has ended: it holds nothing any more, and does not come back.",
        "See its logs (kubectl logs); its owner makes another if it is to.";
    TakenOut, NoGpu, ByDesign, "taken_out",
        "The node's labels take it out: its GPUs are not shared.",
        "Set gpushare to `true`, and ack.node.gpu.schedule to `cgpu`, `core_mem` or `share`.";
    GpusUnreadable, NoGpu, Wrong, "gpus_unreadable",
        "What the node says of its GPUs is not understood.",
        "Do what the sentence says.";
    NoPlugin, NoGpu, Wrong, "no_plugin",
        "The node is to share its GPUs, and cgpu-device-plugin has told of none.",
        "See the plugin's pod on that node and its log (kubectl logs); it needs the driver.";
    PluginFailing, NoGpu, Wrong, "plugin_failing",
        "cgpu-device-plugin does not run on the node.",
        "See its log (kubectl logs) and its events.";
    NoUnits, NoGpu, Wrong, "no_units",
        "The node has GPUs, and the kubelet has no aliyun.com/gpu-mem to give.",
        "Restart the plugin's pod on that node: it registers with the kubelet when it starts.";
    GpuUnhealthy, NoGpu, Wrong, "gpu_unhealthy",
        "A GPU is not well, and is given to nobody new.",
        "See the driver's messages (dmesg, nvidia-smi -q); it comes back by itself when the GPU is well.";
    OverFull, NoGpu, Wrong, "over_full",
        "More of a GPU is held than it has: it takes nobody.",
        "See who holds it (kubectl inspect gpushare -d), and delete what came past the extender.";
    LabelIgnored, NoGpu, ByDesign, "label_ignored",
        "A label is not understood and changes nothing.",
        "Correct it, or take it off.";
    // What the node itself says.
    RuntimeMissing, Unlimited, Wrong, "runtime_missing",
        "This node lacks a file of cgpu that containers need.",
        "See that cgpu-node runs here, or install cgpu (deploy/install.sh).";
    EngineUnconfigured, Unlimited, Wrong, "engine_unconfigured",
        "No engine of this node is told of cgpu-runtime.",
        "Say `cgpu setup containerd --default` (or crio), and restart the engine.";
    NotDefault, Unlimited, Wrong, "not_default",
        "The engine knows cgpu-runtime, and it is not the default: pods that name no runtime class come past it.",
        "Say `cgpu setup containerd --default` (or crio) and restart the engine, or have the pods name the runtime class cgpu.";
    PluginAbsent, NoGpu, Wrong, "plugin_absent",
        "The plugin's socket is not in the kubelet's folder: the kubelet knows of no GPUs.",
        "See that cgpu-device-plugin runs on this node.";
}
