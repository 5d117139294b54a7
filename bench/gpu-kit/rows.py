"""The rows: what the kit tries and measures.

A row is a function that returns its results. `ok` says whether the promise holds, None if the row
only measures; `figure` is its line in the table. NotPossible says what the machine lacks. Rows have
no timeouts of their own: at its limit the kit's watchdog ends a row and its processes.
"""

import sys
import time
from typing import Callable, NamedTuple

import clock as clocks
import needs
from docker_rows import docker_images, docker_uninstall, docker_ways
from driver_rows import c_programs, cudart_lookups, pool_chunks, rounding, symbols
from facts import facts, xids
from framework_rows import frameworks, jax, nccl, profilers, start_time, vllm
from gate_rows import gate_calls, gate_contexts, gate_latency, gate_streams
from processes import Failed, NotPossible
from runtime_rows import cudart, cudart_11, cudart_12, cudart_13
from share_rows import (
    long_kernels,
    monitor_killed,
    shares_caps,
    shares_equal,
    shares_graphs,
    shares_priority,
    shares_weights,
    tenant_killed,
    tenant_stopped,
)
from tenants import Monitor, error_pct, rate, shares
from wall_rows import wall_charge, wall_context, wall_getters, wall_inside, wall_set

SHAPES = 4000
# Largest relative error of a share, in percent, as in the demo.
SHARE_ERROR_PCT = 2.0
# Groups of rows. A run has one of them; `--long` and `--gate` select the others. `--whole` runs all
# rows, those of its own group among them.
SHORT, LONG, GATE, WHOLE = "short", "long", "gate", "whole"


class Row(NamedTuple):
    """One row; its name is that of its function."""

    run: Callable
    # Time limit in seconds; the sum over a group is less than ten minutes.
    limit: int
    group: str = SHORT

    @property
    def name(self):
        return self.run.__name__

    @property
    def about(self):
        return self.run.__doc__.splitlines()[0]






def torch(kit):
    """Returns PyTorch's version."""
    needs.vendor_driver(kit, "PyTorch")
    probe = "import torch; torch.cuda.init(); print(torch.__version__)"
    seen = kit.run(sys.executable, "-c", probe)
    if "No module named 'torch'" in seen.stderr:
        raise NotPossible(
            f"PyTorch is not installed for {sys.executable} (PYTHON names another interpreter)"
        )
    if seen.exit != 0:
        raise NotPossible(f"PyTorch does not start: {seen.reason()}")
    return seen.stdout.strip()



