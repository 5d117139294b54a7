"""Rows about shares, counted by the tenants themselves, and about tenants that misbehave.

Each tenant runs the program `load` in a container of its own and reports its completed kernels over
time. A share is a part of all completed GPU time, and a rate is compared with that of one alone.
"""

import signal
import time
from typing import NamedTuple, Optional, Tuple

import needs
from processes import NotPossible
from tenants import KERNEL_US, Monitor

# Largest relative error of a share set by weight or percentage, in percent.
ERROR_PCT = 2.0
# A tenant that is alone again must have this part of its rate alone.
RECOVERED = 0.9
STEPS = 24
# Time until all tenants have received their command.
LEAD_SECONDS = 0.3
LONG_KERNEL_SECONDS = 5.0


class Load:
    """A process of the program `load` in a container of its own."""

    def __init__(self, monitor, name, run=(), load=(), us=KERNEL_US):
        kit = monitor.kit
        command = [kit.file("cgpu"), "run", "--root", monitor.root, "--name", name, *run, "--"]
        command += [kit.program("load"), "--us", us, *load]
        self.us, self.process = us, kit.start(*command, commanded=True)
        self.seen, ready = self.process.line("ready")
        self.iterations = ready["iterations"]

    def begin(self, start, seconds):
        self.process.write(f"run {start} {seconds} {seconds / STEPS}")

    def done(self):
        """Waits for the end of the run; returns microseconds of completed work at each step."""
        self.seen, answer = self.process.line("done", self.seen + 1)
        return [0] + [count * self.us for count in answer["done"]]


def between(done, first, last):
    """Returns the work completed between two parts of a run, given as fractions."""
    return done[round(last * STEPS)] - done[round(first * STEPS)]


def together(loads, seconds, meanwhile=None):
    """Runs loads at the same time; calls `meanwhile` after a third. Returns each one's work."""
    start = time.monotonic() + LEAD_SECONDS
    for load in loads:
        load.begin(start, seconds)
    ended = None
    if meanwhile:
        time.sleep(max(0, start + seconds / 3 - time.monotonic()))
        ended = meanwhile()
    return [load.done() if load is not ended else None for load in loads]


class Mix(NamedTuple):
    """Tenants that run at the same time, and the shares that their settings mean."""

    policy: int
    # Options of `cgpu run`, and of the program, of each tenant.
    tenants: Tuple[Tuple[str, ...], ...]
    wanted: Tuple[float, ...]
    load: Tuple[str, ...] = ()
    # Of one alone, as for fixed percentages, instead of all work.
    of_alone: bool = False
    # None: the share is measured only.
    error_pct: Optional[float] = ERROR_PCT


MIXES = {
    "shares_equal": Mix(1, ((), ()), (50, 50)),
    "shares_weights": Mix(2, (("--weight", "1"), ("--weight", "3")), (25, 75)),
    "shares_graphs": Mix(2, (("--weight", "1"), ("--weight", "3")), (25, 75), ("--graph",)),
    "shares_caps": Mix(3, (("--percent", "20"), ("--percent", "30")), (20, 30), of_alone=True),
    "shares_priority": Mix(1, (("--high-prio",), ()), (80, 20), error_pct=None),
}


def needs_shares(kit):
    """Raises NotPossible where tenants cannot share this GPU."""
    needs.tenants(kit)
    needs.whole_gpu(kit, "the row sets the policy of a GPU")


def set_policy(monitor, policy):
    uuid = monitor.kit.machine["nvml"]["uuid"]
    index = next(gpu["index"] for gpu in monitor.status()["gpus"] if gpu["uuid"] == uuid)
    kit = monitor.kit
    kit.run(kit.file("cgpu"), "set", "--root", monitor.root, f"{index}/policy", policy).check()


