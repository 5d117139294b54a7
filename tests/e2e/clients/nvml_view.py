# SPDX-License-Identifier: Apache-2.0
"""The first GPU and its processes by the vendor's Python bindings of NVML.

Prints one line for the GPU and one for each process.
"""

import signal

import pynvml

signal.alarm(60)
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
memory = pynvml.nvmlDeviceGetMemoryInfo(gpu)
print(f"gpu: {memory.total} bytes, {memory.used} used, {memory.free} free")
samples = None
while samples is None:
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(gpu, 0)
    except pynvml.NVMLError_InsufficientSize:
        # There are more samples than when the bindings queried their number.
        pass
    except pynvml.NVMLError_NotFound:
        samples = []
busy = {sample.pid: sample.smUtil for sample in samples}
running = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
for process in sorted(running, key=lambda process: process.pid):
    state = "busy" if busy.pop(process.pid, 0) else "idle"
    print(f"process {process.pid}: {process.usedGpuMemory} bytes, {state}")
for pid in busy:
    print(f"process {pid}: busy, and not on the GPU")
pynvml.nvmlShutdown()
