# SPDX-License-Identifier: Apache-2.0
"""The vendor's Python bindings of the driver API: streams, events, pools, virtual memory, graphs.

Checks the bytes after each.
"""

import ctypes
import os

from client import MIB, answer, expect, start
from cuda.bindings import driver

PTX = b""".version 7.0
.target sm_50
.address_size 64
.visible .entry spin_200us(.param .u64 spin_200us_param_0)
{
    ret;
}
\0"""

SIZE = 4 * MIB


def check(answered):
    """Returns the values of a call that must succeed."""
    result, *values = answered
    expect("the call's result", result, driver.CUresult.CUDA_SUCCESS)
    return values[0] if len(values) == 1 else values


def pinned(data=None):
    """Returns the address of host memory for copies in stream order."""
    address = int(check(driver.cuMemHostAlloc(SIZE, 0)))
    ctypes.memmove(address, data if data is not None else bytes(SIZE), SIZE)
    return address


def stream():
    return check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))


def event():
    return check(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DEFAULT))


class Kernel:
    """Loads a kernel that takes 200 us and changes nothing."""

    def __init__(self):
        self.module = check(driver.cuModuleLoadData(PTX))
        self.function = check(driver.cuModuleGetFunction(self.module, b"spin_200us"))
        self.argument = ctypes.c_uint64(0)
        self.arguments = (ctypes.c_void_p * 1)(ctypes.addressof(self.argument))

    def launch(self, on):
        arguments = ctypes.addressof(self.arguments)
        check(driver.cuLaunchKernel(self.function, 4, 1, 1, 64, 1, 1, 0, on, arguments, 0))


def streams_and_events(kernel):
    """Checks that a copy waits for one in another stream, and the time between two events."""
    data = os.urandom(SIZE)
    source, back = pinned(data), pinned()
    first, second = stream(), stream()
    on_gpu, copied = check(driver.cuMemAlloc(SIZE)), event()
    begin, end = event(), event()
    check(driver.cuEventRecord(begin, first))
    for _ in range(10):
        kernel.launch(first)
    check(driver.cuEventRecord(end, first))
    check(driver.cuMemcpyHtoDAsync(on_gpu, source, SIZE, first))
    check(driver.cuEventRecord(copied, first))
    check(driver.cuStreamWaitEvent(second, copied, 0))
    check(driver.cuMemcpyDtoHAsync(back, on_gpu, SIZE, second))
    # It cannot have run yet: ten kernels come first.
    expect("the query", driver.cuStreamQuery(second)[0], driver.CUresult.CUDA_ERROR_NOT_READY)
    check(driver.cuStreamSynchronize(second))
    expect("bytes through two streams", ctypes.string_at(back, SIZE), data)
    expect("the query afterwards", driver.cuStreamQuery(first)[0], driver.CUresult.CUDA_SUCCESS)
    elapsed = check(driver.cuEventElapsedTime(begin, end))
    for it in (begin, end, copied):
        check(driver.cuEventDestroy(it))
    for it in (first, second):
        check(driver.cuStreamDestroy(it))
    check(driver.cuMemFree(on_gpu))
    for it in (source, back):
        check(driver.cuMemFreeHost(it))
    return elapsed


def pools(device):
    """Checks stream-ordered memory: its bytes, and that the pool keeps it until it is trimmed."""
    data = os.urandom(SIZE)
    source, back = pinned(data), pinned()
    on = stream()
    pool = check(driver.cuDeviceGetDefaultMemPool(device))
    attribute = driver.CUmemPool_attribute
    threshold = driver.cuuint64_t(1 << 40)
    release_threshold = attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    check(driver.cuMemPoolSetAttribute(pool, release_threshold, threshold))
    first, second = check(driver.cuMemAllocAsync(SIZE, on)), check(driver.cuMemAllocAsync(SIZE, on))
    check(driver.cuMemcpyHtoDAsync(first, source, SIZE, on))
    check(driver.cuMemcpyDtoDAsync(second, first, SIZE, on))
    check(driver.cuMemsetD8Async(int(second) + MIB, 0xA5, MIB, on))
    check(driver.cuMemcpyDtoHAsync(back, second, SIZE, on))
    check(driver.cuMemFreeAsync(first, on))
    check(driver.cuMemFreeAsync(second, on))
    check(driver.cuStreamSynchronize(on))
    filled = data[:MIB] + b"\xa5" * MIB + data[2 * MIB :]
    expect("bytes in a pool", ctypes.string_at(back, SIZE), filled)
    in_use = attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    reserved = attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
    used = int(check(driver.cuMemPoolGetAttribute(pool, in_use)))
    kept = int(check(driver.cuMemPoolGetAttribute(pool, reserved)))
    check(driver.cuMemPoolTrimTo(pool, 0))
    left = int(check(driver.cuMemPoolGetAttribute(pool, reserved)))
    expect("in use", used, 0)
    expect("kept for the next", kept >= 2 * SIZE, True)
    expect("kept after trimming", left, 0)
    check(driver.cuStreamDestroy(on))
    for it in (source, back):
        check(driver.cuMemFreeHost(it))
    return kept


