"""A monitor and its tenants, which launch kernels without a pause."""

import json
import time

import processes

POLL_SECONDS = 0.05
KERNEL_US = 60


class Monitor:
    """The kit's own monitor, with its own root: a monitor of the host is not touched."""

    def __init__(self, kit):
        self.kit, self.root = kit, kit.root
        config = self.root / "monitor.toml"
        config.write_text('tree = "none"\nmetrics = "off"\n')
        self.process = kit.start(kit.file("cgpu-monitor"), "--root", self.root, "--config", config)
        while not self.status().get("gpus"):
            if self.process.popen.poll() is not None:
                raise processes.Failed(self.process.finished().reason())
            time.sleep(POLL_SECONDS)

    def status(self):
        """Returns the monitor's report (`cgpu smi --json`)."""
        seen = self.kit.run(self.kit.file("cgpu"), "smi", "--root", self.root, "--json")
        return seen.json() if seen.exit == 0 else {}

    def gpu_time_ms(self):
        """Returns each container's GPU time so far, by the monitor's accounting."""
        containers = self.status().get("containers", [])
        return {
            one["name"]: sum(gpu["gpu_time_ms"] for gpu in one["gpus"]) for one in containers
        }

    def tenant(self, name, weight, kernel_us=KERNEL_US, iterations=0):
        return Tenant(self, name, weight, kernel_us, iterations)


class Steady:
    """A process of the program `steady`, which launches kernels without a pause."""

    def __init__(self, kit, kernel_us, iterations=0, within=()):
        program = [kit.program("steady"), kernel_us, iterations]
        self.process = kit.start(*within, *program, commanded=True)
        self.seen, ready = self.process.line("ready")
        self.iterations = ready["iterations"]

    def begin(self, seconds, window, shapes=1):
        self.process.write(f"run {seconds} {window} {shapes}")

    def windows(self):
        """Waits for the end of what `begin` started; returns its windows."""
        first, (self.seen, _) = self.seen + 1, self.process.line("done", self.seen + 1)
        text = self.process.out.read_text(errors="replace").split("\n")
        return [json.loads(line) for line in text[first : self.seen]]


class Tenant(Steady):
    """The same in a container of its own."""

    def __init__(self, monitor, name, weight, kernel_us, iterations):
        kit = monitor.kit
        run = [kit.file("cgpu"), "run", "--root", monitor.root, "--name", name, "--weight", weight]
        super().__init__(kit, kernel_us, iterations, within=[*run, "--"])


def rate(windows):
    """Returns launches per second over these windows."""
    if not windows:
        raise processes.Failed(
            "no window of a tenant is complete: it got no turn, or the measurement is too short"
        )
    return sum(one["launches"] for one in windows) / sum(one["to"] - one["from"] for one in windows)


def shares(tenants):
    """Returns each tenant's part of all completed work, in percent, from its windows."""
    rates = [rate(windows) for windows in tenants]
    return [100 * one / sum(rates) for one in rates]


def error_pct(got, wanted):
    """Returns the largest relative error of a share, in percent."""
    return max(100 * abs(one - set_to) / set_to for one, set_to in zip(got, wanted))
