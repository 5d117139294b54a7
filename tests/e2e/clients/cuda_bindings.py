# SPDX-License-Identifier: Apache-2.0
"""The vendor's Python bindings of the driver API.

Fills the GPU, gets the ordinary error, frees, goes on. Copies, loads, launches.
"""

import ctypes
import os

from client import MIB, answer, expect, fill, start
from cuda.bindings import driver

PTX = b""".version 7.0
.target sm_50
.address_size 64
.visible .entry spin_50us(.param .u64 spin_50us_param_0)
{
    ret;
}
\0"""

SUCCESS = driver.CUresult.CUDA_SUCCESS
OUT_OF_MEMORY = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY


def check(answered):
    """Returns the values of a call that must succeed."""
    result, *values = answered
    expect("the call's result", result, SUCCESS)
    return values[0] if len(values) == 1 else values


def allocate(size):
    result, address = driver.cuMemAlloc(size)
    if result == OUT_OF_MEMORY:
        return None
    expect("cuMemAlloc", result, SUCCESS)
    return address


def copy_and_back():
    """Checks bytes that were copied to the GPU, within it, partly filled, and copied back."""
    size = 4 * MIB
    data = os.urandom(size)
    first, second = check(driver.cuMemAlloc(size)), check(driver.cuMemAlloc(size))
    check(driver.cuMemcpyHtoD(first, data, size))
    check(driver.cuMemcpyDtoD(second, first, size))
    check(driver.cuMemsetD8(int(second) + MIB, 0x5A, MIB))
    back = bytearray(size)
    check(driver.cuMemcpyDtoH(back, second, size))
    expect("bytes", bytes(back), data[:MIB] + b"\x5a" * MIB + data[2 * MIB :])
    check(driver.cuMemFree(first))
    check(driver.cuMemFree(second))


def launch():
    """Launches a kernel of a module between two events. Returns the milliseconds between them."""
    module = check(driver.cuModuleLoadData(PTX))
    kernel = check(driver.cuModuleGetFunction(module, b"spin_50us"))
    stream = check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    begin, end = check(driver.cuEventCreate(0)), check(driver.cuEventCreate(0))
    argument = ctypes.c_uint64(0)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    check(driver.cuEventRecord(begin, stream))
    for _ in range(10):
        address = ctypes.addressof(arguments)
        check(driver.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, address, 0))
    check(driver.cuEventRecord(end, stream))
    check(driver.cuEventSynchronize(end))
    elapsed = check(driver.cuEventElapsedTime(begin, end))
    check(driver.cuStreamDestroy(stream))
    check(driver.cuModuleUnload(module))
    return elapsed


def main():
    arguments = start(__doc__)
    check(driver.cuInit(0))
    device = check(driver.cuDeviceGet(0))
    total = check(driver.cuDeviceTotalMem(device))
    context = check(driver.cuDevicePrimaryCtxRetain(device))
    check(driver.cuCtxSetCurrent(context))
    free, info_total = check(driver.cuMemGetInfo())
    expect("cuMemGetInfo's total", info_total, total)
    if arguments.total:
        expect("cuDeviceTotalMem", total, arguments.total)

    blocks, granted = fill(allocate)
    free_full, _ = check(driver.cuMemGetInfo())
    for block in blocks:
        check(driver.cuMemFree(block))
    copy_and_back()
    elapsed = launch()
    everywhere = driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value
    managed, address = driver.cuMemAllocManaged(MIB, everywhere)
    if managed == SUCCESS:
        check(driver.cuMemFree(address))
    free_after, _ = check(driver.cuMemGetInfo())
    # More, if an earlier process's memory is still draining.
    expect("nothing is left", free_after >= free, True)
    answer(
        client="cuda_bindings",
        total=total,
        info_total=info_total,
        free=free,
        granted=granted,
        out_of_memory=True,
        free_full=free_full,
        free_after=free_after,
        copied=True,
        launched=True,
        elapsed_ms=elapsed,
        managed=int(managed),
    )


main()
