"""Child processes of the kit: their logs, and their end.

A program's output goes to files, never to a pipe: what it wrote is there whatever ends it, and a
grandchild that holds a pipe open blocks nothing. The kit is a subreaper, so what a killed child
leaves becomes a child of the kit; that is how it finds all that it started, and nothing else. No
child gets a process group of its own: what kills the kit's group kills them, too.
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
# What the kernel may take to end a killed process that is in the driver.
END_SECONDS = 5.0

LIBC = ctypes.CDLL(None)


class Failed(Exception):
    """A program did not do what its row needs."""


class NotPossible(Exception):
    """The machine lacks what the row needs."""


def adopt_orphans():
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_kit():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Finished:
    """How a program ended, and what it wrote."""

    def __init__(self, name, exit_code, stdout, stderr):
        self.name, self.exit, self.stdout, self.stderr = name, exit_code, stdout, stderr

    def summary(self):
        return {
            "exit": self.exit,
            "stdout": self.stdout.strip()[-4000:],
            "stderr": self.stderr.strip()[-2000:],
        }

    def reason(self):
        """Why it failed, in one line."""
        lines = (self.stderr.strip() or self.stdout.strip() or "no message").splitlines()
        how = (
            f"exit {self.exit}" if self.exit >= 0 else f"ended by {signal.Signals(-self.exit).name}"
        )
        return f"{self.name}: {how}: {lines[-1][:300]}"

    def lines(self):
        """Its output, one JSON object a line."""
        if self.exit != 0 or not self.stdout.strip():
            raise Failed(self.reason())
        return [self.parse(line) for line in self.stdout.splitlines()]

    def json(self):
        """The object in the last line of its output."""
        return self.lines()[-1]

    def parse(self, text):
        try:
            return json.loads(text)
        except ValueError as error:
            raise Failed(f"{self.name}: its output is not JSON: {error}: {text[:300]}") from error


class Process:
    """A running program. The caller's watchdog bounds every wait."""

    def __init__(self, command, log, environment, commanded=False):
        self.name = Path(command[0]).name
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

    def write(self, line):
        try:
            self.popen.stdin.write(line.encode() + b"\n")
            self.popen.stdin.flush()
        except OSError as error:
            raise Failed(self.wait().reason()) from error

    def line(self, matches, after=0):
        """Waits for a line behind the first `after` that has this key; its number and object."""
        while True:
            ended = self.popen.poll() is not None
            # A line may still be written: only those that end are whole.
            whole = self.out.read_text(errors="replace").split("\n")[:-1]
            for number, text in enumerate(whole[after:], after):
                if matches in (seen := json.loads(text)):
                    return number, seen
            if ended:
                raise Failed(self.finished().reason())
            time.sleep(POLL_SECONDS)


def children():
    """Direct children, adopted ones among them: process id, name, state."""
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
    """Kills all that the kit has started and that still runs; returns what could not be ended.

    Only direct children get a signal: no other process reaps them, so their numbers are theirs.
    Their own children come to the kit and are next.
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
