"""Prints in JSON what the driver and NVML report of the GPU, and facts of the host.

It is a process of its own: the kit never loads the driver, which may hang or crash. A failed part
is reported under `error`, with the name of the call; the others are still there.
"""

import ctypes
import json
import os
import platform

ATTRIBUTES = {"multiprocessors": 16, "compute_mode": 20, "major": 75, "minor": 76, "mps": 133}
LIBRARIES = ("libcuda", "libnvidia-ml", "libcgpu", "libvgpu")
# By number, as the driver and NVML give them.
COMPUTE_MODES = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}


class Refused(Exception):
    """A library is missing, or a call returned an error."""


def load(name):
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise Refused(f"{name} cannot be loaded: {error}") from error


def call(library, name, *arguments):
    function = getattr(library, name, None)
    if function is None:
        raise Refused(f"the driver has no {name}")
    if answer := function(*arguments):
        raise Refused(f"{name} answered {answer}{meaning(library, answer)}")


def meaning(library, answer):
    """Returns the name of an error, if the library has one."""
    text = ctypes.c_char_p()
    if (
        hasattr(library, "cuGetErrorName")
        and library.cuGetErrorName(answer, ctypes.byref(text)) == 0
        and text.value
    ):
        return f" ({text.value.decode()})"
    if hasattr(library, "nvmlErrorString"):
        library.nvmlErrorString.restype = ctypes.c_char_p
        return f" ({library.nvmlErrorString(answer).decode()})"
    return ""


def device(cuda):
    """The first visible device, as CUDA programs see it."""
    number, name, uuid = ctypes.c_int(), ctypes.create_string_buffer(128), (ctypes.c_ubyte * 16)()
    call(cuda, "cuInit", 0)
    call(cuda, "cuDriverGetVersion", ctypes.byref(number))
    seen = {"cuda": f"{number.value // 1000}.{number.value % 1000 // 10}"}
    call(cuda, "cuDeviceGetCount", ctypes.byref(number))
    seen["devices"] = number.value
    call(cuda, "cuDeviceGetName", name, len(name), 0)
    # The newer function distinguishes a MIG instance from its GPU.
    newest = "cuDeviceGetUuid_v2" if hasattr(cuda, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
    call(cuda, newest, uuid, 0)
    text = bytes(uuid).hex()
    seen["gpu"] = name.value.decode()
    seen["uuid"] = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    for attribute, number_of in ATTRIBUTES.items():
        # An older driver lacks newer attributes.
        if cuda.cuDeviceGetAttribute(ctypes.byref(number), number_of, 0) == 0:
            seen[attribute] = number.value
    seen["compute_mode"] = COMPUTE_MODES.get(seen.get("compute_mode"), seen.get("compute_mode"))
    return seen


def nvml(uuid):
    """The same device by NVML."""
    library = load("libnvidia-ml.so.1")
    version, handle, number = ctypes.create_string_buffer(80), ctypes.c_void_p(), ctypes.c_uint()
    call(library, "nvmlInit_v2")
    call(library, "nvmlSystemGetDriverVersion", version, len(version))
    seen = {"driver": version.value.decode()}
    for kind in ("GPU", "MIG"):
        if (
            uuid
            and library.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}".encode(), ctypes.byref(handle))
            == 0
        ):
            seen["uuid"], seen["mig"] = f"{kind}-{uuid}", kind == "MIG"
    if library.nvmlDeviceGetPersistenceMode(handle, ctypes.byref(number)) == 0:
        seen["persistence"] = bool(number.value)
    number.value = 0
    # Without room for any, it returns the length of the list.
    library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(number), None)
    seen["other_processes"] = number.value
    call(library, "nvmlShutdown")
    return seen


def memory(cuda):
    """Returns the memory that a process with a context finds free."""
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call(cuda, "cuCtxSetCurrent", context)
    call(cuda, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return {"free_mib": free.value >> 20, "total_mib": total.value >> 20}


def look():
    """Collects everything. NVML is read before a context exists, so it counts only others."""
    seen = {}
    try:
        cuda = load("libcuda.so.1")
        seen.update(device(cuda))
        seen["nvml"] = guarded(lambda: nvml(seen["uuid"]))
        seen.update(memory(cuda))
    except Refused as error:
        seen["error"] = str(error)
    seen.setdefault("nvml", guarded(lambda: nvml(None)))
    return {**seen, "libraries": libraries(), "host": host()}


def guarded(part):
    """Runs one part; its failure does not stop the others."""
    try:
        return part()
    except Refused as error:
        return {"error": str(error)}


def libraries():
    """Returns the files that the loader chose: a toolkit's stub or a shim may be among them."""
    with open("/proc/self/maps") as maps:
        return sorted({
            line.split(maxsplit=5)[5].strip()
            for line in maps
            if any(name in line for name in LIBRARIES)
        })


def host():
    shm = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    prefixes = ("CUDA_", "NVIDIA_", "CGPU_", "ALIYUN_COM_GPU_", "LD_")
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "processors": len(os.sched_getaffinity(0)),
        "user": os.getuid(),
        "shm_free_mib": shm and (shm.f_bavail * shm.f_frsize) >> 20,
        "shm_noexec": shm and bool(shm.f_flag & os.ST_NOEXEC),
        "monitor": os.path.exists("/run/cgpu/monitor.sock"),
        "variables": {
            name: value for name, value in os.environ.items() if name.startswith(prefixes)
        },
    }


if __name__ == "__main__":
    print(json.dumps(look()))
