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
    pub(crate) enum Cause:

    // The pod is pending.
    NotUnderstood, Pending, Wrong, "not_understood",
        "The pod's request is invalid, so no node can take it.",
        "Correct its limits, its label aliyun.com/gpu-count or its annotations, as the message says.";
    NeverFits, Pending, Wrong, "never_fits",
        "No node could take the pod, even without other pods.",
        "Request less of each GPU, divide the request over several (label aliyun.com/gpu-count), \
         correct the annotations if they permit no GPU, or add a node with larger GPUs; for GPUs \
         that are unhealthy or of another plugin, check the node (doctor --node NODE).";
    NoRoom, Pending, Wrong, "no_room",
        "No node has enough free for the pod.",
        "Wait until other pods end, request less, divide the request over several GPUs (label \
         aliyun.com/gpu-count), or add a node.";
    Fragmented, Pending, Wrong, "fragmented",
        "Enough is free for the pod on a node, but not on one GPU; pods of lower priority are in \
         the way.",
        "Delete the pods that are named, or wait until they end: many schedulers evict pods only \
         where the sum of a node does not suffice.";
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
    NodeGone, Pending, Wrong, "node_gone",
        "The scheduler chose a node for the pod that does not exist any more.",
        "Wait: the scheduler tries again with the nodes that there are. If it names the same node \
         again, its list of nodes is outdated: restart it.";
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
    // Its claims are not allocated, or not prepared.
    ClaimsNotServed, Pending, Wrong, "claims_not_served",
        "The API server does not serve resource.k8s.io/v1, so no pod can claim a GPU.",
        "Upgrade the cluster to Kubernetes 1.36, or remove the label cgpu.dev/engine of its nodes: \
         they then share GPUs by units (aliyun.com/gpu-mem).";
    TooOldForClaims, Pending, Wrong, "too_old_for_claims",
        "A part of the cluster is too old for claims.",
        "Upgrade it to Kubernetes 1.36, in which pods can claim shares of a GPU.";
    SharesOff, Pending, Wrong, "shares_off",
        "Consumable capacity is off: a claim gets a whole GPU or none.",
        "Enable the feature gate DRAConsumableCapacity at the API server, the controller manager, \
         the scheduler and the kubelets (the default from 1.36 on), and restart the driver's pods.";
    ClaimMissing, Pending, Wrong, "claim_missing",
        "The pod names a claim that does not exist.",
        "Create the ResourceClaim in the pod's namespace, or correct the name in resourceClaims.";
    TemplateMissing, Pending, Wrong, "template_missing",
        "The pod names a template of claims that does not exist.",
        "Create the ResourceClaimTemplate in the pod's namespace, or correct the name in \
         resourceClaims.";
    ClaimNotMade, Pending, Wrong, "claim_not_made",
        "The cluster has made no claim for the pod from its template.",
        "Check that kube-controller-manager runs, and read the pod's events (kubectl describe \
         pod).";
    TemplateAwaited, Pending, Wrong, "template_awaited",
        "The pod has old resource names, and the template of its claim is not there yet.",
        "Check that cgpu-dra-controller runs; if the message says why it could not make the \
         template, correct the pod's request.";
    ClaimClassUnknown, Pending, Wrong, "claim_class_unknown",
        "The claim names a class of devices that does not exist.",
        "Name one of `kubectl get deviceclass`; cgpu's chart has cgpu, cgpu-mig and cgpu-cores \
         (dra.enabled).";
    ClaimConfigRefused, Pending, Wrong, "claim_config_refused",
        "The configuration of the claim or of its class is invalid, so it is not prepared.",
        "Correct it as the message says, in a new claim: a claim cannot be changed.";
    ClaimNoDevices, Pending, Wrong, "claim_no_devices",
        "No node publishes GPUs for claims.",
        "Label a node (kubectl label node NODE cgpu.dev/engine=dra), and check that \
         cgpu-dra-driver runs on it.";
    ClaimSelectorFails, Pending, Wrong, "claim_selector_fails",
        "A selector of the claim fails on a device, so the scheduler does not allocate the claim.",
        "Test whether a device has the attribute before its use (`\"NAME\" in \
         device.attributes[\"gpu.cgpu.dev\"] && ...`), in a new claim.";
    ClaimSelectorUnchecked, Pending, Wrong, "claim_selector_unchecked",
        "The claim's selectors could not be checked here.",
        "Read the scheduler's message (kubectl describe pod), and compare the selectors with the \
         devices (kubectl get resourceslice -o yaml).";
    ClaimUnselected, Pending, Wrong, "claim_unselected",
        "The selectors of the claim and its class select no device.",
        "Compare them with the devices (kubectl get resourceslice -o yaml), and make a new claim.";
    ClaimTainted, Pending, Wrong, "claim_tainted",
        "All devices that the claim selects have taints.",
        "Cure the GPUs (cgpu doctor on their nodes), or remove the other plugin or driver: then \
         the driver removes its taint; or add nodes.";
    ClaimOtherMode, Pending, Wrong, "claim_other_mode",
        "No selected device gives such capacities: GPUs have weights, or cores (policy 3).",
        "Request what the devices have, or set the policy of an empty GPU (cgpu set 0/policy 3).";
    ClaimTooLarge, Pending, Wrong, "claim_too_large",
        "The claim requests more than any selected device has.",
        "Request less of each device, several devices (count), or add a node with larger GPUs.";
    ClaimWholeDevice, Pending, Wrong, "claim_whole_device",
        "Other claims have the selected devices as a whole.",
        "Wait until their pods end, or add a node; a claim that names no memory gets a whole GPU.";
    ClaimNoCores, Pending, Wrong, "claim_no_cores",
        "No selected device has enough of its cores free.",
        "Wait until other pods end, request less, or add a node.";
    ClaimNoWeight, Pending, Wrong, "claim_no_weight",
        "No selected device has enough weight left.",
        "Wait until other pods end, request less, or add a node; the sum is max_inst of the GPU.";
    ClaimNoMemory, Pending, Wrong, "claim_no_memory",
        "No selected device has enough memory free.",
        "Wait until other pods end, request less, or add a node.";
    ClaimTooFewDevices, Pending, Wrong, "claim_too_few_devices",
        "No node has as many fitting devices as the claim requests.",
        "Request fewer devices, wait until other pods end, or add a node with more GPUs.";
    ClaimScattered, Pending, Wrong, "claim_scattered",
        "No node has devices for all requests of the claim.",
        "Divide the claim over several pods, wait until other pods end, or add a node.";
    ClaimOtherObstacle, Pending, Wrong, "claim_other_obstacle",
        "A node has devices for each request of the claim, and it is not allocated for another \
         reason.",
        "Do what the scheduler's message says; constraints, other claims of the pod, CPU and \
         memory are not checked here.";
    ClaimUnused, Pending, ByDesign, "claim_unused",
        "No pod uses the claim, so it is not allocated.",
        "Name it in resourceClaims of a pod.";
    PrepareFailed, Pending, Wrong, "prepare_failed",
        "The node could not prepare the pod's claim.",
        "Do what the message says; the kubelet tries again. After `waits for` it goes away by \
         itself.";
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
    NotResized, Unlimited, Wrong, "not_resized",
        "The annotation cgpu.dev/resize of the claim or pod is not applied: its containers have \
         the size that they had.",
        "After `Refused` correct the annotation, or make a new claim or pod; after `Waiting` do \
         what the message says, and check that the monitor runs on the node.";
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
    PluginGone, NoGpu, Wrong, "plugin_gone",
        "The node has reported GPUs, and cgpu-device-plugin is not on it any more.",
        "Label the node (kubectl label node NODE gpushare=true), and check that the plugin's \
         DaemonSet exists; if cgpu was removed, remove its last report, too (kubectl annotate node \
         NODE cgpu.dev/gpus- cgpu.dev/held-).";
    NoUnits, NoGpu, Wrong, "no_units",
        "The node has GPUs, but its kubelet has no aliyun.com/gpu-mem to allocate.",
        "Restart the plugin's pod on that node: it registers with the kubelet when it starts.";
    GpuUnhealthy, NoGpu, Wrong, "gpu_unhealthy",
        "A GPU is unhealthy: no new pods are placed on it.",
        "Read the driver's messages (dmesg, nvidia-smi -q); the GPU is used again when it is \
         healthy.";
    GpuTakenOut, NoGpu, ByDesign, "gpu_taken_out",
        "The ConfigMap unhealthy-gpu-NODE takes a GPU out: no new pods are placed on it.",
        "Delete the ConfigMap (namespace kube-system) to have the GPU used again.";
    OverFull, NoGpu, Wrong, "over_full",
        "Pods hold more of a GPU than it has: no new pods are placed on it.",
        "Find its pods (kubectl inspect gpushare -d), and delete those that bypassed the extender.";
    LabelIgnored, NoGpu, ByDesign, "label_ignored",
        "A label has an unknown name or value, and is ignored.",
        "Correct the label, or remove it.";
    NoDriver, NoGpu, Wrong, "no_driver",
        "Pods are to claim GPUs of the node, but cgpu-dra-driver has published none.",
        "Check the driver's pod on that node and its log (kubectl logs); it needs NVML or the \
         monitor. Pods with claims cannot end without it: install the chart again, or label the \
         node, until they have ended.";
    DriverFailing, NoGpu, Wrong, "driver_failing",
        "cgpu-dra-driver does not run on the node.",
        "Read its log (kubectl logs) and its events.";
    OtherOwner, NoGpu, Wrong, "other_owner",
        "Another plugin or driver gives out a GPU of the node, too: no new pods or claims get it.",
        "End that plugin or driver on the node, or remove the node's label gpushare; if a plugin \
         has other GPUs, set --disjoint-resources. The node's event GpuOtherOwner (kubectl \
         describe node) has the settings of the charts.";
    SlicesIncomplete, NoGpu, Wrong, "slices_incomplete",
        "Slices of the node are missing or not understood: the scheduler ignores its GPUs.",
        "Wait a minute, then restart the driver's pod: it writes them anew; upgrade this program \
         if the driver is newer.";
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
