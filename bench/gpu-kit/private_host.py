"""A private copy of the host with a Docker daemon, in which the Docker rows install cgpu.

It has namespaces of its own for mounts (private_host.sh) and processes: the installed files,
Docker's settings, data and containers are not the host's. Whatever ends the kit ends the copy with
all its processes; its files are in the kit's own temporary folder.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import needs
from processes import Failed, NotPossible

SETTINGS = "/etc/docker/daemon.json"
# The hook by which Docker offers --gpus.
HOOK = "nvidia-container-runtime-hook"
VENDOR_RUNTIME = "nvidia-container-runtime"
# Programs of the image that is made of the host's files; those of the rows are mounted.
IMAGE_PROGRAMS = ("sh", "sleep", "env", "cat")
HOST_IMAGE = "cgpu-kit/host"
# Kinds of namespaces, and their files.
NAMESPACES = {"mount": "mnt", "pid": "pid"}
# Limits of a pull and of the steps of the end: a daemon may hang.
PULL_SECONDS, END_SECONDS, POLL_SECONDS = 90, 10, 0.2
# How `timeout` ends if it ended its program.
TIMED_OUT = 124
# The last line of Docker's messages.
ADVICE = re.compile(r"^(Run|See) 'docker .*$", re.MULTILINE)
# Pulling fails like this for one image; all other failures are the registry's or the network's.
NO_SUCH_IMAGE = re.compile("not found|manifest unknown|denied", re.IGNORECASE)


def needs_docker(kit):
    """Raises NotPossible where no private host with Docker and a GPU can be made."""
    if os.geteuid() != 0:
        raise NotPossible("only root can install cgpu and start a Docker daemon")
    for name in ("dockerd", "docker", "unshare", "nsenter"):
        needs.tool(kit, name)
    if not (kit.is_simulated or has(kit, HOOK)):
        raise NotPossible(f"NVIDIA's container toolkit is not installed: there is no {HOOK}")
    if kit.is_simulated and "CGPU_SIM_GPUS" not in kit.environment:
        raise NotPossible("CGPU_SIM_GPUS does not list the simulated GPUs")
    if Path("/usr/lib/cgpu/installed").exists():
        raise NotPossible("cgpu is installed on this host, and the rows install it themselves")


def has(kit, name):
    return shutil.which(name, path=kit.environment["PATH"]) is not None


def needed_glibc(file):
    """Returns the minor version of glibc 2 that a library needs, from its symbol versions."""
    versions = re.findall(rb"GLIBC_2\.(\d+)", Path(file).read_bytes())
    return max(map(int, versions), default=0)


class PrivateHost:
    """The copy and its daemon, until the end of a `with` block."""

    def __init__(self, kit):
        needs_docker(kit)
        self.kit, self.folder = kit, kit.scratch / "docker"
        self.no_registry = None

    def __enter__(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        own = self.folder / "own"
        own.mkdir(parents=True)
        script = ["sh", self.kit.folder / "private_host.sh", own]
        within = ["unshare", "--mount", "--propagation", "private"]
        within += ["--pid", "--fork", "--kill-child", "--mount-proc"]
        self.holder = self.kit.start(*script, within=within)
        try:
            self.holder.line("ready")
        except Failed as reason:
            raise NotPossible(f"the host's files cannot be made private: {reason}") from reason
        # The service manager sees another /usr; variables of the simulated GPU are not for
        # programs that look for the host's driver.
        unset = [name for name in os.environ if name.startswith("CGPU_")]
        unset += ["LD_LIBRARY_PATH"] if self.kit.is_simulated else []
        first = self.holder.children()[0]
        enter = [f"--{kind}=/proc/{first}/ns/{file}" for kind, file in NAMESPACES.items()]
        self.within = ["nsenter", *enter, "--", "env", *(f"--unset={name}" for name in unset)]
        self.configure()
        self.daemon = self.start_docker()
        return self

    def __exit__(self, *_):
        # Else the kernel would keep the containers' control groups.
        left = self.docker("ps", "--all", "--quiet", seconds=END_SECONDS).stdout.split()
        if left:
            self.docker("rm", "--force", *left, seconds=END_SECONDS)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.signal_docker("TERM")
            self.daemon.popen.wait(END_SECONDS)
        # The kernel ends all processes of the namespace.
        self.holder.popen.kill()
        self.holder.popen.wait()
        self.daemon.popen.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def signal_docker(self, name):
        return self.run("sh", "-c", f"kill -{name} $(cat /var/run/docker.pid)")

    def run(self, *command, variables=None):
        """Runs a command that sees the private files."""
        return self.kit.run(*command, variables=variables, within=self.within)

    def read(self, place):
        """Returns a private file's text, or None."""
        seen = self.run("cat", place)
        return seen.stdout if seen.exit == 0 else None

    def write(self, place, text):
        file = self.folder / "text"
        file.write_text(text)
        self.run("mkdir", "-p", Path(place).parent).check()
        self.run("cp", file, place).check()

    def exists(self, place):
        return self.run("test", "-e", place).exit == 0

    def configure(self):
        """Writes the settings of a host with the toolkit, as its package does."""
        settings = {"features": {"cdi": True}}
        if has(self.kit, VENDOR_RUNTIME):
            settings["runtimes"] = {"nvidia": {"path": VENDOR_RUNTIME}}
        self.write(SETTINGS, json.dumps(settings) + "\n")
        if self.kit.is_simulated:
            # As docs/docker.md does for a host without a GPU. Docker looks for it at its start.
            self.run("cp", self.kit.file("cgpu-runtime"), f"/usr/bin/{HOOK}").check()

    def start_docker(self):
        """Starts the daemon and waits until it answers."""
        sockets = ["unix:///var/run/docker.sock", f"unix://{self.socket}"]
        options = ["--iptables=false", "--bridge=none", "--data-root", self.folder / "data"]
        for socket in sockets:
            options += ["--host", socket]
        daemon = self.kit.start("dockerd", *options, within=self.within)
        while self.docker("info").exit != 0:
            if daemon.popen.poll() is not None:
                raise NotPossible(f"Docker does not start here: {daemon.finished().reason()}")
            time.sleep(POLL_SECONDS)
        return daemon

    @property
    def socket(self):
        return self.folder / "socket"

    def docker(self, *arguments, seconds=PULL_SECONDS):
        """Runs Docker's client, at most for so long."""
        command = ["docker", "--host", f"unix://{self.socket}", *arguments]
        seen = self.kit.run(*command, within=["timeout", seconds])
        seen.stderr = ADVICE.sub("", seen.stderr)
        return seen

    def docker_version(self):
        return self.docker("version", "--format", "{{.Server.Version}}").stdout.strip()

    def reload_docker(self):
        """As a service manager does."""
        self.signal_docker("HUP").check()
        time.sleep(POLL_SECONDS)
        if self.daemon.popen.poll() is not None:
            raise Failed(self.daemon.finished().reason())

    def install(self):
        """Installs cgpu by install.sh, and makes it Docker's default runtime."""
        built = self.folder / "built"
        shutil.copytree(self.kit.folder / "dist", built, symlinks=True)
        variables = {}
        if self.kit.is_simulated:
            for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
                loaded = [path for path in self.kit.machine["libraries"] if library in path]
                if not loaded:
                    raise NotPossible(f"{library} is not loaded")
                (built / "sim").mkdir(exist_ok=True)
                shutil.copy(loaded[0], built / "sim" / library)
            gpus = self.kit.environment["CGPU_SIM_GPUS"]
            self.write("/etc/cgpu/runtime.toml", f'sim = "{gpus}"\n')
            # The tests' shim is built for this system.
            variables = {"NEW_GLIBC": "allow"}
        script = self.kit.folder / "deploy" / "install.sh"
        self.run("sh", script, built, variables=variables).check()
        self.run("cgpu", "setup", "docker", "--default").check()
        self.reload_docker()

    def uninstall(self, *options):
        return self.run("sh", "/usr/lib/cgpu/uninstall.sh", *options)

    def pulled(self, image):
        """Pulls an image, or raises NotPossible; a registry that fails once is not tried again."""
        if self.no_registry:
            raise NotPossible(self.no_registry)
        seen = self.docker("pull", "--quiet", image)
        # The whole message names the registry, and is in the log.
        late = f"not done within {PULL_SECONDS} s"
        reason = late if seen.exit == TIMED_OUT else seen.last_line().rpartition(": ")[2]
        if seen.exit != 0 and NO_SUCH_IMAGE.search(seen.stderr):
            raise NotPossible(f"the registry has no {image}: {reason}")
        if seen.exit != 0:
            self.no_registry = f"images cannot be pulled: {reason}"
            raise NotPossible(self.no_registry)
        return image

    def host_image(self):
        """Makes an image of some of the host's programs and their libraries; returns its name."""
        programs = [needs.tool(self.kit, name) for name in IMAGE_PROGRAMS]
        libraries = [*(self.kit.folder / "dist").glob("*.so"), *self.kit.machine["libraries"]]
        files = set(programs)
        for file in (*programs, *libraries, self.kit.program("visible")):
            seen = self.kit.run("ldd", file)
            files.update(word for word in seen.stdout.split() if word.startswith("/"))
        file = self.folder / "image.tar"
        with tarfile.open(file, "w", dereference=True) as archive:
            for name in ("proc", "sys", "dev", "etc", "run", "tmp"):
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
            for one in sorted(files):
                archive.add(one)
        self.docker("import", file, HOST_IMAGE).check()
        return HOST_IMAGE


class Container:
    """A container with the kit's programs at /kit, which waits for commands."""

    def __init__(self, host, image, *options):
        self.host = host
        programs = f"{host.kit.file('programs')}:/kit:ro"
        command = [*options, "--volume", programs, image, "sleep", "600"]
        seen = host.docker("run", "--detach", "--network=none", *command)
        if seen.exit != 0:
            raise Failed(seen.reason())
        self.id = seen.stdout.strip()

    def run(self, *command, options=()):
        return self.host.docker("exec", *options, self.id, *command)

    def group(self):
        """Returns the folder of its control group, where Docker uses version 2."""
        seen = self.host.docker("inspect", "--format", "{{.State.Pid}}", self.id)
        lines = (self.host.read(f"/proc/{seen.stdout.strip()}/cgroup") or "").splitlines()
        path = next((line[3:] for line in lines if line.startswith("0::")), "")
        if self.id not in path:
            raise Failed(f"a container is in the control group {path!r}")
        return Path(f"/sys/fs/cgroup{path}")

    def stop(self):
        return self.host.docker("stop", "--time", "0", self.id)

    def start(self):
        return self.host.docker("start", self.id)

    def remove(self):
        self.host.docker("rm", "--force", self.id)
