"""Tries cgpu on this machine's GPU; run.sh starts it. docs/internals/gpu-kit.md has the design.

At its time limit a row and everything that it started are ended. Results and logs are written after
each row. Needs only the standard library.
"""

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import processes
import results
import rows

MACHINE_LIMIT = 30
# Length of a run of all rows: no row begins later.
WHOLE_SECONDS = 1800
QUICK = 0.1
# Below this a container's files and a simulated GPU do not fit.
WORK_MIB = 32
# Where containers and distributions put the driver outside the loader's path.
DRIVER_FOLDERS = [
    "/usr/local/nvidia/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
]
TOOL_FOLDERS = ["/usr/local/nvidia/bin", "/usr/local/cuda/bin", "/opt/cuda/bin", "/usr/sbin"]


class Unusable(Exception):
    """The kit cannot run here at all."""


class RowEnded(Exception):
    """The row's time is up, or the kit got a signal to stop."""


class Watchdog:
    """Ends a row by an exception, at its time limit or when the kit gets a signal to stop."""

    def __init__(self):
        self.stopped, self.in_row, self.limit = None, False, 0
        for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.ring)

    def ring(self, number, _frame):
        if number != signal.SIGALRM:
            self.stopped = signal.Signals(number).name
        if self.in_row:
            self.in_row = False
            raise RowEnded(self.reason())

    def reason(self):
        if self.stopped:
            return f"the kit was stopped by {self.stopped}"
        return f"not done within {self.limit} s"

    def guard(self, limit, run):
        """Calls `run`; passes on its exceptions, and the watchdog's."""
        self.limit, self.in_row = limit, True
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            return run()
        finally:
            self.in_row = False
            signal.setitimer(signal.ITIMER_REAL, 0)


class Kit:
    """What rows use: the files, the environment of programs, the machine."""

    def __init__(self, folder, work, scratch, logs, scale):
        # Containers' files, executables, and programs' output.
        self.work, self.scratch, self.logs = work, scratch, logs
        self.folder, self.scale, self.environment = folder, scale, environment()
        self.machine, self.root, self.row, self.programs = {}, work, "", 0
        # Xids in the kernel log when the run began; None if it cannot be read.
        self.xids = None

    @property
    def is_simulated(self):
        return any(name.startswith("CGPU_SIM_") for name in self.environment)

    def begin(self, row):
        """Gives a row a root of its own, without anything of earlier rows."""
        self.row, self.programs, self.root = row, 0, self.work / row
        self.root.mkdir(exist_ok=True)

    def end(self):
        shutil.rmtree(self.root, ignore_errors=True)

    def scaled(self, seconds):
        return seconds * self.scale

    def file(self, name):
        return self.folder / "dist" / name

    def program(self, name):
        return self.file("programs") / name

    def start(self, *command, variables=None, commanded=False, within=()):
        """Starts a program, by the programs `within`, which run it."""
        self.programs += 1
        name = Path(command[0]).name
        command = [str(part) for part in (*within, *command)]
        log = self.logs / f"{self.row}-{self.programs:02}-{name}"
        environment = {**self.environment, **(variables or {})}
        return processes.Process(name, command, log, environment, commanded)

    def run(self, *command, variables=None, within=()):
        return self.start(*command, variables=variables, within=within).wait()

    def unlimited(self, *command, variables=None, options=()):
        """Runs a command in a container of its own, with more options of `cgpu run`."""
        run = [self.file("cgpu"), "run", "--root", self.root, *options, "--"]
        return self.run(*run, *command, variables=variables)

    def limited(self, mib, *command, variables=None):
        """The same with this memory limit."""
        return self.unlimited(*command, variables=variables, options=["--mem", f"{mib}MiB"])


