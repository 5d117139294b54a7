"""The small C programs of `tests/cuda/programs`, and how each is run with and without the shim.

Each checks itself and exits 0. What a program needs beyond a driver is its own affair: if it does
not exit 0 without the shim, it is not possible here, and its message says why.
"""

from typing import NamedTuple, Tuple


# Memory that a program may take beside its limit: contexts of several processes.
ROOM_MIB = 1024


class Case(NamedTuple):
    """One way to run a program: its arguments, and the limit that it needs, in MiB."""

    arguments: Tuple[str, ...] = ()
    limit: int = 0


# Programs that are run otherwise than without arguments and without a limit.
CASES = {
    "agree": [Case(("1M", "64M"), 2048)],
    "alloc_fill": [Case(("256M", "2"))],
    "bound": [Case(("multicast",)), Case(("endpoint",))],
    "exchange": [Case(("ipc", "bca")), Case(("descriptor", "ABC")), Case(("pool", "Acb"))],
    "foreign_free": [Case(), Case((), 2048)],
    "graph_alternating": [Case((), 1024)],
    "graph_counted": [Case(), Case((), 2048)],
    "graph_managed": [Case(), Case((), 2048)],
    "graph_out_of_memory": [Case((), 1024)],
    "graph_private_pools": [Case((), 2600)],
    "graph_serving_engine": [Case((), 2600)],
    "graph_threads": [Case(), Case((), 2048)],
    "graph_uploaded": [Case(), Case((), 2048)],
    "imported": [Case(("64M",))],
    "init": [Case(("3",))],
    "kernels": [Case(("8", "64", "last"))],
    "managed": [Case(("granted",))],
    "nvml_uses": [Case(), Case((), 4096)],
    "odd_arguments": [Case(), Case((), 2048)],
    "pool_captured": [Case(), Case((), 2048)],
    "pool_counted": [Case(), Case((), 2048)],
    "pool_destroyed": [Case(), Case((), 2048)],
    "pool_never_synchronised": [Case((), 2048)],
    "pool_out_of_memory": [Case((), 2048)],
    "pool_repeated": [Case(), Case((), 1024)],
    "pool_shared_limit": [Case((), 2048)],
    "pool_small": [Case((), 700)],
    "pool_threads": [Case(), Case((), 1024)],
    "pool_threshold": [Case(), Case((), 2048)],
    "race": [Case((), 8192)],
    "serving_engine": [Case((), 5000)],
    "spawns": [Case(), Case((), 4096)],
    "unsuffixed": [Case((), 3072)],
}

COMMANDED = "follows commands; the rows about shares and the tests run its like"
# Programs that this row leaves out, and why.
LEFT_OUT = {
    "accounting": "changes records of the whole host",
    "among": "is run under an instruction counter",
    "calls": "is run under an instruction counter",
    "captured_launches": COMMANDED,
    "churn": COMMANDED,
    "clock": "has a row of its own",
    "context_turns": COMMANDED,
    "costs": "has a row of its own",
    "daemon": "outlives its caller",
    "driver_refuses": "needs faults of the simulated driver",
    "fork_bomb": "does not end",
    "graph_pressure": "needs memory to be short at an exact size",
    "hold": COMMANDED,
    "implicit_code": COMMANDED,
    "implicit_contexts": "creates contexts until the whole GPU is full",
    "launch_loop": "has a row of its own: overhead",
    "launches": COMMANDED,
    "load": "is part of the benchmarks",
    "lookups": "compares recordings of drivers",
    "mortal": COMMANDED,
    "numa_node": "needs the tests' tree of NUMA nodes",
    "nvml_start": "has a row of its own",
    "random_streams": COMMANDED,
    "rewind": "is an attacker, which the tests run",
    "runtime": "has a row of its own: cudart_lookups",
    "siblings": "needs a compiled module",
    "steady": "has rows of its own: shapes and the shares",
    "take": COMMANDED,
    "visible": "needs its variables",
    "waiting": COMMANDED,
    "who": COMMANDED,
    "worker": COMMANDED,
}


def cases(names):
    """Returns the cases of each program that is not left out."""
    return {name: CASES.get(name, [Case()]) for name in sorted(names) if name not in LEFT_OUT}
