"""Rows about the driver itself: rounding, pools, symbols, and programs with and without cgpu."""

import sys
import time
from pathlib import Path

import elf
import programs
import truths
from processes import Failed, NotPossible

# The newest CUDA version that our tables know, as the driver gives it.
NEWEST = (13, 5)
# A program may lack something: it exits with this and says what.
LACKING = 3
# Folders with CUDA runtimes beside those of Python's packages.
RUNTIME_FOLDERS = (
    "/usr/local/cuda*/lib64",
    "/usr/local/cuda*/targets/*/lib",
    "/usr/lib/*-linux-gnu",
)
SHOWN = 5
# The driver frees an exited process's memory some time after its exit.
DRAIN_SECONDS, POLL_SECONDS = 2.0, 0.05


def mib(number):
    return f"{number / (1 << 20):g}"


def truth(kit, part):
    """Runs a part of truths.py on the driver alone."""
    seen = kit.run(sys.executable, "-B", kit.folder / "truths.py", part)
    if seen.exit == truths.LACKING:
        raise NotPossible(seen.stderr.strip())
    return seen.json()


def rounding(kit):
    """Memory that allocations of several sizes take, and the granularity of physical memory."""
    seen = truth(kit, "rounding")
    told = ", ".join(f"{row['size']} B take {row['taken']}" for row in seen["rows"][:SHOWN])
    told += f"; granularity {mib(seen['granularity']['minimum'])} MiB"
    return {"ok": None, "figure": told, **seen}


def pool_chunks(kit):
    """Memory that a pool reserves for one allocation, and keeps after a free, a wait and a trim."""
    seen = truth(kit, "pools")
    told = ", ".join(f"{row['size']} B reserve {mib(row['reserved'])} MiB" for row in seen["rows"])
    return {"ok": None, "figure": told, **seen}


def symbols(kit):
    """Every symbol of the driver and of NVML is in cgpu's tables."""
    version = tuple(int(part) for part in kit.machine["cuda"].split("."))
    seen = {}
    for prefix, library, table in (
        ("cu", "libcuda.", "driver-symbols.tsv"),
        ("nvml", "libnvidia-ml.", "nvml-symbols.tsv"),
    ):
        lines = kit.file(table).read_text().splitlines()[1:]
        known = {line.split("\t")[0] for line in lines}
        loaded = [path for path in kit.machine["libraries"] if library in path]
        if not loaded:
            raise NotPossible(f"{library}so.1 is not loaded")
        found = {name for name in elf.exported(loaded[0]) if name.startswith(prefix)}
        seen[prefix] = {
            "library": loaded[0],
            "exported": len(found),
            "unknown": sorted(found - known),
            "missing": sorted(known - found),
        }
    unknown = [name for one in seen.values() for name in one["unknown"]]
    told = ", ".join(f"{one['exported']} {prefix}*" for prefix, one in seen.items())
    told += f"; {len(unknown)} unknown {' '.join(unknown[:SHOWN])}".rstrip()
    # A newer driver may have more; the tables are complete up to the newest that they know.
    newer = version > NEWEST
    return {"ok": None if newer and unknown else not unknown, "figure": told, **seen}


def runtimes(kit):
    """Returns the CUDA runtimes of the kit, of this machine and of Python's packages."""
    packages = [f"{folder}/nvidia/*/lib" for folder in sys.path if folder]
    found = {
        file.resolve()
        for pattern in (str(kit.file("runtimes")), *RUNTIME_FOLDERS, *packages)
        for file in Path("/").glob(f"{pattern.lstrip('/')}/libcudart.so.*")
    }
    return sorted(found)