def environment():
    """Returns the caller's, without variables that would give programs another limit."""
    ours = ("CGPU_", "ALIYUN_COM_GPU_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ours) or name.startswith("CGPU_SIM_")
    }
    # The first GPU is NVML's first, whose policy the demo sets.
    kept.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    home = kept.get("CUDA_HOME") or kept.get("CUDA_PATH")
    folders = [kept.get("PATH", os.defpath), home and f"{home}/bin", *TOOL_FOLDERS]
    kept["PATH"] = ":".join(filter(None, folders))
    return kept


def look_at_machine(kit):
    """Reads GPU and driver in another process; then all programs see only this GPU."""

    def ask():
        seen = kit.run(sys.executable, "-B", kit.folder / "machine.py").json()
        kit.machine = seen
        return seen

    seen = ask()
    if "libcuda.so.1 cannot be loaded" in seen.get("error", ""):
        found = [folder for folder in DRIVER_FOLDERS if Path(folder, "libcuda.so.1").exists()]
        if found:
            given = kit.environment.get("LD_LIBRARY_PATH")
            kit.environment["LD_LIBRARY_PATH"] = ":".join(filter(None, [given, found[0]]))
            seen = {**ask(), "library_path": found[0]}
    if seen.get("devices", 0) > 1 and "uuid" in seen["nvml"]:
        kit.environment.setdefault("CUDA_VISIBLE_DEVICES", seen["nvml"]["uuid"])
    if "error" in seen:
        raise processes.Failed(seen["error"])
    if any("libcgpu" in library for library in seen["libraries"]):
        raise processes.Failed(
            "cgpu is preloaded here already: run the kit outside of the container"
        )
    told = "{free_mib} of {total_mib} MiB free, CUDA {cuda}, compute mode {compute_mode}"
    told = told.format(**seen)
    if others := seen["nvml"].get("other_processes"):
        told += f"; {others} OTHER PROCESSES USE IT: times are not the kit's alone"
    return {"ok": None, "figure": told, **seen}


def attempt(watchdog, kit, name, limit, run):
    """Runs a row within its limit, and ends what it leaves running."""
    kit.begin(name)
    start = time.monotonic()
    try:
        data = watchdog.guard(limit, run)
        result = {True: "held", False: "FAILED", None: "measured"}[data.pop("ok")]
        seen = {"result": result, "figure": data.pop("figure"), "data": data}
    except processes.NotPossible as reason:
        seen = {"result": "not possible", "because": str(reason)}
    except RowEnded as ended:
        seen = {"result": "FAILED", "because": str(ended), "error": str(ended)}
        if watchdog.stopped:
            seen = unfinished(str(ended))
    except processes.Failed as error:
        seen = {"result": "FAILED", "error": str(error)}
    except Exception as error:  # A defect in one row must not stop the others.
        seen = {"result": "FAILED", "error": f"{type(error).__name__}: {error}"}
    seen["seconds"] = round(time.monotonic() - start, 1)
    # Other work of the host disturbs shares and rates.
    seen["load"] = os.getloadavg()[0]
    if left := processes.end_children():
        seen["left_running"] = left
    kit.end()
    return seen


def chosen(arguments):
    if arguments.only:
        return [row for row in rows.ROWS if row.name in arguments.only]
    if arguments.group == rows.WHOLE:
        return rows.ROWS
    return [row for row in rows.ROWS if row.group == arguments.group]


