# SPDX-License-Identifier: Apache-2.0
"""Numba: streams, events, pinned and mapped memory, stream-ordered copies, slices.

Checks the bytes after each. The simulated GPU computes nothing, so the kernel's result is only
checked on a real one (CGPU_EXPECT_RESULTS=1).
"""

import os
import warnings

import numpy
from client import answer, expect, start
from numba import cuda
from numba.core.errors import NumbaPerformanceWarning

warnings.simplefilter("ignore", NumbaPerformanceWarning)

LENGTH = 1 << 20


@cuda.jit
def scale(values, factor):
    index = cuda.grid(1)
    if index < values.size:
        values[index] *= factor


def same(what, found, wanted):
    expect(what, bool((found == wanted).all()), True)


def streams(random):
    """Runs copies and kernels in two streams, one of which waits for an event of the other."""
    arrays = [cuda.pinned_array(LENGTH, dtype=numpy.float32) for _ in range(2)]
    both = [cuda.stream() for _ in arrays]
    kept = []
    for array, stream in zip(arrays, both):
        array[:] = random.random(LENGTH, dtype=numpy.float32)
        on_gpu = cuda.to_device(array, stream=stream)
        scale[LENGTH // 256, 256, stream](on_gpu, 2.0)
        kept.append(on_gpu)
    done = cuda.event()
    done.record(both[0])
    done.wait(both[1])
    backs = [on_gpu.copy_to_host(stream=stream) for on_gpu, stream in zip(kept, both)]
    for stream in both:
        stream.synchronize()
    expect("the event", done.query(), True)
    factor = numpy.float32(2.0 if os.environ.get("CGPU_EXPECT_RESULTS") else 1.0)
    for array, back in zip(arrays, backs):
        same("an array through a stream", back, array * factor)


def time(random):
    """Returns the milliseconds between two events around a kernel."""
    on_gpu = cuda.to_device(random.random(LENGTH, dtype=numpy.float32))
    scale[LENGTH // 256, 256](on_gpu, 1.0)
    begin, end = cuda.event(), cuda.event()
    begin.record()
    for _ in range(10):
        scale[LENGTH // 256, 256](on_gpu, 1.0)
    end.record()
    end.synchronize()
    return cuda.event_elapsed_time(begin, end)


def copies(random):
    """Copies parts of arrays and arrays of two dimensions within the GPU and out of it."""
    matrix = random.integers(0, 1 << 30, size=(512, 768), dtype=numpy.int64)
    on_gpu = cuda.to_device(matrix)
    same("rows", on_gpu[100:200].copy_to_host(), matrix[100:200])
    twin = cuda.device_array_like(on_gpu)
    twin.copy_to_device(on_gpu)
    twin[10:20].copy_to_device(matrix[30:40])
    wanted = matrix.copy()
    wanted[10:20] = matrix[30:40]
    same("a changed part", twin.copy_to_host(), wanted)


def mapped(random):
    """Passes mapped host memory to a kernel and to copies."""
    array = cuda.mapped_array(LENGTH, dtype=numpy.float32)
    array[:] = random.random(LENGTH, dtype=numpy.float32)
    scale[LENGTH // 256, 256](array, 1.0)
    cuda.synchronize()
    same("mapped memory", cuda.to_device(numpy.asarray(array)).copy_to_host(), numpy.asarray(array))


def main():
    start(__doc__)
    random = numpy.random.default_rng(11)
    streams(random)
    elapsed = time(random)
    copies(random)
    mapped(random)
    cuda.synchronize()
    answer(client="numba_work", elapsed_ms=elapsed)


main()
