"""cgpu on a real GPU: limits, refusals, what the tools show, shares, and the costs that the design rests on.

Every check is a function that returns what it saw; `ok` says whether what was promised held, None where nothing is promised
(a measurement). A check that cannot run says why under `skipped`. Needs only the standard library.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_MIB = 4096
TIMEOUT = 150


class Skipped(Exception):
    """The machine lacks what the check needs."""


class Kit:
    """The files of the kit, and a folder of its own for containers."""

    def __init__(self, folder, root):
        self.folder, self.root = folder, root

    def program(self, name):
        return str(self.folder / "dist" / "programs" / name)

    def plain(self, *command, timeout=TIMEOUT, env=None):
        return finish(list(command), timeout, env)

    def limited(self, *command, mem=f"{LIMIT_MIB}MiB", timeout=TIMEOUT, env=None):
        """Runs a command in a container of its own with this much memory."""
        run = [str(self.folder / "dist" / "cgpu"), "run", "--root", str(self.root), "--mem", mem, "--"]
        return finish(run + list(command), timeout, env)


def finish(command, timeout, env):
    environment = dict(os.environ, **(env or {}))
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    return {"exit": done.returncode, "stdout": done.stdout.strip()[-4000:], "stderr": done.stderr.strip()[-2000:]}


def last_json(done):
    """The last line of a program's output, which is one JSON object."""
    if done["exit"] != 0 or not done["stdout"]:
        raise AssertionError(f"exit {done['exit']}: {done['stderr'] or done['stdout']}")
    return json.loads(done["stdout"].splitlines()[-1])


def needs(tool):
    if not shutil.which(tool):
        raise Skipped(f"{tool} is not installed")
    return tool


def needs_torch():
    if finish([sys.executable, "-c", "import torch"], 120, None)["exit"] != 0:
        raise Skipped("PyTorch is not installed")


def machine(kit):
    """The card and the driver."""
    query = "name,driver_version,memory.total,compute_mode,mig.mode.current,clocks.max.sm"
    seen = kit.plain(needs("nvidia-smi"), f"--query-gpu={query}", "--format=csv,noheader")
    return {"ok": None, "gpu": dict(zip(query.split(","), [field.strip() for field in seen["stdout"].split(",")]))}


def costs(kit):
    """Costs of the driver alone, without the shim."""
    return {"ok": None, **last_json(kit.plain(kit.program("costs")))}


def meminfo(kit):
    """The limit is the card's size, whichever way a program asks."""
    seen = last_json(kit.limited(kit.program("meminfo")))
    limit = LIMIT_MIB << 20
    return {"ok": seen["total"] == limit and seen["total_device"] == limit and seen["free"] <= limit, **seen}


def fill(kit):
    """Memory up to the limit, then the ordinary error, then on."""
    seen = last_json(kit.limited(kit.program("alloc_fill"), "64M", "3"))
    granted = seen["granted"]
    return {"ok": granted <= LIMIT_MIB << 20 and granted >= (LIMIT_MIB - 1024) << 20, **seen}


def managed(kit):
    """Managed memory is refused."""
    done = kit.limited(kit.program("managed"), "refused")
    return {"ok": done["exit"] == 0, **done}


def fail_closed(kit):
    """A limit that cannot be understood refuses the start with one line."""
    done = finish(
        [kit.program("init")],
        60,
        {"LD_PRELOAD": str(kit.folder / "dist" / "libcgpu.so"), "CGPU_DIR": str(kit.root / "bad"),
         "ALIYUN_COM_GPU_MEM_CONTAINER": "lots"},
    )
    seen = last_json(done)
    return {"ok": seen["init"] == 1 and len(done["stderr"].splitlines()) == 1, "sentence": done["stderr"], **seen}


def nvidia_smi(kit):
    """What nvidia-smi shows as the card's memory inside a container."""
    command = [needs("nvidia-smi"), "--query-gpu=memory.total,memory.used,memory.free", "--format=csv,noheader,nounits"]
    outside, inside = kit.plain(*command), kit.limited(*command)
    table = kit.limited("nvidia-smi")
    line = next((line for line in table["stdout"].splitlines() if "MiB /" in line), None)
    return {"ok": inside["stdout"].startswith(f"{LIMIT_MIB},"), "outside": outside, "inside": inside, "table_line": line}


