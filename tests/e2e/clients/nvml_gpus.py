# SPDX-License-Identifier: Apache-2.0
"""NVML of unequal GPUs, one of them partitioned (MIG), by the vendor's bindings and nvitop.

Computes on an instance, reads its own utilisation, and waits for an error that `cgpu-sim`
(CGPU_SIM_COMMAND) injects.
"""

import os
import subprocess
import time

import pynvml
from client import answer, expect, start
from cuda.bindings import driver


def check(answered):
    result, *values = answered
    expect("the call's result", result, driver.CUresult.CUDA_SUCCESS)
    return values[0] if len(values) == 1 else values


def refused(code, function, *arguments):
    try:
        function(*arguments)
    except pynvml.NVMLError as error:
        expect(f"the code of {function.__name__}", error.value, code)
    else:
        raise SystemExit(f"{function.__name__} is not refused")


def main():
    start(__doc__)
    pynvml.nvmlInit()
    indexes = range(pynvml.nvmlDeviceGetCount())
    gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in indexes]
    small, divided = gpus
    totals = [pynvml.nvmlDeviceGetMemoryInfo(gpu).total for gpu in gpus]
    refused(pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.nvmlDeviceGetMigMode, small)
    expect("MIG mode", pynvml.nvmlDeviceGetMigMode(divided), [1, 1])
    refused(pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.nvmlDeviceGetUtilizationRates, divided)
    instances = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(divided, index) for index in range(2)]
    refused(pynvml.NVML_ERROR_NOT_FOUND, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, divided, 2)
    attributes = [pynvml.nvmlDeviceGetAttributes(instance) for instance in instances]
    uuids = [pynvml.nvmlDeviceGetUUID(instance) for instance in instances]

    # The second instance is this program's only device.
    os.environ["CUDA_VISIBLE_DEVICES"] = uuids[1]
    check(driver.cuInit(0))
    expect("GPUs of the program", check(driver.cuDeviceGetCount()), 1)
    gpu = check(driver.cuDeviceGet(0))
    name = check(driver.cuDeviceGetName(64, gpu)).rstrip(b"\0 ").decode()
    expect("its name", name, pynvml.nvmlDeviceGetName(instances[1]))
    context = check(driver.cuDevicePrimaryCtxRetain(gpu))
    check(driver.cuCtxSetCurrent(context))
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(divided)
    mine = [(process.pid, process.gpuInstanceId) for process in running]
    expect("processes", mine, [(os.getpid(), 2)])
    expect("processes of the other", pynvml.nvmlDeviceGetComputeRunningProcesses(instances[0]), [])

    fields = pynvml.nvmlDeviceGetFieldValues(small, [pynvml.NVML_FI_DEV_POWER_INSTANT, 9999])
    expect("fields", [field.nvmlReturn for field in fields], [0, pynvml.NVML_ERROR_NOT_SUPPORTED])
    refused(pynvml.NVML_ERROR_NOT_FOUND, pynvml.nvmlDeviceGetProcessUtilization, small, 0)
    samples = pynvml.nvmlDeviceGetSamples(small, pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)[1]
    stamps = [sample.timeStamp for sample in samples]
    expect("samples in order", stamps, sorted(stamps))
    begun = time.perf_counter()
    pynvml.nvmlDeviceGetUtilizationRates(small)
    slow_ms = (time.perf_counter() - begun) * 1e3

    watch = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(divided, pynvml.nvmlEventTypeXidCriticalError, watch)
    refused(pynvml.NVML_ERROR_TIMEOUT, pynvml.nvmlEventSetWait_v2, watch, 10)
    subprocess.run([os.environ["CGPU_SIM_COMMAND"], "xid", "1", "79"], check=True)
    event = pynvml.nvmlEventSetWait_v2(watch, 5000)
    pynvml.nvmlEventSetFree(watch)

    from nvitop import Device

    answer(
        client="nvml_gpus",
        totals=totals,
        instances=[attribute.multiprocessorCount for attribute in attributes],
        memory_mib=[attribute.memorySizeMB for attribute in attributes],
        xid=event.eventData,
        slow_ms=slow_ms,
        nvitop=[device.memory_total() for device in Device.all()],
        degrees=Device(0).temperature(),
    )
    pynvml.nvmlShutdown()


main()
