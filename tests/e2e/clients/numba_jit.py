# SPDX-License-Identifier: Apache-2.0
"""Numba: compiles a kernel at run time and launches it.

Fills the GPU with arrays, gets the ordinary error, frees, goes on. The simulated GPU computes
nothing, so the kernel's result is only checked on a real one (CGPU_EXPECT_RESULTS=1).
"""

import gc
import os
import warnings

import numpy
from client import answer, expect, fill, start
from numba import cuda
from numba.core.errors import NumbaPerformanceWarning
from numba.cuda.cudadrv.driver import CudaAPIError

warnings.simplefilter("ignore", NumbaPerformanceWarning)

OUT_OF_MEMORY = 2


@cuda.jit
def add(first, second, total):
    index = cuda.grid(1)
    if index < total.size:
        total[index] = first[index] + second[index]


def allocate(size):
    try:
        return cuda.device_array(size, dtype=numpy.uint8)
    except CudaAPIError as error:
        expect("the error's code", error.code, OUT_OF_MEMORY)
        return None


def vectors():
    """Copies vectors to the GPU and back, and launches a kernel that adds them."""
    first = numpy.arange(1 << 20, dtype=numpy.float32)
    second = numpy.random.default_rng(7).random(first.size, dtype=numpy.float32)
    on_gpu = cuda.to_device(first), cuda.to_device(second), cuda.device_array_like(first)
    for _ in range(3):
        add[first.size // 256, 256](*on_gpu)
    cuda.synchronize()
    expect("the first vector", bool((on_gpu[0].copy_to_host() == first).all()), True)
    expect("the second vector", bool((on_gpu[1].copy_to_host() == second).all()), True)
    if os.environ.get("CGPU_EXPECT_RESULTS"):
        expect("the sum", bool(numpy.allclose(on_gpu[2].copy_to_host(), first + second)), True)


def managed():
    """Returns the result with which managed memory is refused, or 0."""
    try:
        cuda.managed_array(1024, dtype=numpy.uint8)
        return 0
    except CudaAPIError as error:
        return error.code


def free_memory(context):
    """Returns the free memory after a collection.

    Unused arrays wait for the collector, and then in Numba's own queue.
    """
    gc.collect()
    context.memory_manager.deallocations.clear()
    return context.get_memory_info().free


def main():
    arguments = start(__doc__)
    context = cuda.current_context()
    total = context.get_memory_info().total
    if arguments.total:
        expect("the GPU's size", total, arguments.total)
    vectors()
    free = free_memory(context)

    blocks, granted = fill(allocate)
    free_full = context.get_memory_info().free
    blocks.clear()
    free_memory(context)
    vectors()
    refused = managed()
    free_after = free_memory(context)
    # More, if an earlier process's memory is still draining.
    expect("nothing is left", free_after >= free, True)
    answer(
        client="numba_jit",
        total=total,
        info_total=total,
        free=free,
        granted=granted,
        out_of_memory=True,
        free_full=free_full,
        free_after=free_after,
        copied=True,
        launched=True,
        managed=refused,
    )


main()
