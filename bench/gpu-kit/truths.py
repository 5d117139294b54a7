"""Measures how the driver rounds allocations and grows pools. Prints one JSON object.

    truths.py rounding    memory that allocations of several sizes take
    truths.py pools       memory that a pool reserves for one allocation, and what stays after
    truths.py free UUID   memory of the GPU that is free, by NVML

It uses the driver alone; other programs on the GPU disturb it. Exit code 3: the driver lacks the
function, which standard error names.
"""

import ctypes
import json
import sys

from machine import Refused, call, load

LACKING = 3
KIB, MIB = 1 << 10, 1 << 20
SIZES = (1, 4 * KIB, 64 * KIB, MIB, MIB + 1, 2 * MIB, 2 * MIB + 1, 3 * MIB, 33 * MIB)
POOL_SIZES = (1, 2 * MIB, 32 * MIB, 32 * MIB + 1, 65 * MIB)
# As many small allocations share a piece of the driver's own.
TOGETHER = 64
# CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT; CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE.
RESERVED, PINNED, DEVICE = 5, 1, 1


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    ]


class Driver:
    """The driver, with the primary context of the first GPU."""

    def __init__(self):
        self.cuda = load("libcuda.so.1")
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        # A first allocation takes what every later one shares.
        self.free(self.allocate(1))

    def call(self, name, *arguments):
        call(self.cuda, name, *arguments)

    def available(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size):
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def free(self, pointer):
        self.call("cuMemFree_v2", pointer)


def rounding(driver):
    rows = []
    for size in SIZES:
        before = driver.available()
        first = driver.allocate(size)
        taken = before - driver.available()
        # The larger sizes take their own memory each, which one allocation shows.
        more = [driver.allocate(size) for _ in range(TOGETHER - 1 if size <= MIB else 0)]
        together = before - driver.available()
        for pointer in (first, *more):
            driver.free(pointer)
        left = before - driver.available()
        rows.append({
            "size": size,
            "taken": taken,
            "count": 1 + len(more),
            "together": together,
            "left": left,
        })
    granularity = {}
    for name, option in (("minimum", 0), ("recommended", 1)):
        found, wanted = ctypes.c_size_t(), Properties(PINNED, 0, DEVICE, 0, None, 0)
        driver.call(
            "cuMemGetAllocationGranularity", ctypes.byref(found), ctypes.byref(wanted), option
        )
        granularity[name] = found.value
    return {"rows": rows, "granularity": granularity}


def pools(driver):
    pool, stream = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuDeviceGetDefaultMemPool", ctypes.byref(pool), 0)
    driver.call("cuStreamCreate", ctypes.byref(stream), 0)

    def reserved():
        found = ctypes.c_uint64()
        driver.call("cuMemPoolGetAttribute", pool, RESERVED, ctypes.byref(found))
        return found.value

    rows = []
    for size in POOL_SIZES:
        before, pointer = driver.available(), ctypes.c_uint64()
        driver.call("cuMemAllocAsync", ctypes.byref(pointer), ctypes.c_size_t(size), stream)
        driver.call("cuStreamSynchronize", stream)
        row = {"size": size, "reserved": reserved(), "taken": before - driver.available()}
        driver.call("cuMemFreeAsync", pointer, stream)
        row["after_free"] = reserved()
        driver.call("cuStreamSynchronize", stream)
        row["after_synchronize"] = reserved()
        driver.call("cuMemPoolTrimTo", pool, ctypes.c_size_t(0))
        row["after_trim"] = reserved()
        rows.append(row)
    return {"rows": rows}


def free(uuid):
    """Returns how many bytes of the GPU are free, by NVML."""
    library, handle = load("libnvidia-ml.so.1"), ctypes.c_void_p()
    call(library, "nvmlInit_v2")
    call(library, "nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle))
    # nvmlMemory_t: total, free, used.
    memory = (ctypes.c_uint64 * 3)()
    call(library, "nvmlDeviceGetMemoryInfo", handle, memory)
    return {"free": memory[1]}


PARTS = {"rounding": rounding, "pools": pools}


def main():
    part, arguments = sys.argv[1], sys.argv[2:]
    try:
        print(json.dumps(free(*arguments) if part == "free" else PARTS[part](Driver())))
    except Refused as refused:
        print(refused, file=sys.stderr)
        return LACKING
    return 0


if __name__ == "__main__":
    sys.exit(main())
