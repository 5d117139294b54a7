"""The rows about the driver's memory limits for control groups, from r615 (CUDA 13.4) on.

What no public document confirms of them is marked so in cgpu's pages; these rows tell. They use the
driver alone, as root, in control groups of their own.
"""

import os
import shutil
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import needs
import walls
from docker_rows import gpus, image
from private_host import Container, PrivateHost
from processes import Failed, NotPossible

LIMIT_MIB = 4096
STEP = 64 << 20
# The driver may round a limit down by less.
ROUNDING = 2 << 20
CONTEXTS = 3
# Ways to be a program that may not change a limit, for root: the programs that start it so.
INSIDE = {
    "another user": ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    "root without capabilities": ("setpriv", "--bounding-set=-all", "--inh-caps=-all"),
    "root of a user namespace": ("unshare", "-Ur"),
    "a control group namespace": ("unshare", "--cgroup", "--mount"),
}
# Users of a container of Docker, by the options of `docker exec`.
USERS = {
    "another user of a container": ("--user", "65534:65534"),
    "root of a container": (),
}
# Any user reads limits.
READER = "another user"
# The simulated driver looks at the user alone. A namespace of groups takes no rights away.
JUDGED_BY_USER = ("another user", "another user of a container")
UNJUDGED = "a control group namespace"
# Where a container sees its own control group, and the host all, if Docker uses version 2.
OWN_GROUP = "/sys/fs/cgroup"

def mib(number):
    return f"{number >> 20} MiB"


def told(kit, *arguments, within=()):
    seen = kit.run(sys.executable, "-B", kit.folder / "walls.py", *arguments, within=within)
    if seen.exit == walls.LACKING:
        raise NotPossible(f"{seen.stderr.strip()}: limits need r615 (CUDA 13.4)")
    return seen.json()


def mount():
    """Returns where control groups of version 2 are mounted."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 ") and fields.split()[3] == "/":
            place = Path(fields.split()[4])
            # Another mount may hide it.
            if (place / "cgroup.controllers").exists():
                return place
    raise NotPossible("no control groups of version 2 are mounted")


def has_dmem(file):
    return "dmem" in file.read_text().split()


class Group:
    """A control group, and the GPU whose memory is limited."""

    def __init__(self, kit, folder):
        self.kit, self.folder = kit, folder
        self.uuid = kit.machine["nvml"]["uuid"]

    def get(self, within=()):
        return told(self.kit, "get", self.uuid, self.folder, within=within)

    def set(self, hard, soft=0, within=()):
        return told(self.kit, "set", self.uuid, self.folder, soft, hard, within=within)

    def limited(self, hard):
        seen = self.set(hard)
        if seen["answer"]:
            raise Failed(f"a limit is refused: {seen['meaning']}")

    def hold(self, *step):
        command = [sys.executable, "-B", self.kit.folder / "walls.py", "hold"]
        return self.kit.start(*command, self.uuid, self.folder, *step, commanded=True)


@contextmanager
def group(kit):
    """Makes a control group for a row, and removes it with its limit."""
    if os.geteuid() != 0:
        raise NotPossible("only root sets the driver's limits")
    needs.tenants(kit)
    needs.whole_gpu(kit, "the driver sets no limits for MIG instances")
    root = mount()
    folder = root / f"cgpu-kit-{os.getpid()}"
    subtree = root / "cgroup.subtree_control"
    passed_on = has_dmem(root / "cgroup.controllers") and not has_dmem(subtree)
    if passed_on:
        subtree.write_text("+dmem")
    folder.mkdir(exist_ok=True)
    own = Group(kit, folder)
    try:
        if own.get()["meaning"] == "Not Supported" and own.set(LIMIT_MIB << 20)["answer"]:
            raise NotPossible("the driver supports no such limits here")
        yield own
    finally:
        own.set("none")
        # Programs of a row that has failed are in it until the row ends them.
        (folder / "cgroup.kill").write_text("1")
        while (folder / "cgroup.procs").read_text():
            pass
        folder.rmdir()
        if passed_on:
            subtree.write_text("-dmem")


def wall_set(kit):
    """A limit of the driver for a control group is set, read back and removed."""
    with group(kit) as own:
        new = own.get()
        own.limited(LIMIT_MIB << 20)
        seen = own.get()
        removed = own.set("none")
        after = own.get()
        above = Group(kit, own.folder.parent)
        root = above.set(LIMIT_MIB << 20)
        if root["answer"] == 0:
            above.set("none")
        missing = Group(kit, own.folder / "none").set(LIMIT_MIB << 20)
        back_end = "dmem" if (own.folder / "dmem.max").exists() else "no dmem"
    hard = seen["hard"] or 0
    ok = 0 <= (LIMIT_MIB << 20) - hard < ROUNDING and removed["answer"] == 0
    figure = f"{back_end}; set {LIMIT_MIB} MiB, read {mib(hard)}; without a limit: {new['meaning']}"
    figure += f"; the root: {root['meaning']}; no such group: {missing['meaning']}"
    seen = {"new": new, "set": seen, "removed": removed, "after": after}
    return {"ok": ok and after["hard"] is None, "figure": figure, **seen}


def wall_charge(kit):
    """Memory of a program is charged to its control group, and refused beyond the limit."""
    limit = needs.limit_mib(kit) << 20
    with group(kit) as own:
        own.limited(limit)
        program = own.hold(STEP)
        _, seen = program.line("granted")
        below = own.set(limit // 2)
        program.popen.stdin.close()
        program.wait()
        after = own.get()
    ok = 0 < seen["granted"] <= seen["used"] <= limit and seen["error"] == 2
    figure = f"limit {mib(limit)}, granted {mib(seen['granted'])}, charged {mib(seen['used'])}"
    figure += f"; then error {seen['error']}; a limit below: {below['meaning']}"
    return {"ok": ok, "figure": figure, "below": below, "after": after, **seen}


def wall_context(kit):
    """What the control group is charged for contexts: one process after another."""
    with group(kit) as own:
        own.limited(needs.limit_mib(kit) << 20)
        charged, programs = [0], []
        for _ in range(CONTEXTS):
            programs.append(own.hold())
            charged.append(programs[-1].line("context")[1]["context"])
        for program in programs:
            program.popen.stdin.close()
            program.wait()
    sizes = [after - before for before, after in zip(charged, charged[1:])]
    return {"ok": None, "figure": ", ".join(mib(size) for size in sizes), "contexts": sizes}


def wall_getters(kit):
    """The size of the GPU by each function, for a program in a limited control group."""
    limit = needs.limit_mib(kit) << 20
    with group(kit) as own:
        own.limited(limit)
        program = own.hold()
        _, seen = program.line("context")
        program.popen.stdin.close()
        program.wait()
    sizes = {"cuMemGetInfo": seen["total"], "nvml": seen["nvml"], "nvml_v2": seen["nvml_v2"]}
    shown = ", ".join(f"{name} {mib(size or 0)}" for name, size in sizes.items())
    return {"ok": None, "figure": f"limit {mib(limit)}: {shown}", **seen}


def tried(own, limit, remove):
    """Returns the driver's answer to a program that removes a limit, and whether it is there."""
    own.limited(limit)
    try:
        answer = remove()
    except (NotPossible, Failed) as reason:
        answer = str(reason).splitlines()[0]
    return f"{answer}, the limit is {'there' if own.get()['hard'] else 'GONE'}"


