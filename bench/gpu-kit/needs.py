"""What rows need of the machine; NotPossible says what it lacks."""

import shutil

from processes import NotPossible

# Limit of a container if the GPU has that much free, and the part of it that a context and a last
# piece may take.
LIMIT_MIB = 4096
SLACK_MIB = 1024


def tool(kit, name):
    """Returns a program's path."""
    found = shutil.which(name, path=kit.environment["PATH"])
    if not found:
        raise NotPossible(f"{name} is not installed")
    return found


def vendor_driver(kit, what):
    if kit.is_simulated:
        raise NotPossible(f"{what} accepts the vendor's driver only, and this one is simulated")


def tenants(kit):
    if "error" in kit.machine["nvml"]:
        raise NotPossible(f"the monitor finds GPUs by NVML: {kit.machine['nvml']['error']}")
    mode = kit.machine.get("compute_mode")
    if mode not in ("Default", None):
        raise NotPossible(f"the GPU's compute mode is {mode}, and the kit changes no setting")


def whole_gpu(kit, what):
    if kit.machine["nvml"].get("mig"):
        raise NotPossible(f"the device is a MIG instance, and {what}")


def limit_mib(kit, most=LIMIT_MIB):
    """Returns a limit that fits beside other programs' memory."""
    limit = min(most, kit.machine["free_mib"] - SLACK_MIB)
    if limit < 2 * SLACK_MIB:
        raise NotPossible(f"only {kit.machine['free_mib']} MiB of the GPU are free")
    return limit