def mix(kit, name):
    """Runs the tenants of a mix; their shares over the last two thirds of the run."""
    needs_shares(kit)
    chosen, monitor = MIXES[name], Monitor(kit)
    set_policy(monitor, 5)
    seconds = max(2.0, kit.scaled(20))
    loads = []
    for number, options in enumerate(chosen.tenants):
        same = ("--iterations", loads[0].iterations) if loads else ()
        loads.append(Load(monitor, f"tenant{number}", options, (*chosen.load, *same)))
    alone = None
    if chosen.of_alone:
        alone = between(together(loads[:1], seconds / 2)[0], 1 / 3, 1) * 2
    set_policy(monitor, chosen.policy)
    work = [between(done, 1 / 3, 1) for done in together(loads, seconds)]
    whole = alone or sum(work)
    if not whole:
        raise NotPossible("no tenant completed anything: the measurement is too short")
    shares = [100 * one / whole for one in work]
    worst = max(100 * abs(one - goal) / goal for one, goal in zip(shares, chosen.wanted))
    told = ":".join(f"{share:.2f}" for share in shares)
    told += f" of {':'.join(map(str, chosen.wanted))}, error {worst:.2f} %"
    ok = None if chosen.error_pct is None else worst <= chosen.error_pct
    figures = {"shares": shares, "wanted": chosen.wanted, "error_pct": worst, "work_us": work}
    return {"ok": ok, "figure": told, **figures, "alone_us": alone, "status": monitor.status()}


def shares_equal(kit):
    """Two equal tenants share 1:1 under policy 1."""
    return mix(kit, "shares_equal")


def shares_weights(kit):
    """Weights of 1 and 3 share 1:3 under policy 2."""
    return mix(kit, "shares_weights")


def shares_graphs(kit):
    """The same with tenants that launch graphs of 32 kernels."""
    return mix(kit, "shares_graphs")


def shares_caps(kit):
    """Percentages of 20 and 30 under policy 3, of the rate of one alone."""
    return mix(kit, "shares_caps")


def shares_priority(kit):
    """A saturating tenant of high priority beside another one, whose part is 20 %."""
    return mix(kit, "shares_priority")


def beside(kit, disturb, victim=(), us=KERNEL_US, load=()):
    """Runs a tenant beside one that `disturb` ends or stops after a third of the time."""
    needs_shares(kit)
    monitor = Monitor(kit)
    set_policy(monitor, 1)
    seconds = max(3.0, kit.scaled(20))
    one = Load(monitor, "neighbour")
    alone = between(together([one], seconds / 2)[0], 1 / 3, 1) * 2
    if not alone:
        raise NotPossible("the tenant alone completed nothing: the measurement is too short")
    other = Load(monitor, "victim", victim, load, us)
    work = together([one, other], seconds, disturb and (lambda: disturb(monitor, other)))
    parts = {
        "before": between(work[0], 0, 1 / 3) * 2 / alone,
        "after": between(work[0], 2 / 3, 1) * 2 / alone,
    }
    told = "{before:.3f} of its rate alone before, {after:.3f} after".format(**parts)
    return {"ok": None, "figure": told, **parts, "alone_us": alone}


def send(number):
    def disturb(_monitor, other):
        other.process.signal(number)
        return other

    return disturb


def tenant_killed(kit):
    """A tenant has the GPU for itself again after its neighbour is killed."""
    seen = beside(kit, send(signal.SIGKILL))
    return {**seen, "ok": seen["after"] >= RECOVERED}


def tenant_stopped(kit):
    """A tenant has the GPU for itself again while its neighbour is stopped (SIGSTOP)."""
    return beside(kit, send(signal.SIGSTOP))


def monitor_killed(kit):
    """Tenants continue after the monitor is killed, without shares."""

    def disturb(monitor, _other):
        monitor.process.popen.kill()

    seen = beside(kit, disturb)
    return {**seen, "ok": seen["after"] > 0}


def long_kernels(kit):
    """A tenant of short kernels beside one of 5 s kernels, which nothing can interrupt."""
    needs_shares(kit)
    monitor = Monitor(kit)
    set_policy(monitor, 1)
    kernel = max(0.2, kit.scaled(LONG_KERNEL_SECONDS))
    seconds = kernel * 6
    one = Load(monitor, "short")
    options = ("--batch", 1, "--ahead", 0)
    other = Load(monitor, "long", (), options, int(kernel * 1e6))
    work = [done[-1] for done in together([one, other], seconds)]
    shares = [100 * part / sum(work) for part in work] if sum(work) else [0, 0]
    told = f"short {shares[0]:.1f} : {shares[1]:.1f} long, kernels of {kernel:g} s"
    return {"ok": None, "figure": told, "shares": shares, "work_us": work, "kernel_s": kernel}
