"""Measures, on the driver alone, what a gate on the device would need.

docs/internals/device-gate.md has the study.

    device_gate.py blocked           reads commands from stdin: `wait` queues launches behind
                                     a wait, `open` opens it
    device_gate.py latency SAMPLES   times the opening of a wait to the end of the kernel behind it
    device_gate.py streams SECONDS   counts which of 64 streams get through while others wait
    device_gate.py calls SECONDS     tries which calls return while a stream waits, SECONDS at most

Prints one JSON object a line. Exit code 3: the driver has no stream waits; standard error says what
is missing.

A wait on the device has no time limit. So a timer or the end of the program opens every wait, and
SIGALRM ends a program that a call blocks longer.
"""

import ctypes
import json
import signal
import sys
import threading
import time
from pathlib import Path

from machine import Refused, call, load

ALARM_SECONDS = 150
LACKING = 3
# CU_MEMHOSTALLOC_DEVICEMAP, CU_STREAM_NON_BLOCKING, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1.
MAPPED, NON_BLOCKING, MEMORY_OPERATIONS_V1 = 2, 1, 92
KERNEL = "spin_0us"
# A kernel that no other part of the program loads.
UNLOADED_KERNEL = "spin_1us"
# Time for a stream to reach its wait: several slices when another context computes.
SETTLE_SECONDS = 0.003
STREAMS = 64
WAITING = (1, 8, 16, 32)
# When the waits of `streams` open although the calls that queue the rest have not returned.
STREAMS_OPEN_SECONDS = 3.0
QUEUED_LAUNCHES = 100
# Indexes of the words that host and GPU share.
GATE, DONE, OF_STREAMS = 0, 1, 2
WORDS = OF_STREAMS + STREAMS


class Lacking(Exception):
    """The driver has no stream waits."""


