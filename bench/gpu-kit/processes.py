"""Child processes of the kit: their logs, and their end.

A program's output goes to files, never to a pipe: it survives any end of the program, and a
grandchild that keeps a pipe open blocks nothing. The kit is a subreaper: children of a killed child
become the kit's, so it finds everything that it started, and nothing else. No child gets its own
process group: a signal to the kit's group reaches all of them.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
POLL_SECONDS = 0.05
# Time for the kernel to end a killed process that is in the driver.
END_SECONDS = 5.0

LIBC = ctypes.CDLL(None)


class Failed(Exception):
    """A program failed or printed something else than its row needs."""


class NotPossible(Exception):
    """The machine lacks what the row needs."""


def adopt_orphans():
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_kit():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Finished:
    """A program's exit code and output."""

    def __init__(self, name, exit_code, stdout, stderr):
        self.name, self.exit, self.stdout, self.stderr = name, exit_code, stdout, stderr

    def summary(self):
        return {
            "exit": self.exit,
            "stdout": self.stdout.strip()[-4000:],
            "stderr": self.stderr.strip()[-2000:],
        }

    def last_line(self):
        """Returns the last line that it printed, on stderr if there is any."""
        lines = (self.stderr.strip() or self.stdout.strip() or "no message").splitlines()
        return lines[-1][:300]

    def reason(self):
        """Returns why it failed, in one line."""
        how = (
            f"exit {self.exit}" if self.exit >= 0 else f"ended by {signal.Signals(-self.exit).name}"
        )
        return f"{self.name}: {how}: {self.last_line()}"

    def check(self):
        """Raises unless it succeeded."""
        if self.exit != 0:
            raise Failed(self.reason())

    def lines(self):
        """Returns its output, one JSON object a line."""
        if self.exit != 0 or not self.stdout.strip():
            raise Failed(self.reason())
        return [self.parse(line) for line in self.stdout.splitlines()]

    def json(self):
        """Returns the object in the last line of its output."""
        return self.lines()[-1]

    def parse(self, text):
        try:
            return json.loads(text)
        except ValueError as error:
            raise Failed(f"{self.name}: its output is not JSON: {error}: {text[:300]}") from error


class Process:
    """A running program. The caller's watchdog bounds every wait."""

    def __init__(self, name, command, log, environment, commanded=False):
        self.name = name
        self.out, self.err = Path(f"{log}.out"), Path(f"{log}.err")
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if commanded else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                preexec_fn=die_with_kit,
            )

    def finished(self):
        return Finished(
            self.name,
            self.popen.returncode,
            self.out.read_text(errors="replace"),
            self.err.read_text(errors="replace"),
        )

    def wait(self):
        self.popen.wait()
        return self.finished()

    def children(self):
        """Returns the processes that it has started."""
        pid = self.popen.pid
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def signal(self, number):
        """Signals the program: what `cgpu run` started, or itself if it has started none."""
        for one in self.children() or [self.popen.pid]:
            os.kill(one, number)

    def write(self, line):
        try:
            self.popen.stdin.write(line.encode() + b"\n")
            self.popen.stdin.flush()
        except OSError as error:
            raise Failed(self.wait().reason()) from error

    def line(self, matches, after=0):
        """Waits for a line with this key after the first `after`; returns its number and object."""
        while True:
            ended = self.popen.poll() is not None
            # The last line may be incomplete until it ends.
            whole = self.out.read_text(errors="replace").split("\n")[:-1]
            for number, text in enumerate(whole[after:], after):
                if matches in (seen := json.loads(text)):
                    return number, seen
            if ended:
                raise Failed(self.finished().reason())
            time.sleep(POLL_SECONDS)


def children():
    """Returns direct children, adopted ones included: process id, name, state."""
    own = os.getpid()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path(f"/proc/{entry}/stat").read_text(errors="replace")
        except OSError:
            continue
        name, fields = (
            stat[stat.index("(") + 1 : stat.rindex(")")],
            stat[stat.rindex(")") + 2 :].split(),
        )
        if int(fields[1]) == own:
            yield int(entry), name, fields[0]


def end_children(seconds=END_SECONDS):
    """Kills everything that the kit started and that still runs; returns what survives.

    Only direct children get a signal: only the kit reaps them, so their ids cannot be reused. Their
    own children become the kit's and are next.
    """
    deadline = time.monotonic() + seconds
    while True:
        left = list(children())
        if not left:
            return []
        for pid, _, _ in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            return [f"{name} (process {pid}, state {state})" for pid, name, state in left]
        time.sleep(POLL_SECONDS)