def virtual_memory():
    """Checks that physical memory mapped at two addresses has the same bytes at both."""
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = 0
    minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    step = check(driver.cuMemGetAllocationGranularity(prop, minimum))
    size = -(-SIZE // step) * step
    handle = check(driver.cuMemCreate(size, prop, 0))
    range_ = check(driver.cuMemAddressReserve(2 * size, 0, 0, 0))
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = 0
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    for place in (int(range_), int(range_) + size):
        check(driver.cuMemMap(place, size, 0, handle, 0))
        check(driver.cuMemSetAccess(place, size, [access], 1))
    check(driver.cuMemRelease(handle))
    data = os.urandom(SIZE)
    check(driver.cuMemcpyHtoD(int(range_), data, SIZE))
    check(driver.cuMemsetD8(int(range_) + size + MIB, 0x3C, MIB))
    back = bytearray(SIZE)
    check(driver.cuMemcpyDtoH(back, int(range_) + size, SIZE))
    expect("bytes mapped twice", bytes(back), data[:MIB] + b"\x3c" * MIB + data[2 * MIB :])
    for place in (int(range_), int(range_) + size):
        check(driver.cuMemUnmap(place, size))
    check(driver.cuMemAddressFree(range_, 2 * size))
    return step


def graphs(kernel):
    """Checks that a captured graph of copies, a fill and kernels in two streams uses the
    current bytes at each launch."""
    source, back = pinned(), pinned()
    on, beside = stream(), stream()
    on_gpu = check(driver.cuMemAlloc(SIZE))
    forked, joined = event(), event()
    check(driver.cuStreamBeginCapture(on, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    check(driver.cuMemcpyHtoDAsync(on_gpu, source, SIZE, on))
    check(driver.cuEventRecord(forked, on))
    check(driver.cuStreamWaitEvent(beside, forked, 0))
    kernel.launch(beside)
    check(driver.cuMemsetD8Async(int(on_gpu) + MIB, 0x77, MIB, on))
    check(driver.cuEventRecord(joined, beside))
    check(driver.cuStreamWaitEvent(on, joined, 0))
    check(driver.cuMemcpyDtoHAsync(back, on_gpu, SIZE, on))
    # Captured work is not executed.
    status = check(driver.cuStreamIsCapturing(on)).name
    expect("capturing", status, "CU_STREAM_CAPTURE_STATUS_ACTIVE")
    graph = check(driver.cuStreamEndCapture(on))
    _, nodes = check(driver.cuGraphGetNodes(graph, 0))
    executable = check(driver.cuGraphInstantiate(graph, 0))
    check(driver.cuGraphDestroy(graph))
    expect("bytes before the launch", ctypes.string_at(back, SIZE), bytes(SIZE))
    for _ in range(3):
        data = os.urandom(SIZE)
        ctypes.memmove(source, data, SIZE)
        check(driver.cuGraphLaunch(executable, on))
        check(driver.cuStreamSynchronize(on))
        filled = data[:MIB] + b"\x77" * MIB + data[2 * MIB :]
        expect("bytes of a graph", ctypes.string_at(back, SIZE), filled)
    check(driver.cuGraphExecDestroy(executable))
    check(driver.cuMemFree(on_gpu))
    for it in (source, back):
        check(driver.cuMemFreeHost(it))
    return nodes


def main():
    start(__doc__)
    check(driver.cuInit(0))
    device = check(driver.cuDeviceGet(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))
    free, _ = check(driver.cuMemGetInfo())
    kernel = Kernel()
    elapsed = streams_and_events(kernel)
    kept = pools(device)
    step = virtual_memory()
    nodes = graphs(kernel)
    free_after, _ = check(driver.cuMemGetInfo())
    lost = free - free_after
    answer(
        client="bindings_work", elapsed_ms=elapsed, kept=kept, step=step, nodes=nodes, lost=lost
    )


main()
