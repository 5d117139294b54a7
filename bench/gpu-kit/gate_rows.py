"""The rows about a gate on the device: launches queued behind a wait that the host opens.

They measure the driver alone, without the shim. docs/internals/device-gate.md says what each figure
decides.
"""

import sys

from device_gate import LACKING
from processes import Failed, NotPossible
from tenants import KERNEL_US, Steady, rate

# Numbers of waiting contexts, and the memory that one of them may take.
BLOCKED = (1, 8, 24)
CONTEXT_MIB = 512
# Longer than `gate_latency` takes: the end of the row ends the neighbour.
NEIGHBOUR_SECONDS = 60
# Hardware queues of a context: the default, and the maximum.
CONNECTIONS = (8, 32)
# Time limit for streams to get through; if none waits they take some 10 ms.
STREAMS_SECONDS = 0.5


class Part:
    """A process that runs one part of device_gate.py."""

    def __init__(self, kit, *arguments, variables=None, commanded=False):
        program = [sys.executable, "-B", kit.folder / "device_gate.py"]
        self.process = kit.start(*program, *arguments, variables=variables, commanded=commanded)
        self.seen = -1

    def lines(self):
        """Waits for its end; returns the objects that it printed."""
        finished = self.process.wait()
        needs_stream_waits(finished)
        return finished.lines()

    def until(self, key):
        """Waits for the next line that has this key."""
        try:
            self.seen, found = self.process.line(key, self.seen + 1)
        except Failed:
            needs_stream_waits(self.process.finished())
            raise
        return found


def needs_stream_waits(finished):
    if finished.exit == LACKING:
        raise NotPossible(f"streams cannot wait on memory: {finished.stderr.strip()}")


def needs_processes(kit):
    mode = kit.machine.get("compute_mode")
    if mode not in ("Default", None):
        raise NotPossible(f"the GPU's compute mode is {mode}, and the kit changes no setting")


def gate_contexts(kit):
    """Launch rate of a saturating program beside contexts that are blocked in waits."""
    needs_processes(kit)
    # One more context is the program's.
    room = kit.machine["free_mib"] // CONTEXT_MIB - 1
    counts = [count for count in BLOCKED if count <= room]
    if not counts:
        raise NotPossible(f"only {kit.machine['free_mib']} MiB of the GPU are free")
    # Ends the row early when the driver has no stream waits.
    Part(kit, "latency", 1).lines()
    program = Steady(kit, KERNEL_US)
    seconds = max(0.5, kit.scaled(2.5))

    def launches():
        program.begin(seconds, seconds / 4)
        return rate(program.windows())

    alone = launches()
    contexts = [Part(kit, "blocked", commanded=True) for _ in range(counts[-1])]
    for one in contexts:
        one.until("ready")
    rates, blocked = {f"{counts[-1]} idle": launches()}, 0
    for count in counts:
        for one in contexts[blocked:count]:
            one.process.write("wait")
        if not all(one.until("waiting")["waiting"] for one in contexts[blocked:count]):
            raise Failed("a stream went on behind a wait that was not opened")
        blocked = count
        rates[f"{count} waiting"] = launches()
    for one in contexts:
        one.process.write("open")
    opened_ms = [one.until("opened_ms")["opened_ms"] for one in contexts]
    rates["after opening"] = launches()
    ratios = {state: one / alone for state, one in rates.items()}
    figure = ", ".join(f"{state} {ratio:.3f}" for state, ratio in ratios.items())
    return {
        "ok": None,
        "figure": f"of the rate alone: {figure}",
        "ratios": ratios,
        "launches_per_second": {"alone": alone, **rates},
        "opened_ms": opened_ms,
        "left_out": [count for count in BLOCKED if count not in counts],
    }


def gate_latency(kit):
    """Time from the store that opens a wait to the kernel's end, beside that from a launch."""
    needs_processes(kit)
    samples = int(max(50, kit.scaled(300)))
    seen = {"alone": Part(kit, "latency", samples).lines()[-1]}
    neighbour = Steady(kit, KERNEL_US)
    neighbour.begin(NEIGHBOUR_SECONDS, NEIGHBOUR_SECONDS)
    seen["beside"] = Part(kit, "latency", samples).lines()[-1]
    if neighbour.process.popen.poll() is not None:
        raise Failed(neighbour.process.finished().reason())
    figure = "; ".join(
        f"{where}: opened {one['opened']['p50_us']:.0f} us (p99 {one['opened']['p99_us']:.0f}), "
        f"launched {one['launched']['p50_us']:.0f} (p99 {one['launched']['p99_us']:.0f})"
        for where, one in seen.items()
    )
    return {"ok": None, "figure": figure, **seen}


def gate_streams(kit):
    """Streams of 64 that get through while others wait, with 8 connections and with 32."""
    seen = {}
    for connections in CONNECTIONS:
        variables = {"CUDA_DEVICE_MAX_CONNECTIONS": str(connections)}
        seen[str(connections)] = Part(kit, "streams", STREAMS_SECONDS, variables=variables).lines()
    figure = "; ".join(
        f"{connections} connections: "
        + ", ".join(f"{one['through']} of {one['others']} beside {one['waiting']}" for one in rows)
        for connections, rows in seen.items()
    )
    return {"ok": None, "figure": figure, "connections": seen}


def gate_calls(kit):
    """Calls that return, and kernels that run, while another stream waits."""
    seconds = max(0.2, kit.scaled(0.5))
    seen = Part(kit, "calls", seconds, variables={"CUDA_MODULE_LOADING": "LAZY"}).lines()
    held = [f"{one['call']} ({one['ms']:.0f} ms)" for one in seen if not one["returned"]]
    not_run = [one["call"] for one in seen if one["returned"] and one.get("ran") is False]
    figure = f"held until the opening: {', '.join(held) or 'none'}"
    figure += f"; return and do not run: {', '.join(not_run) or 'none'}"
    return {"ok": None, "figure": figure, "hold_ms": seconds * 1e3, "calls": seen}
