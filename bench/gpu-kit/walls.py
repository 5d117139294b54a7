"""Tries the driver's memory limits for control groups, from r615 (CUDA 13.4) on.

    walls.py get UUID GROUP              prints NVML's answer and the limits of a group
    walls.py set UUID GROUP SOFT HARD    sets them, in bytes or `none`, and prints the answer
    walls.py hold UUID GROUP [STEP]      enters the group, makes a context, prints what the getters
                                         say, takes memory in steps until it is refused, and waits
                                         until standard input closes

It prints a JSON object for each step. The folder of a group is the whole path. Exit code 3: the
driver has no such function, which standard error names.
"""

import ctypes
import json
import sys
from pathlib import Path

from machine import Refused, call, load, meaning

LACKING = 3
# NVML_DEVICE_MEMORY_LIMIT_MAX.
NONE = (1 << 64) - 1
# CU_MEM_ATTACH_GLOBAL.
GLOBAL = 1
# A limit that does not hold is seen by then.
MOST_STEPS = 4096


class Limits(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t; nvmlSetMemoryLimits_v1_t ends before `used`."""

    _fields_ = [
        ("group", ctypes.c_char_p),
        ("soft", ctypes.c_uint64),
        ("hard", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
    ]


class Memory(ctypes.Structure):
    """nvmlMemory_v2_t."""

    _fields_ = [("version", ctypes.c_uint)] + [
        (name, ctypes.c_uint64) for name in ("total", "reserved", "free", "used")
    ]


def tell(**seen):
    print(json.dumps(seen), flush=True)


class Nvml:
    """NVML with the GPU of this UUID."""

    def __init__(self, uuid):
        self.library, self.device = load("libnvidia-ml.so.1"), ctypes.c_void_p()
        call(self.library, "nvmlInit_v2")
        call(self.library, "nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self.device))

    def answer(self, name, limits):
        function = getattr(self.library, name, None)
        if function is None:
            raise Refused(f"the driver has no {name}")
        answer = function(self.device, ctypes.byref(limits))
        return {"answer": answer, "meaning": meaning(self.library, answer).strip(" ()")}

    def get(self, group):
        limits = Limits(group.encode(), 0, NONE, 0)
        seen = self.answer("nvmlDeviceGetMemoryLimits_v1", limits)
        hard = None if limits.hard == NONE else limits.hard
        return {**seen, "soft": limits.soft, "hard": hard, "used": limits.used}

    def set(self, group, soft, hard):
        to = Limits(group.encode(), int(soft), NONE if hard == "none" else int(hard), 0)
        return self.answer("nvmlDeviceSetMemoryLimits_v1", to)

    def totals(self):
        """Returns the GPU's memory by both functions; None: not told."""
        plain = (ctypes.c_uint64 * 3)()
        newer = Memory(ctypes.sizeof(Memory) | 2 << 24)
        v1 = self.library.nvmlDeviceGetMemoryInfo(self.device, plain)
        v2 = getattr(self.library, "nvmlDeviceGetMemoryInfo_v2", lambda *_: 1)
        v2 = v2(self.device, ctypes.byref(newer))
        return {"nvml": None if v1 else plain[0], "nvml_v2": None if v2 else newer.total}


def hold(uuid, group, step=None):
    (Path(group) / "cgroup.procs").write_text("0")
    nvml, cuda = Nvml(uuid), load("libcuda.so.1")
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    call(cuda, "cuInit", 0)
    call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call(cuda, "cuCtxSetCurrent", context)
    call(cuda, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    tell(context=nvml.get(group)["used"], free=free.value, total=total.value, **nvml.totals())
    if step:
        granted, pointer, error = 0, ctypes.c_uint64(), 0
        for _ in range(MOST_STEPS):
            error = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(step)))
            if error:
                break
            granted += int(step)
        managed = cuda.cuMemAllocManaged(ctypes.byref(pointer), ctypes.c_size_t(1 << 20), GLOBAL)
        used = nvml.get(group)["used"]
        tell(granted=granted, error=error, used=used, managed_error=managed)
    sys.stdin.read()


def main():
    part, uuid, *arguments = sys.argv[1:]
    try:
        if part == "hold":
            hold(uuid, *arguments)
        else:
            tell(**getattr(Nvml(uuid), part)(*arguments))
    except Refused as refused:
        print(refused, file=sys.stderr)
        return LACKING
    return 0


if __name__ == "__main__":
    sys.exit(main())