def median(values):
    return sorted(values)[len(values) // 2]


def mib(number_of_bytes):
    return number_of_bytes >> 20


def meminfo(kit):
    """The limit is the GPU's size, by every function of the driver."""
    limit = needs.limit_mib(kit)
    seen = kit.limited(limit, kit.program("meminfo")).json()
    ok = seen["total"] == seen["total_device"] == limit << 20 and seen["free"] <= limit << 20
    return {"ok": ok, "figure": f"limit {limit} MiB, shown {mib(seen['total'])} MiB", **seen}


def fill(kit):
    """Memory can be allocated up to the limit; beyond it the usual error, and work continues."""
    limit = needs.limit_mib(kit)
    seen = kit.limited(limit, kit.program("alloc_fill"), "64M", "3").json()
    granted = mib(seen["granted"])
    ok = limit - needs.SLACK_MIB <= granted and seen["granted"] <= limit << 20
    return {
        "ok": ok,
        "figure": f"limit {limit} MiB, granted {granted} MiB, then error {seen['error']}",
        **seen,
    }


def managed(kit):
    """Managed memory, which could exceed any limit, is refused on every route."""
    seen = kit.limited(needs.limit_mib(kit), kit.program("managed"), "refused")
    return {
        "ok": seen.exit == 0,
        "figure": "refused" if seen.exit == 0 else seen.reason(),
        **seen.summary(),
    }


def fail_closed(kit):
    """A limit that cannot be understood refuses the start, with one line."""
    variables = {
        "CGPU_DIR": str(kit.root / "unreadable"),
        "ALIYUN_COM_GPU_MEM_CONTAINER": "lots",
        "LD_PRELOAD": str(kit.file("libcgpu.so")),
    }
    seen = kit.run(kit.program("init"), variables=variables)
    answer, lines = seen.json()["init"], len(seen.stderr.splitlines())
    return {
        "ok": answer == 1 and lines == 1,
        "figure": f"cuInit answered {answer}, {lines} line on stderr",
        **seen.summary(),
    }


def nvml_start(kit):
    """Time of NVML's start, in a fresh process that starts and ends it ten times."""
    seen = kit.run(kit.program("nvml_start"), "10")
    if seen.exit == 3:
        raise NotPossible(f"there is no NVML: {seen.reason()}")
    cycles = [one for one in seen.lines() if "init_ms" in one]
    starts = [one["init_ms"] for one in cycles]
    figures = {"first_ms": starts[0], "median_ms": median(starts), "worst_ms": max(starts)}
    told = "first {first_ms:.2f} ms, median {median_ms:.2f}, worst {worst_ms:.2f} of 10".format(
        **figures
    )
    return {
        "ok": None,
        "figure": told,
        **figures,
        "cycles": cycles,
        "persistence": kit.machine["nvml"].get("persistence"),
    }


def nvidia_smi(kit):
    """nvidia-smi shows the limit as the GPU's memory inside a container."""
    needs.whole_gpu(kit, "nvidia-smi queries the memory of whole GPUs")
    limit = needs.limit_mib(kit)
    query = ["--query-gpu=memory.total,memory.used,memory.free", "--format=csv,noheader,nounits"]
    command = [needs.tool(kit, "nvidia-smi"), "-i", kit.machine["nvml"].get("uuid", "0"), *query]
    outside, inside = kit.run(*command), kit.limited(limit, *command)
    table = kit.limited(limit, command[0])
    shown = inside.stdout.split(",")[0].strip()
    return {
        "ok": shown == str(limit),
        "figure": f"limit {limit} MiB, shown {shown or inside.reason()} MiB",
        "outside": outside.summary(),
        "inside": inside.summary(),
        "table": table.summary(),
    }


def costs(kit):
    """Cost of launches, events, memory writes and context switches, on the driver alone."""
    seen = kit.run(kit.program("costs"), round(max(1, kit.scaled(7)))).json()
    told = "launch {launch_host_us:.2f} us, event {event_record_gpu_us:.2f} us, "
    told = (told + "switch {switch_us:.1f} us").format(**seen)
    return {"ok": None, "figure": told, **seen}


def overhead(kit):
    """Launch rate of a lone program with the shim, over that without it."""
    command = [
        kit.program("launch_loop"),
        "spin_0us",
        "--count",
        str(int(max(2000, kit.scaled(300_000)))),
    ]
    kernel = {"CGPU_TEST_PTX": str(kit.folder / "empty.ptx")}
    limit = needs.limit_mib(kit)
    ratios, start = [], time.monotonic()
    # A driver without persistence takes seconds for each start: as many as fit into half of the
    # row's time.
    while len(ratios) < 5 and (not ratios or time.monotonic() - start < 20):
        plain = kit.run(*command, variables=kernel).json()
        shim = kit.limited(limit, *command, variables=kernel).json()
        ratios.append(shim["rate"] / plain["rate"])
    return {
        "ok": None,
        "figure": f"{median(ratios):.4f} of the rate without it",
        "ratio": median(ratios),
        "ratios": ratios,
    }


def clock(kit):
    """Rate of the GPU's clock against the host's CLOCK_MONOTONIC_RAW, in ppm."""
    seen = clocks.estimate(kit.run(kit.program("clock"), max(1.0, kit.scaled(60)), "6").lines())
    told = "{ppm:+.3f} ppm +- {uncertainty_ppm:.3f} over {seconds:.0f} s; "
    told = (told + "host slew {host_slew_ppm:+.3f} ppm").format(**seen)
    return {"ok": None, "figure": told, **seen}


def shapes(kit):
    """Launch rate of 4,000 shapes of 10 us beside a neighbour, over that of one shape."""
    needs.tenants(kit)
    monitor = Monitor(kit)
    seconds = max(0.5, kit.scaled(4))
    tenant = monitor.tenant("shapes", 1, kernel_us=10)
    neighbour = monitor.tenant("neighbour", 1)

    def launches(count, beside):
        if beside:
            neighbour.begin(seconds, seconds)
        tenant.begin(seconds, seconds / 4, count)
        windows = tenant.windows()
        if beside:
            neighbour.windows()
        return rate(windows)

    alone = [launches(count, beside=False) for count in (1, SHAPES)]
    rounds = [[launches(count, beside=True) for count in (1, SHAPES)] for _ in range(3)]
    ratio = median([many / one for one, many in rounds])
    told = f"{ratio:.3f} (goal >= 0.9), alone {alone[1] / alone[0]:.3f}"
    return {
        "ok": None,
        "figure": told,
        "ratio": ratio,
        "alone": alone,
        "rounds": rounds,
        "shapes": SHAPES,
        "status": monitor.status(),
    }


def demo(kit):
    """Two weighted tenants fill their memory and share the GPU 1:2."""
    needs.tenants(kit)
    needs.whole_gpu(kit, "the demo sets the policy of a whole GPU")
    seconds = str(max(3.0, kit.scaled(10)))
    done = kit.run(
        kit.file("cgpu-demo"), "--dist", kit.folder / "dist", "--json", "--seconds", seconds
    )
    if not done.stdout.strip():
        raise Failed(done.reason())
    seen = done.parse(done.stdout)
    told = (
        f"share error {seen['share_error_pct']} %, together {seen['aggregate_pct']} % of one alone"
    )
    return {"ok": done.exit == 0, "figure": told, "demo": seen}


def torch_memory(kit):
    """PyTorch sees the limit, runs out of memory as usual, frees and continues."""
    torch(kit)
    limit = needs.limit_mib(kit)
    seen = kit.limited(limit, sys.executable, kit.folder / "torch_memory.py").json()
    ok = (
        seen["total"] == limit << 20
        and seen["out_of_memory"]
        and seen["went_on"]
        and seen["most"] <= limit << 20
    )
    return {"ok": ok, "figure": f"limit {limit} MiB, reserved {mib(seen['most'])} MiB", **seen}


def torch_training(kit):
    """A training loop has the same losses with and without the shim; the cost of a step."""
    version = torch(kit)
    limit = needs.limit_mib(kit, most=16384)
    command = [sys.executable, kit.folder / "torch_training.py"]
    # Without it cuBLAS may sum in a different order in each run.
    variables = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    rounds = [
        (
            kit.run(*command, variables=variables).json(),
            kit.limited(limit, *command, variables=variables).json(),
        )
        for _ in range(2)
    ]
    plain, shim = (min(pair[side]["step_ms"] for pair in rounds) for side in (0, 1))
    same = all(pair[0]["losses"] == pair[1]["losses"] for pair in rounds)
    told = f"losses {'equal' if same else 'differ'}, step {shim / plain:.4f} of that without"
    return {"ok": same, "figure": told, "ratio": shim / plain, "torch": version, "rounds": rounds}


def shares_long(kit):
    """Shares of 25:75 over five minutes, and for one more after three idle ones."""
    needs.tenants(kit)
    monitor = Monitor(kit)
    wanted, tenants = [25, 75], [monitor.tenant("a", 1)]
    tenants.append(monitor.tenant("b", 3, iterations=tenants[0].iterations))
    window = max(1.0, kit.scaled(10))

    def together(seconds):
        before = monitor.gpu_time_ms()
        for tenant in tenants:
            tenant.begin(max(3.0, kit.scaled(seconds)), window)
        windows = [tenant.windows() for tenant in tenants]
        after = monitor.gpu_time_ms()
        accounted = [after[name] - before[name] for name in ("a", "b")]
        # The first window includes the tenants' start.
        return [one[1:] for one in windows], [100 * one / sum(accounted) for one in accounted]

    busy, busy_accounted = together(300)
    time.sleep(kit.scaled(180))
    again, again_accounted = together(60)
    of_minute = max(2, int(60 / window)) if kit.scale == 1 else 2
    seen = {
        "first": shares([one[:of_minute] for one in busy]),
        "whole": shares(busy),
        "last": shares([one[-of_minute:] for one in busy]),
        "after_idle": shares(again),
        "windows": [shares([[a], [b]]) for a, b in zip(*busy)],
        "accounted": {"busy": busy_accounted, "after_idle": again_accounted},
        "status": monitor.status(),
    }
    worst = max(error_pct(seen[part], wanted) for part in ("whole", "last", "after_idle"))
    told = ", ".join(
        f"{part.replace('_', ' ')} {seen[part][0]:.2f}:{seen[part][1]:.2f}"
        for part in ("first", "last", "after_idle")
    )
    return {
        "ok": worst <= SHARE_ERROR_PCT,
        "figure": f"{told}; error {worst:.2f} %",
        "error_pct": worst,
        **seen,
    }


# The cheapest and most informative rows first: the machine may be lost at any time.
ROWS = [
    Row(facts, 60, WHOLE),
    Row(nvml_start, 30),
    Row(meminfo, 15),
    Row(fill, 25),
    Row(managed, 15),
    Row(fail_closed, 10),
    Row(nvidia_smi, 20),
    Row(costs, 30),
    Row(rounding, 30, WHOLE),
    Row(pool_chunks, 30, WHOLE),
    Row(symbols, 10, WHOLE),
    Row(cudart_lookups, 60, WHOLE),
    Row(c_programs, 400, WHOLE),
    Row(clock, 75),
    Row(shapes, 55),
    Row(demo, 45),
    Row(overhead, 40),
    Row(torch_memory, 75),
    Row(torch_training, 85),
    Row(cudart, 45),
    Row(cudart_11, 30, WHOLE),
    Row(cudart_12, 30, WHOLE),
    Row(cudart_13, 30, WHOLE),
    Row(gate_contexts, 90, GATE),
    Row(gate_latency, 45, GATE),
    Row(gate_streams, 45, GATE),
    Row(gate_calls, 45, GATE),
    Row(start_time, 60, WHOLE),
    Row(frameworks, 240, WHOLE),
    Row(nccl, 90, WHOLE),
    Row(jax, 90, WHOLE),
    Row(vllm, 360, WHOLE),
    Row(profilers, 120, WHOLE),
    Row(docker_ways, 150, WHOLE),
    Row(docker_images, 300, WHOLE),
    Row(docker_uninstall, 120, WHOLE),
    Row(shares_equal, 60, WHOLE),
    Row(shares_weights, 60, WHOLE),
    Row(shares_graphs, 60, WHOLE),
    Row(shares_caps, 75, WHOLE),
    Row(shares_priority, 60, WHOLE),
    Row(tenant_killed, 75, WHOLE),
    Row(tenant_stopped, 75, WHOLE),
    Row(monitor_killed, 75, WHOLE),
    Row(long_kernels, 120, WHOLE),
    Row(shares_long, 570, LONG),
    Row(xids, 20, WHOLE),
    # Drivers from r615 on: what public documents leave open.
    Row(wall_set, 30, WHOLE),
    Row(wall_charge, 45, WHOLE),
    Row(wall_context, 45, WHOLE),
    Row(wall_getters, 30, WHOLE),
    Row(wall_inside, 150, WHOLE),
]