def cudart_lookups(kit):
    """Look-ups and private tables of each CUDA runtime, the same with and without the shim."""
    found, results = runtimes(kit), {}
    if not found:
        raise NotPossible("there is no libcudart: install nvidia-cuda-runtime or the toolkit")
    for runtime in found:
        plain = kit.run(kit.program("runtime"), runtime)
        shim = kit.unlimited(kit.program("runtime"), runtime)
        if plain.exit or shim.exit:
            raise Failed((plain if plain.exit else shim).reason())
        # "NAME VERSION FLAGS LIBRARY:SYMBOL", of which the shim may change the library only.
        looked_up = [
            [line.split(" lib")[0] + line.rpartition(":")[2] for line in run.stdout.splitlines()]
            for run in (plain, shim)
        ]
        tables = [line.split()[1] for line in plain.stdout.splitlines() if line[:6] == "table "]
        results[str(runtime)] = {
            "lookups": len(looked_up[0]) - 1,
            "same": looked_up[0] == looked_up[1],
            "tables": tables,
        }
    different = [name for name, one in results.items() if not one["same"]]
    tables = {table for one in results.values() for table in one["tables"]}
    told = f"{len(results)} runtimes, {len(tables)} export tables"
    told += f", DIFFERENT: {', '.join(different)}" if different else ", the same look-ups"
    return {"ok": not different, "figure": told, "runtimes": results}


class Drained:
    """Waits between programs: what an exited one still holds would be taken for the next one's."""

    def __init__(self, kit):
        self.kit, self.uuid = kit, kit.machine["nvml"].get("uuid")
        self.before = self.free()

    def free(self):
        """Returns the GPU's free bytes; 0 if NVML does not say, or each program has a GPU."""
        if not self.uuid or self.kit.is_simulated:
            return 0
        command = [sys.executable, "-B", self.kit.folder / "truths.py", "free", self.uuid]
        seen = self.kit.run(*command)
        return seen.json()["free"] if seen.exit == 0 else 0

    def wait(self):
        start = time.monotonic()
        while 0 < self.free() < self.before and time.monotonic() - start < DRAIN_SECONDS:
            time.sleep(POLL_SECONDS)


def host_of_its_own(kit):
    """Returns variables of another simulated GPU: a used one reclaims exited processes later."""
    return {"CGPU_SIM_STATE": str(kit.root / f"gpus-{kit.programs}")} if kit.is_simulated else {}


def run_case(kit, drained, name, case):
    """Runs a program once; returns its result and reason."""
    command = [kit.program(name), *case.arguments]
    drained.wait()
    if not case.limit:
        alone = kit.run(*command, variables=host_of_its_own(kit))
        if alone.exit != 0:
            return {"result": "not possible", "because": f"without the shim: {alone.reason()}"}
        drained.wait()
        seen = kit.unlimited(*command, variables=host_of_its_own(kit))
    elif case.limit + programs.ROOM_MIB > kit.machine["free_mib"]:
        return {"result": "not possible", "because": f"it needs {case.limit} MiB free"}
    else:
        seen = kit.limited(case.limit, *command, variables=host_of_its_own(kit))
    if seen.exit == LACKING:
        return {"result": "not possible", "because": seen.reason()}
    if seen.exit != 0:
        return {"result": "FAILED", "because": seen.reason()}
    return {"result": "held"}


def c_programs(kit):
    """Every C program of the tests succeeds with the shim if it does without, some limited."""
    built = {file.name for file in Path(kit.folder, "dist", "programs").iterdir()}
    results, drained = {}, Drained(kit)
    for name, cases in programs.cases(built).items():
        for case in cases:
            limit = [f"limit {case.limit} MiB"] if case.limit else []
            title = " ".join([name, *case.arguments, *limit])
            results[title] = run_case(kit, drained, name, case)
    count = {}
    for one in results.values():
        count[one["result"]] = count.get(one["result"], 0) + 1
    failed = [title for title, one in results.items() if one["result"] == "FAILED"]
    told = ", ".join(f"{number} {result}" for result, number in sorted(count.items()))
    if failed:
        told += f": {', '.join(failed)}"
    return {
        "ok": not failed,
        "figure": told,
        "programs": results,
        "left_out": {name: why for name, why in programs.LEFT_OUT.items() if name in built},
    }