def torch_memory(kit):
    """PyTorch sees the limit, runs out of memory as usual, frees and goes on."""
    needs_torch()
    program = str(kit.folder / "torch_memory.py")
    done = kit.limited(sys.executable, program)
    seen = last_json(done)
    limit = LIMIT_MIB << 20
    ok = seen["total"] == limit and seen["out_of_memory"] and seen["went_on"] and seen["most"] <= limit
    return {"ok": ok, "stderr": done["stderr"], **seen}


def torch_training(kit):
    """A small training loop with and without the shim: the same losses, and the time of a step."""
    needs_torch()
    program = str(kit.folder / "torch_training.py")
    rounds = [(last_json(kit.plain(sys.executable, program)), last_json(kit.limited(sys.executable, program, mem="16GiB")))
              for _ in range(2)]
    plain = min(pair[0]["step_ms"] for pair in rounds)
    shim = min(pair[1]["step_ms"] for pair in rounds)
    same = all(pair[0]["losses"] == pair[1]["losses"] for pair in rounds)
    return {"ok": same, "step_ms_plain": plain, "step_ms_shim": shim, "ratio": shim / plain, "rounds": rounds}


def cudart(kit):
    """A program of the CUDA runtime, static and shared: the limit and the ordinary error."""
    nvcc = needs("nvcc")
    results = {}
    for kind in ("static", "shared"):
        binary = kit.root / f"runtime_fill_{kind}"
        built = kit.plain(nvcc, f"--cudart={kind}", "-o", str(binary), str(kit.folder / "runtime_fill.cu"))
        if built["exit"] != 0:
            raise AssertionError(built["stderr"])
        results[kind] = last_json(kit.limited(str(binary)))
    limit = LIMIT_MIB << 20
    ok = all(seen["total"] == limit and seen["granted"] <= limit and seen["error"] == 2 and seen["managed"] == 801
             for seen in results.values())
    return {"ok": ok, **results}


def overhead(kit):
    """Launch rate of a program alone, with and without the shim, in turn."""
    command = [kit.program("launch_loop"), "spin_0us", "--count", "300000"]
    ptx = {"CGPU_TEST_PTX": str(kit.folder / "empty.ptx")}
    pairs = []
    for _ in range(5):
        plain = last_json(kit.plain(*command, env=ptx))
        shim = last_json(kit.limited(*command, env=ptx))
        pairs.append(shim["rate"] / plain["rate"])
    pairs.sort()
    return {"ok": None, "rate_ratio_median": pairs[len(pairs) // 2], "rate_ratios": pairs}


def shares(kit):
    """Two weighted tenants on this card: the demo."""
    dist = kit.folder / "dist"
    done = kit.plain(str(dist / "cgpu-demo"), "--dist", str(dist), "--json", "--seconds", "10")
    seen = json.loads(done["stdout"]) if done["stdout"] else {}
    return {"ok": done["exit"] == 0 and seen.get("driver") == "real", "demo": seen, "log": done["stderr"]}


CHECKS = [machine, costs, meminfo, fill, managed, fail_closed, nvidia_smi, torch_memory, cudart, overhead, shares,
          torch_training]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kit", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[], help="names of checks")
    arguments = parser.parse_args()
    results = {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "checks": {}}
    failed = 0
    with tempfile.TemporaryDirectory(prefix="cgpu-kit-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as root:
        kit = Kit(arguments.kit.resolve(), Path(root))
        for check in CHECKS:
            if arguments.only and check.__name__ not in arguments.only:
                continue
            start = time.monotonic()
            try:
                seen = check(kit)
            except Skipped as reason:
                seen = {"ok": None, "skipped": str(reason)}
            except (AssertionError, KeyError, ValueError, OSError, subprocess.TimeoutExpired) as error:
                seen = {"ok": False, "error": f"{type(error).__name__}: {error}"}
            seen["seconds"] = round(time.monotonic() - start, 1)
            results["checks"][check.__name__] = seen
            word = {True: "held", False: "FAILED", None: "skipped" if "skipped" in seen else "measured"}[seen["ok"]]
            failed += seen["ok"] is False
            print(f"{word:<9}{check.__name__:<16}{(check.__doc__ or '').strip()}  [{seen['seconds']} s]", file=sys.stderr)
            # After each check: a machine that is taken away leaves what was done so far.
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(arguments.out)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
