"""Rows about frameworks and profilers, each with and without the shim, and the time of a start."""

import importlib.util
import shutil
import sys
import time

from processes import NotPossible

ROUNDS = 5
MATMUL = "x = torch.ones(512, 512, device='cuda'); print(float((x @ x).sum()))"
# Of each case: the Python package that it needs, and a script whose output is the same in each run.
SCRIPTS = {
    "torch": ("torch", f"import torch; {MATMUL}"),
    "torch.compile": (
        "torch",
        "import torch; f = torch.compile(lambda x: (x * 2).relu().sum()); "
        "print(float(f(torch.ones(1 << 20, device='cuda'))))",
    ),
    "torch graphs": (
        "torch",
        "import torch; x = torch.ones(1 << 20, device='cuda'); g = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(g): y = x * 3\n"
        "g.replay(); print(float(y.sum()))",
    ),
    "NCCL": (
        "torch",
        "import tempfile, torch, torch.distributed as d; file = tempfile.mktemp()\n"
        "d.init_process_group('nccl', init_method='file://' + file, rank=0, world_size=1)\n"
        "x = torch.ones(1 << 20, device='cuda'); d.all_reduce(x); print(float(x.sum()))",
    ),
    "JAX": ("jax", "import jax.numpy as n; x = n.ones((512, 512)); print(float((x @ x).sum()))"),
    "CuPy": ("cupy", "import cupy as c; x = c.ones((512, 512)); print(float((x @ x).sum()))"),
}
# Allocators of PyTorch, by its own variable.
ALLOCATORS = ("expandable_segments:True", "backend:cudaMallocAsync")
# Profilers, and their options before the program.
PROFILERS = {
    "nsys": ["profile", "--force-overwrite=true", "--output", "{folder}/nsys", "--trace", "cuda"],
    "ncu": ["--target-processes", "all", "--launch-count", "1"],
    "compute-sanitizer": [],
}


def start_time(kit):
    """Time of a program that allocates, launches and frees once, with and without the shim."""
    seen = {"plain": [], "shim": []}
    for _ in range(ROUNDS):
        for way, run in (("plain", kit.run), ("shim", kit.unlimited)):
            start = time.monotonic()
            run(kit.program("once")).check()
            seen[way].append((time.monotonic() - start) * 1e3)
    plain, shim = (sorted(seen[way])[ROUNDS // 2] for way in ("plain", "shim"))
    told = f"{plain:.1f} ms without, {shim:.1f} ms with (of which `cgpu run` is a part)"
    return {"ok": None, "figure": told, "plain_ms": plain, "shim_ms": shim, "times": seen}


def compared(kit, command, variables=None, same=True):
    """Runs a command with and without the shim; the output must be the same if `same`."""
    plain = kit.run(*command, variables=variables)
    if plain.exit != 0:
        return {"result": "not possible", "because": f"without the shim: {plain.reason()}"}
    shim = kit.unlimited(*command, variables=variables)
    if shim.exit != 0:
        return {"result": "FAILED", "because": shim.reason()}
    if same and shim.stdout != plain.stdout:
        return {"result": "FAILED", "because": f"{shim.stdout[:99]!r}, not {plain.stdout[:99]!r}"}
    return {"result": "held"}


def collected(results):
    """Returns a row of several cases; not possible if none is."""
    if all(one["result"] == "not possible" for one in results.values()):
        raise NotPossible("; ".join(sorted({one["because"] for one in results.values()})))
    return {
        "ok": not any(one["result"] == "FAILED" for one in results.values()),
        "figure": ", ".join(f"{title} {one['result']}" for title, one in results.items()),
        "cases": results,
    }


def missing(what):
    return {"result": "not possible", "because": f"{what} is not installed"}


def frameworks(kit):
    """PyTorch, its allocators, NCCL, JAX and CuPy, with and without the shim."""
    if kit.is_simulated:
        raise NotPossible("frameworks accept the vendor's driver only, and this one is simulated")
    results = {}
    for title, (package, script) in SCRIPTS.items():
        ways = {title: None}
        if title == "torch":
            ways.update({f"torch {one}": {"PYTORCH_CUDA_ALLOC_CONF": one} for one in ALLOCATORS})
        for way, variables in ways.items():
            if importlib.util.find_spec(package) is None:
                results[way] = missing(package)
            else:
                results[way] = compared(kit, [sys.executable, "-c", script], variables)
    # It needs a model's weights, which the kit does not have.
    results["vLLM"] = {"result": "not possible", "because": "the kit has no model for vLLM"}
    return collected(results)


def profilers(kit):
    """A program under NVIDIA's profilers, with and without the shim."""
    if kit.is_simulated:
        raise NotPossible("profilers accept the vendor's driver only, and this one is simulated")
    results = {}
    for name, options in PROFILERS.items():
        found = shutil.which(name, path=kit.environment["PATH"])
        command = [found, *(option.format(folder=kit.scratch) for option in options)]
        results[name] = (
            compared(kit, [*command, kit.program("once")], same=False) if found else missing(name)
        )
    return collected(results)
