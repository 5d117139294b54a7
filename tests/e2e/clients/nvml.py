# SPDX-License-Identifier: Apache-2.0
"""The vendor's Python bindings of NVML: the GPU's size, this process's memory, and the processes.

Allocates memory through the driver and checks that NVML reports it until it is freed.
"""

import os

import pynvml
from client import MIB, answer, expect, start
from cuda.bindings import driver

BLOCK = 1024 * MIB


def check(answered):
    result, *values = answered
    expect("the call's result", result, driver.CUresult.CUDA_SUCCESS)
    return values[0] if len(values) == 1 else values


def main():
    arguments = start(__doc__)
    pynvml.nvmlInit()
    gpus = pynvml.nvmlDeviceGetCount()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    before = pynvml.nvmlDeviceGetMemoryInfo(gpu)
    second = pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
    expect("total of the second version", second.total, before.total)
    expect("parts of the total", second.reserved + second.used + second.free, second.total)
    if arguments.total:
        expect("total", before.total, arguments.total)
    uuid = pynvml.nvmlDeviceGetUUID(gpu)
    again = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    expect("the GPU of the UUID", pynvml.nvmlDeviceGetIndex(again), 0)

    check(driver.cuInit(0))
    context = check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))
    check(driver.cuCtxSetCurrent(context))
    idle = pynvml.nvmlDeviceGetMemoryInfo(gpu)
    address = check(driver.cuMemAlloc(BLOCK))
    taken = pynvml.nvmlDeviceGetMemoryInfo(gpu)
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    processes = {process.pid: process.usedGpuMemory for process in running}
    check(driver.cuMemFree(address))
    freed = pynvml.nvmlDeviceGetMemoryInfo(gpu)
    free, total = check(driver.cuMemGetInfo())
    expect("used with the block", taken.used - idle.used, BLOCK)
    expect("used without it", freed.used, idle.used)
    answer(
        client="nvml",
        gpus=gpus,
        name=pynvml.nvmlDeviceGetName(gpu),
        uuid=uuid,
        driver=pynvml.nvmlSystemGetDriverVersion(),
        total=before.total,
        info_total=total,
        free=free,
        used=freed.used,
        utilisation=pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
        own_memory=processes.get(os.getpid(), 0),
        processes=len(processes),
    )
    pynvml.nvmlShutdown()


main()
