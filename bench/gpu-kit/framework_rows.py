"""Rows about frameworks and profilers, with and without the shim, and the time of a start."""

import functools
import importlib.util
import sys
import time

import cases
import needs
from processes import Failed, NotPossible

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
    # Without its plug-in for CUDA it would use the processor.
    "JAX": (
        "jax",
        "import jax; gpu = jax.devices('gpu')[0]\n"
        "x = jax.device_put(jax.numpy.ones((512, 512)), gpu); print(float((x @ x).sum()))",
    ),
    "CuPy": ("cupy", "import cupy as c; x = c.ones((512, 512)); print(float((x @ x).sum()))"),
}
# Limit of the frameworks that take most of the memory that they see.
LIMIT_MIB = 16384
# vLLM asks its makers and hubs nothing, and prints nothing but the tokens.
VLLM_VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_NO_USAGE_STATS": "1",
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


def compared(kit, command, variables=None, same=True, limit=None):
    """Runs a command with and without the shim; the last line must be the same if `same`."""
    plain = kit.run(*command, variables=variables)
    if plain.exit != 0:
        raise NotPossible(f"without the shim: {plain.reason()}")
    run = kit.unlimited if limit is None else functools.partial(kit.limited, limit)
    shim = run(*command, variables=variables)
    shim.check()
    if same and last_line(shim) != last_line(plain):
        raise Failed(f"{last_line(shim)!r}, not {last_line(plain)!r}")


def last_line(finished):
    """Returns the last line of the output: libraries may print others before."""
    return (finished.stdout.strip().splitlines() or [""])[-1][:99]


def needs_package(package):
    if importlib.util.find_spec(package) is None:
        raise NotPossible(f"{package} is not installed for {sys.executable}")


def framework(kit, title, limit=None):
    """Runs a framework's script by each of its allocators; returns the results."""
    package, script = SCRIPTS[title]
    ways = {title: None}
    if title == "torch":
        ways.update({f"torch {one}": {"PYTORCH_CUDA_ALLOC_CONF": one} for one in ALLOCATORS})

    def tried(variables):
        needs_package(package)
        compared(kit, [sys.executable, "-c", script], variables, limit=limit)

    return {way: cases.tried(lambda: tried(variables)) for way, variables in ways.items()}


def frameworks(kit):
    """PyTorch, its allocators, compile and graphs, and CuPy, with and without the shim."""
    needs.vendor_driver(kit, "PyTorch")
    titles = ("torch", "torch.compile", "torch graphs", "CuPy")
    return cases.collected({
        way: result for title in titles for way, result in framework(kit, title).items()
    })


def nccl(kit):
    """NCCL, by PyTorch with one rank, with and without the shim."""
    needs.vendor_driver(kit, "NCCL")
    return cases.collected(framework(kit, "NCCL"))


def jax(kit):
    """JAX, which takes most of the memory that it sees, without the shim and under a limit."""
    needs.vendor_driver(kit, "JAX")
    return cases.collected(framework(kit, "JAX", needs.limit_mib(kit, most=LIMIT_MIB)))


def vllm(kit):
    """vLLM with random weights: the same tokens without the shim and under a limit."""
    needs.vendor_driver(kit, "vLLM")
    limit = needs.limit_mib(kit, most=LIMIT_MIB)

    def tried():
        needs_package("vllm")
        command = [sys.executable, kit.folder / "vllm_generate.py"]
        compared(kit, command, VLLM_VARIABLES, limit=limit)

    return cases.collected({"vLLM": cases.tried(tried)})


def profilers(kit):
    """A program under NVIDIA's profilers, with and without the shim."""
    needs.vendor_driver(kit, "a profiler")

    def tried(name, options):
        command = [needs.tool(kit, name), *(one.format(folder=kit.scratch) for one in options)]
        compared(kit, [*command, kit.program("once")], same=False)

    return cases.collected({
        name: cases.tried(lambda: tried(name, options)) for name, options in PROFILERS.items()
    })