class Driver:
    """The driver, with the primary context of the first GPU and words that host and GPU share."""

    def __init__(self):
        self.cuda, self.value = load("libcuda.so.1"), 0
        self.wait_name = self.newest("cuStreamWaitValue32")
        self.write_name = self.newest("cuStreamWriteValue32")
        call(self.cuda, "cuInit", 0)
        self.check_attribute()
        context = ctypes.c_void_p()
        call(self.cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        call(self.cuda, "cuCtxSetCurrent", context)
        host, self.device = ctypes.c_void_p(), ctypes.c_uint64()
        call(self.cuda, "cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(4 * WORDS), MAPPED)
        call(self.cuda, "cuMemHostGetDevicePointer_v2", ctypes.byref(self.device), host, 0)
        self.words = (ctypes.c_uint32 * WORDS).from_address(host.value)
        for index in range(WORDS):
            self.words[index] = 0
        self.kernel = self.function(self.module(KERNEL), KERNEL)
        self.check_waits()

    def newest(self, name):
        """Returns version 2 of a stream memory operation, else version 1."""
        for symbol in (f"{name}_v2", name):
            if hasattr(self.cuda, symbol):
                return symbol
        raise Lacking(f"the driver has no {name}")

    def check_attribute(self):
        """Checks version 1, which is off unless a parameter of the kernel module enables it."""
        supported = ctypes.c_int()
        call(self.cuda, "cuDeviceGetAttribute", ctypes.byref(supported), MEMORY_OPERATIONS_V1, 0)
        if not self.wait_name.endswith("_v2") and not supported.value:
            raise Lacking(f"the GPU's attribute {MEMORY_OPERATIONS_V1} (stream memory ops) is 0")

    def check_waits(self):
        """Waits for a value that is already there; raises if the driver has no waits."""
        stream = self.stream()
        try:
            self.wait(stream, GATE, self.value)
            self.write(stream, DONE, self.value)
        except Refused as refused:
            raise Lacking(str(refused)) from refused
        call(self.cuda, "cuStreamSynchronize", stream)

    def stream(self, flags=NON_BLOCKING):
        stream = ctypes.c_void_p()
        call(self.cuda, "cuStreamCreate", ctypes.byref(stream), flags)
        return stream

    def module(self, kernel):
        module, image = ctypes.c_void_p(), Path(__file__).with_name("empty.ptx").read_text()
        image = image.replace(KERNEL, kernel).encode()
        call(self.cuda, "cuModuleLoadData", ctypes.byref(module), image)
        return module

    def function(self, module, kernel):
        function = ctypes.c_void_p()
        call(self.cuda, "cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
        return function

    def launch(self, stream, function=None):
        shape = (1, 1, 1, 1, 1, 1, 0)
        call(self.cuda, "cuLaunchKernel", function or self.kernel, *shape, stream, None, None)

    def address(self, index):
        return ctypes.c_uint64(self.device.value + 4 * index)

    def wait(self, stream, index, value):
        """Queues a wait until the word is at least the value, cyclically."""
        call(self.cuda, self.wait_name, stream, self.address(index), ctypes.c_uint32(value), 0)

    def write(self, stream, index, value):
        call(self.cuda, self.write_name, stream, self.address(index), ctypes.c_uint32(value), 0)

    def next_value(self):
        self.value += 1
        return self.value

    def is_done(self, stream):
        return self.cuda.cuStreamQuery(stream) == 0

    def open_all(self):
        self.words[GATE] = self.value


class Gate:
    """The word of a wait, which a timer opens whatever the program does."""

    def __init__(self, driver, seconds):
        self.driver, self.value, self.is_open = driver, driver.next_value(), False
        self.timer = threading.Timer(seconds, self.open)
        self.timer.daemon = True

    def open(self):
        # Before the store: a call that returns after it must not count as returned before.
        self.is_open = True
        self.driver.words[GATE] = self.value

    def __enter__(self):
        self.timer.start()
        return self

    def __exit__(self, *_):
        self.timer.cancel()
        self.open()
        call(self.driver.cuda, "cuCtxSynchronize")


def say(**seen):
    print(json.dumps(seen), flush=True)


def blocked(driver):
    """Waits on the device between the commands `wait` and `open`, and is idle otherwise."""
    stream = driver.stream()
    say(ready=True)
    for command in sys.stdin:
        if command.strip() == "wait":
            driver.wait(stream, GATE, driver.next_value())
            for _ in range(QUEUED_LAUNCHES):
                driver.launch(stream)
            driver.write(stream, DONE, driver.value)
            time.sleep(SETTLE_SECONDS)
            say(waiting=driver.words[DONE] != driver.value)
        else:
            start = time.perf_counter_ns()
            driver.open_all()
            call(driver.cuda, "cuStreamSynchronize", stream)
            say(opened_ms=(time.perf_counter_ns() - start) / 1e6)


def latency(driver, samples):
    """Measures until the host sees the word that a stream writes behind a kernel."""
    stream, taken_us = driver.stream(), {"opened": [], "launched": []}
    for _ in range(samples):
        for way, times in taken_us.items():
            value = driver.next_value()
            if way == "opened":
                driver.wait(stream, GATE, value)
                driver.launch(stream)
                driver.write(stream, DONE, value)
            time.sleep(SETTLE_SECONDS)
            start = time.perf_counter_ns()
            if way == "opened":
                driver.words[GATE] = value
            else:
                driver.launch(stream)
                driver.write(stream, DONE, value)
            while driver.words[DONE] != value:
                pass
            times.append((time.perf_counter_ns() - start) / 1e3)
    say(samples=samples, **{way: percentiles(times) for way, times in taken_us.items()})


def percentiles(times_us):
    ordered = sorted(times_us)
    return {
        "p50_us": ordered[len(ordered) // 2],
        "p99_us": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
        "worst_us": ordered[-1],
    }


def streams(driver, seconds):
    """Counts the streams that get through while others wait, in order of creation."""
    ours = [driver.stream() for _ in range(STREAMS)]
    for stream in ours:
        driver.launch(stream)
    call(driver.cuda, "cuCtxSynchronize")
    for waiting in WAITING:
        with Gate(driver, STREAMS_OPEN_SECONDS + seconds) as gate:
            for stream in ours[:waiting]:
                driver.wait(stream, GATE, gate.value)
            for index, stream in enumerate(ours):
                driver.launch(stream)
                driver.write(stream, OF_STREAMS + index, gate.value)
            deadline = time.monotonic() + seconds
            while True:
                through = [word == gate.value for word in driver.words[OF_STREAMS:]]
                if all(through[waiting:]) or time.monotonic() > deadline:
                    break
                time.sleep(0.001)
            say(
                waiting=waiting,
                others=STREAMS - waiting,
                through=sum(through[waiting:]),
                # Neither may be: waits that block nothing, a full queue that the timer had to open.
                not_held=sum(through[:waiting]),
                opened_early=gate.is_open,
            )


def calls(driver, seconds):
    """Makes calls while a stream waits; prints which return, and which kernels run."""
    waiting, blocking, other = driver.stream(), driver.stream(0), driver.stream()
    memory, host, made = ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_void_p()
    legacy = ctypes.c_void_p()
    driver.launch(other)
    call(driver.cuda, "cuCtxSynchronize")

    def probe(name, make, behind=waiting, runs_in=None):
        with Gate(driver, seconds) as gate:
            driver.wait(behind, GATE, gate.value)
            driver.launch(behind)
            time.sleep(SETTLE_SECONDS)
            start = time.perf_counter_ns()
            answer = make()
            taken_ms, returned = (time.perf_counter_ns() - start) / 1e6, not gate.is_open
            seen = {"call": name, "returned": returned, "ms": taken_ms}
            if runs_in is not None:
                done = driver.is_done(runs_in)
                while not done and not gate.is_open:
                    time.sleep(0.001)
                    done = driver.is_done(runs_in)
                seen["ran"] = done and not gate.is_open
        say(**seen)
        return answer

    def alloc(name, address):
        return lambda: call(driver.cuda, name, ctypes.byref(address), ctypes.c_size_t(1 << 20))

    probe("launch", lambda: driver.launch(other), runs_in=other)
    module = probe("module_load", lambda: driver.module(UNLOADED_KERNEL))
    function = probe("get_function", lambda: driver.function(module, UNLOADED_KERNEL))
    probe("first_launch", lambda: driver.launch(other, function), runs_in=other)
    probe("module_unload", lambda: call(driver.cuda, "cuModuleUnload", module))
    probe("mem_alloc", alloc("cuMemAlloc_v2", memory))
    probe("mem_free", lambda: call(driver.cuda, "cuMemFree_v2", memory))
    probe("host_alloc", alloc("cuMemAllocHost_v2", host))
    probe("host_free", lambda: call(driver.cuda, "cuMemFreeHost", host))
    probe("stream_create", lambda: call(driver.cuda, "cuStreamCreate", ctypes.byref(made), 1))
    probe("legacy_launch", lambda: driver.launch(legacy), behind=blocking, runs_in=legacy)


# Each part, and the types of its arguments.
PARTS = {
    "blocked": (blocked,),
    "latency": (latency, int),
    "streams": (streams, float),
    "calls": (calls, float),
}


def main():
    part, *kinds = PARTS[sys.argv[1]]
    signal.alarm(ALARM_SECONDS)
    try:
        driver = Driver()
        try:
            part(driver, *(kind(text) for kind, text in zip(kinds, sys.argv[2:])))
        finally:
            driver.open_all()
    except Lacking as lacking:
        print(lacking, file=sys.stderr)
        return LACKING
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
