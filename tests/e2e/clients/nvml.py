# SPDX-License-Identifier: Apache-2.0
"""The vendor's Python bindings of NVML: the card's size, what this process takes of it, and who is on it.

Takes memory through the driver, and looks whether NVML sees it come and go.
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
    cards = pynvml.nvmlDeviceGetCount()
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    before = pynvml.nvmlDeviceGetMemoryInfo(card)
    second = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)
    expect("total of the second version", second.total, before.total)
    expect("parts of the total", second.reserved + second.used + second.free, second.total)
    if arguments.total:
        expect("total", before.total, arguments.total)
    uuid = pynvml.nvmlDeviceGetUUID(card)
    again = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    expect("the card of the UUID", pynvml.nvmlDeviceGetIndex(again), 0)

    check(driver.cuInit(0))
    context = check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))
    check(driver.cuCtxSetCurrent(context))
    idle = pynvml.nvmlDeviceGetMemoryInfo(card)
    address = check(driver.cuMemAlloc(BLOCK))
    taken = pynvml.nvmlDeviceGetMemoryInfo(card)
    processes = {process.pid: process.usedGpuMemory for process in pynvml.nvmlDeviceGetComputeRunningProcesses(card)}
    check(driver.cuMemFree(address))
    freed = pynvml.nvmlDeviceGetMemoryInfo(card)
    free, total = check(driver.cuMemGetInfo())
    expect("used with the block", taken.used - idle.used, BLOCK)
    expect("used without it", freed.used, idle.used)
    answer(
        client="nvml",
        cards=cards,
        name=pynvml.nvmlDeviceGetName(card),
        uuid=uuid,
        driver=pynvml.nvmlSystemGetDriverVersion(),
        total=before.total,
        info_total=total,
        free=free,
        used=freed.used,
        utilisation=pynvml.nvmlDeviceGetUtilizationRates(card).gpu,
        own_memory=processes.get(os.getpid(), 0),
        processes=len(processes),
    )
    pynvml.nvmlShutdown()


main()