def measure(kit, arguments, folder, name):
    """Runs the rows that an earlier, unfinished run has not done; returns the exit code."""
    watchdog, start, selection = Watchdog(), time.monotonic(), chosen(arguments)
    machine = attempt(watchdog, kit, "machine", MACHINE_LIMIT, lambda: look_at_machine(kit))
    head = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(kit.folder),
        "arguments": sys.argv[1:],
        "scale": kit.scale,
        "selection": [row.name for row in selection],
        "gpu": kit.machine.get("gpu", "no GPU"),
        "uuid": kit.machine.get("uuid"),
        "driver": kit.machine.get("nvml", {}).get("driver", "unknown"),
        "driver_kind": "simulated" if kit.is_simulated else "real",
        "processors": len(os.sched_getaffinity(0)),
    }
    done = results.Results(folder, name, kit.logs, head)
    kept = set() if arguments.fresh else done.go_on() - {"machine"}
    print("{gpu}, driver {driver} ({driver_kind}), kit {commit}".format(**done.all), flush=True)
    if kept:
        print(f"goes on with {done.name}: {len(kept)} rows are done", flush=True)
    tell(done, "machine", machine)
    # A row that may have stopped the machine is tried after all others.
    for row in sorted(selection, key=lambda row: row.name == done.all.get("suspect")):
        if row.name in kept:
            continue
        late = arguments.group == rows.WHOLE and time.monotonic() - start > WHOLE_SECONDS
        if watchdog.stopped:
            seen = unfinished(watchdog.reason())
        elif "error" in machine:
            reason = f"the GPU cannot be used: {machine['error']}"
            seen = {"result": "not possible", "because": reason, "seconds": 0.0}
        elif late:
            seen = unfinished(f"{WHOLE_SECONDS // 60} minutes are over; the same command goes on")
        else:
            kit.xids = (done.all["rows"].get("facts", {}).get("data") or {}).get("xids")
            done.begin(row.name)
            seen = attempt(watchdog, kit, row.name, row.limit, lambda row=row: row.run(kit))
        tell(done, row.name, seen)
    done.finish()
    print(done.archive, flush=True)
    return 1 if done.count("FAILED") or watchdog.stopped else 0


def unfinished(because):
    return {"result": "not possible", "because": because, "seconds": 0.0, "unfinished": True}


def tell(done, name, seen):
    done.add(name, seen)
    print(results.line(name, seen), flush=True)


def commit(folder):
    file = folder / "commit"
    return file.read_text().strip() if file.exists() else "unknown"


def check_folder(folder):
    """Checks whether the kit's programs can be started where they are."""
    if any(character in str(folder) for character in ": "):
        raise Unusable(
            f"{folder} has a colon or a blank, which separate files in LD_PRELOAD: move the kit"
        )
    programs = [
        folder / "dist" / "cgpu",
        *(folder / "dist").glob("cgpu-*"),
        *(folder / "dist" / "programs").glob("*"),
    ]
    for program in programs:
        if not os.access(program, os.X_OK):
            # Copied without its mode, as through an object store.
            try:
                program.chmod(0o755)
            except OSError as error:
                raise Unusable(
                    f"{program} is not executable: {error.strerror}; copy the kit to another place"
                ) from error
    try:
        seen = subprocess.run(
            [programs[0], "--version"], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unusable(
            f"{programs[0]} does not start: {error}; is the kit for another processor than "
            f"{os.uname().machine}, or on a noexec mount?"
        ) from error
    if seen.returncode != 0:
        raise Unusable(f"{programs[0]} does not start: {seen.stderr.strip()}")


def usable(folder, mib=0, executable=False):
    """Returns whether files can be created here, with enough space, and be started."""
    if not (os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)):
        return False
    seen = os.statvfs(folder)
    return (seen.f_bavail * seen.f_frsize) >> 20 >= mib and not (
        executable and seen.f_flag & os.ST_NOEXEC
    )