def read(own, within):
    """Returns the limit as a program that these programs start reads it."""
    try:
        seen = own.get(within)
    except (NotPossible, Failed) as reason:
        return str(reason).splitlines()[0]
    return mib(seen["hard"]) if seen["hard"] else f"no limit: {seen['meaning']}"


def with_driver(kit):
    """Returns the options of `docker run` that give a container the driver, without cgpu."""
    if not kit.is_simulated:
        return gpus(kit)
    folders = {str(Path(file).parent) for file in kit.machine["libraries"]}
    variables = {name: value for name, value in kit.environment.items() if "CGPU_SIM_" in name}
    variables["LD_LIBRARY_PATH"] = ":".join(sorted(folders))
    options = [f"--volume={folder}:{folder}:ro" for folder in sorted(folders)]
    state = Path(variables["CGPU_SIM_STATE"]).parent
    options.append(f"--volume={state}:{state}")
    return options + [f"--env={name}={value}" for name, value in variables.items()]


def in_container(kit, limit):
    """Returns the answers to the users of a container that Docker starts."""
    if mount() != Path(OWN_GROUP):
        raise NotPossible("Docker's containers do not see their control groups of version 2 here")
    with PrivateHost(kit) as host:
        container = Container(host, image(host), *with_driver(kit))
        own = Group(kit, container.group())

        def remove(options):
            command = ("/kit/memory_limits", OWN_GROUP, "0", "none")
            return f"answer {container.run(*command, options=options).json()['set']}"

        try:
            return {name: tried(own, limit, lambda: remove(USERS[name])) for name in USERS}
        finally:
            own.set("none")
            container.remove()


def wall_inside(kit):
    """No program without root's rights on the host raises the limit of its control group."""
    answers, limit = {}, needs.limit_mib(kit) << 20
    if kit.is_simulated:
        # All users share the GPUs.
        os.chmod(kit.environment["CGPU_SIM_STATE"], 0o666)
    with group(kit) as own:
        for name, within in INSIDE.items():
            if shutil.which(within[0]):
                remove = partial(own.set, "none", within=within)
                answers[name] = tried(own, limit, lambda: remove()["meaning"])
                if name == READER:
                    answers[f"{name} reads"] = read(own, within)
            else:
                answers[name] = f"not tried, because {within[0]} is not installed"
        try:
            answers.update(in_container(kit, limit))
        except NotPossible as reason:
            answers["a container"] = f"not tried, because {reason}"
    judged = JUDGED_BY_USER if kit.is_simulated else {*INSIDE, *USERS} - {UNJUDGED}
    ok = not any("GONE" in answers.get(name, "") for name in judged)
    figure = "; ".join(f"{name}: {answer}" for name, answer in answers.items())
    if not any("the limit is" in answers.get(name, "") for name in judged):
        raise NotPossible(figure)
    return {"ok": ok, "figure": figure, "answers": answers}
