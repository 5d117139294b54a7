# SPDX-License-Identifier: Apache-2.0
"""Tries a container's limit and share: python3 example.py [SECONDS].

Allocates chunks of 64 MiB until the driver refuses. Then computes for SECONDS (default: 0): the GPU
clears a chunk again and again. Needs the CUDA driver, real or simulated, and no package.
"""
import ctypes
import sys
import time

CHUNK = 64 << 20
driver = ctypes.CDLL("libcuda.so.1")


def call(function, *arguments):
    error = getattr(driver, function)(*arguments)
    if error:
        sys.exit(f"{function}: error {error}")


call("cuInit", 0)
context, total = ctypes.c_void_p(), ctypes.c_size_t()
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemGetInfo_v2", ctypes.byref(ctypes.c_size_t()), ctypes.byref(total))

chunks, memory = 0, None
while True:
    address = ctypes.c_uint64()
    error = driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(CHUNK))
    if error:
        break
    chunks, memory = chunks + 1, address
size = total.value >> 20
print(f"a GPU of {size} MiB; {chunks} chunks of 64 MiB, then error {error}", flush=True)

end = time.monotonic() + float(sys.argv[1] if len(sys.argv) > 1 else 0)
while chunks and time.monotonic() < end:
    call("cuMemsetD8Async", memory, 0, ctypes.c_size_t(CHUNK), None)
call("cuCtxSynchronize")
call("cuDevicePrimaryCtxRelease_v2", 0)