def temporary(folders, **needs):
    """Creates a folder in the first suitable one of these, locked while the kit runs."""
    places = [place for place in folders if place and usable(place, **needs)]
    if not places:
        raise Unusable(
            f"none of {', '.join(filter(None, folders))} can be used: set TMPDIR to one that can"
        )
    sweep(places[0])
    made = Path(tempfile.mkdtemp(prefix="cgpu-kit-", dir=places[0]))
    lock = open(made / "lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return made, lock


def sweep(place):
    """Removes the folders of killed kits, which no process locks any more."""
    for left in Path(place).glob("cgpu-kit-*/lock"):
        try:
            with open(left, "r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left.parent, ignore_errors=True)
        except OSError:
            # A running kit's, or another user's.
            continue


def most_seconds(group):
    """Returns the longest time that a run of these rows can take, in seconds."""
    return MACHINE_LIMIT + sum(row.limit for row in rows.ROWS if row.group == group)


def listing():
    lines = [f"{'machine':<18}{MACHINE_LIMIT:>4} s  The GPU, the driver and the host; always done"]
    for row in rows.ROWS:
        lines.append(
            f"{row.name:<18}{row.limit:>4} s  {row.about}"
            f"{'' if row.group == rows.SHORT else f'  (--{row.group})'}"
        )
    most = {group: most_seconds(group) for group in (rows.SHORT, rows.LONG, rows.GATE)}
    lines.append(
        "\n./run.sh runs all without a mark, at most {short} s in all; --long and --gate run those "
        "that they mark, at most {long} s and {gate} s; --whole runs all, and begins none after "
        "{whole} s.".format(whole=WHOLE_SECONDS, **most)
    )
    return "\n".join(lines)


def parsed():
    parser = argparse.ArgumentParser(
        prog="run.sh", description="Try cgpu on this machine's GPU and write results."
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="ROW",
        choices=[row.name for row in rows.ROWS],
        help="run these rows only",
    )
    groups = parser.add_mutually_exclusive_group()
    for group, about in (
        (rows.LONG, "the long rows"),
        (rows.GATE, "the rows about a gate on the device"),
        (rows.WHOLE, "all rows, best as root,"),
    ):
        groups.add_argument(
            f"--{group}",
            dest="group",
            action="store_const",
            const=group,
            help=f"run {about} instead of the short ones",
        )
    parser.set_defaults(group=rows.SHORT)
    parser.add_argument("--quick", action="store_true", help=f"the same as --scale {QUICK}")
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="multiply the measuring times by this, 0.001 to 1",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="begin anew instead of going on with a stopped run"
    )
    parser.add_argument("--list", action="store_true", help="list the rows and end")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="the folder for results [default: results/ beside run.sh]",
    )
    arguments = parser.parse_args()
    if not 0.001 <= arguments.scale <= 1:
        parser.error(f"--scale {arguments.scale}: expected 0.001 to 1")
    return arguments


def main():
    arguments = parsed()
    if arguments.list:
        print(listing())
        return 0
    folder = Path(__file__).resolve().parent
    scale = min(arguments.scale, QUICK) if arguments.quick else arguments.scale
    made = []
    try:
        check_folder(folder)
        out = arguments.out or folder / "results"
        try:
            out.mkdir(parents=True, exist_ok=True)
            results.replace(out / "writable", Path.touch)
            (out / "writable").unlink()
            lock = results.locked(out)
        except OSError as error:
            raise Unusable(
                f"{out} cannot be written: {error.strerror}; name another folder by --out"
            ) from error
        if lock is None:
            raise Unusable(f"another kit writes to {out}: wait for its end, or use --out")
        work, work_lock = temporary(
            ["/dev/shm", os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir()], mib=WORK_MIB
        )
        made.append(work)
        # What nvcc builds is started there; /dev/shm is often mounted noexec.
        scratch, scratch_lock = temporary(
            [tempfile.gettempdir(), str(out), "/dev/shm"], executable=True
        )
        made.append(scratch)
        logs = scratch / "logs"
        logs.mkdir()
        processes.adopt_orphans()
        name = time.strftime("cgpu-gpu-kit-%Y%m%dT%H%M%SZ", time.gmtime())
        return measure(Kit(folder, work, scratch, logs, scale), arguments, out.resolve(), name)
    except Unusable as error:
        print(f"run.sh: {error}", file=sys.stderr)
        return 2
    finally:
        for one in made:
            shutil.rmtree(one, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
