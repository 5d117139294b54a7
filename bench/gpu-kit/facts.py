"""Facts of the host that explain a result: kernel module, HMM, NUMA, glibc, toolkit, Xids.

Files are read below a root, so that tests can give another tree. A fact that the host does not give
is None. The rows `facts` and `xids` are here.
"""

import os
import re
import shutil
from pathlib import Path

from processes import NotPossible

# Each command's whole output is a log in the archive.
COMMANDS = {
    "nvidia_smi_q": ["nvidia-smi", "-q"],
    "topology": ["nvidia-smi", "topo", "-m"],
    "toolkit": ["nvidia-ctk", "--version"],
    "docker": ["docker", "info", "--format", "{{json .}}"],
}
# Either shows the kernel's messages; the first needs root on most hosts.
KERNEL_LOGS = (["dmesg"], ["journalctl", "--dmesg", "--no-pager", "--output=short-monotonic"])
XID = re.compile(r"NVRM: Xid \((?P<gpu>[^)]*)\): (?P<number>\d+)[^\n]*")
PARAMETERS = "sys/module/nvidia_uvm/parameters"
TOOLKIT_SETTINGS = "etc/nvidia-container-runtime/config.toml"


def text(root, name):
    """Returns a file's text, or None."""
    try:
        return Path(root, name).read_text(errors="replace").strip()
    except OSError:
        return None


def module_kind(version):
    """Returns the kind of NVIDIA's kernel module, from `/proc/driver/nvidia/version`."""
    if version is None:
        return None
    return "open" if "Open Kernel Module" in version else "closed"


def memory_only_nodes(root):
    """Returns NUMA nodes without processors: on coherent machines they are the GPUs' memory."""
    nodes = Path(root, "sys/devices/system/node").glob("node[0-9]*")
    return sorted(node.name for node in nodes if text(node, "cpulist") == "")


def toolkit_mode(settings):
    """Returns the mode of NVIDIA's container runtime: auto, legacy, cdi or csv."""
    found = re.search(r'^\s*mode\s*=\s*"([^"]*)"', settings or "", re.MULTILINE)
    return found and found.group(1)


def of_files(root="/"):
    """Returns the facts that are in files."""
    version = text(root, "proc/driver/nvidia/version")
    release = text(root, "etc/os-release") or ""
    name = re.search(r'^PRETTY_NAME="?([^"\n]*)', release, re.MULTILINE)
    places = ("etc/cdi", "var/run/cdi")
    specs = [spec for place in places for spec in Path(root, place).glob("*.[jy]*")]
    return {
        "system": name and name.group(1),
        "kernel": text(root, "proc/version"),
        "module": version and version.splitlines()[0],
        "module_kind": module_kind(version),
        "hmm_disabled": text(root, f"{PARAMETERS}/uvm_disable_hmm"),
        "memory_only_nodes": memory_only_nodes(root),
        "toolkit_mode": toolkit_mode(text(root, TOOLKIT_SETTINGS)),
        "cdi": sorted(spec.name for spec in specs),
        "cgroup": 2 if Path(root, "sys/fs/cgroup/cgroup.controllers").exists() else 1,
        "noexec": [place for place in ("/tmp", "/dev/shm") if is_noexec(place)],
    }


def is_noexec(place):
    return os.path.isdir(place) and bool(os.statvfs(place).f_flag & os.ST_NOEXEC)


def xids_in(log):
    """Returns the lines of a kernel log that report an Xid, an error of the GPU."""
    return [match.group(0) for match in XID.finditer(log)]


def kernel_log(kit):
    """Returns the kernel's messages, or None where they cannot be read."""
    for command in KERNEL_LOGS:
        if shutil.which(command[0], path=kit.environment["PATH"]):
            seen = kit.run(*command)
            if seen.exit == 0 and seen.stdout:
                return seen.stdout
    return None


def facts(kit):
    """Kernel module, HMM, NUMA, glibc, container toolkit, persistence and the GPU by nvidia-smi."""
    seen = of_files()
    seen["glibc"] = os.confstr("CS_GNU_LIBC_VERSION")
    seen["persistence"] = kit.machine["nvml"].get("persistence")
    for name, command in COMMANDS.items():
        if not shutil.which(command[0], path=kit.environment["PATH"]):
            seen[name] = None
            continue
        done = kit.run(*command)
        # The archive has the whole output; here its end is enough.
        seen[name] = done.summary()
    log = kernel_log(kit)
    seen["xids"] = None if log is None else xids_in(log)
    hmm = {"1": "off", "Y": "off", "0": "on", "N": "on", None: "unknown"}
    told = [
        f"{seen['module_kind'] or 'no'} kernel module",
        f"HMM {hmm.get(seen['hmm_disabled'], 'unknown')}",
        seen["glibc"],
        f"toolkit mode {seen['toolkit_mode'] or 'unknown'}",
        "Xids unknown" if seen["xids"] is None else f"{len(seen['xids'])} Xids before",
    ]
    if seen["memory_only_nodes"]:
        told.append(f"NUMA nodes without processors: {', '.join(seen['memory_only_nodes'])}")
    return {"ok": None, "figure": ", ".join(told), **seen}


def xids(kit):
    """The kernel reports no error of the GPU (Xid) during the run."""
    if kit.is_simulated:
        raise NotPossible("a simulated GPU has no kernel module that could report one")
    log = kernel_log(kit)
    if log is None:
        raise NotPossible("the kernel log cannot be read: run the kit as root")
    if kit.xids is None:
        raise NotPossible("the row facts did not read the kernel log at the start of this run")
    fresh = [line for line in xids_in(log) if line not in kit.xids]
    told = "no new Xid" if not fresh else f"{len(fresh)} new: {fresh[0]}"
    return {"ok": not fresh, "figure": told, "fresh": fresh, "before": kit.xids}
