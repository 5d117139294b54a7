"""Rows about Docker: cgpu is installed as on a host, in a private copy of it.

Containers get the limit by several ways and in images with several versions of glibc, and go on
when cgpu is uninstalled.
"""

import json
from pathlib import Path

import cases
import needs
from private_host import SETTINGS, VENDOR_RUNTIME, Container, PrivateHost, has, needed_glibc
from processes import Failed, NotPossible

LIMIT_GIB = 4
# The image of the other rows; where no registry answers, one is made of the host's files.
IMAGE = "ubuntu:22.04"
# Images and their glibc, as the minor version of 2: CentOS 7 has the oldest supported one.
IMAGES = {
    "centos:7": 17,
    "ubuntu:18.04": 27,
    "rockylinux:8": 28,
    "debian:11": 31,
    "ubuntu:22.04": 35,
    "ubuntu:24.04": 39,
}
LIMIT = ["--env", f"ALIYUN_COM_GPU_MEM_CONTAINER={LIMIT_GIB}"]
# The first version of Docker that gives containers CDI devices.
CDI_VERSION = 25
CDI_SPEC = "/etc/cdi/cgpu.json"
VENDOR_SPECS = ("/etc/cdi", "/var/run/cdi")
# How `docker exec` ends if the program does not exist.
NO_SUCH_PROGRAM = (126, 127)
INSTALLED = "/usr/lib/cgpu/installed"
RUNTIME = "/usr/bin/cgpu-runtime"


def gpus(kit):
    """Returns the options that give a container all GPUs."""
    return ["--gpus", "all", "--env", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]


def by_default_runtime(host):
    return [*gpus(host.kit), *LIMIT]


def by_name(host):
    return ["--runtime=cgpu", *gpus(host.kit), *LIMIT]


def by_vendor_runtime(host):
    if not has(host.kit, VENDOR_RUNTIME):
        raise NotPossible(f"NVIDIA's container toolkit is not installed: no {VENDOR_RUNTIME}")
    return ["--runtime=nvidia", "--env", "NVIDIA_VISIBLE_DEVICES=all", *LIMIT]


def by_cdi(host):
    version = host.docker_version()
    if int(version.split(".")[0]) < CDI_VERSION:
        raise NotPossible(f"Docker {version} has no CDI devices; {CDI_VERSION} has")
    devices = ["--device", f"cgpu.dev/slice={LIMIT_GIB}GiB"]
    if not host.kit.is_simulated:
        devices += ["--device", "nvidia.com/gpu=all"]
        if not any(host.run("sh", "-c", f"ls {place}/nvidia*").exit == 0 for place in VENDOR_SPECS):
            vendor = needs.tool(host.kit, "nvidia-ctk")
            seen = host.run(vendor, "cdi", "generate", "--output=/etc/cdi/nvidia.yaml")
            if seen.exit != 0:
                raise NotPossible(f"the toolkit describes no devices: {seen.reason()}")
    generate = ["cdi", "generate", "--gib", LIMIT_GIB, "--output", CDI_SPEC]
    host.run("mkdir", "-p", Path(CDI_SPEC).parent).check()
    host.run("cgpu", *generate).check()
    return ["--runtime=runc", *devices]


# Ways to give a container a limited GPU: what returns the options of `docker run`.
WAYS = {
    "--gpus all": by_default_runtime,
    "--runtime=cgpu": by_name,
    "--runtime=nvidia": by_vendor_runtime,
    "CDI": by_cdi,
}


def needs_memory(kit):
    if kit.machine["free_mib"] < (LIMIT_GIB + 1) << 10:
        raise NotPossible(f"only {kit.machine['free_mib']} MiB of the GPU are free")


def needed_here(kit):
    """Returns the minor version of glibc 2 that the shim of this kit needs."""
    return needed_glibc(kit.file("libcgpu.so"))


def image(host):
    try:
        if needed_here(host.kit) > IMAGES[IMAGE]:
            return host.host_image()
        return host.pulled(IMAGE)
    except NotPossible:
        return host.host_image()


def limit_inside(container):
    """Checks the limit by `docker exec`: by driver and NVML, when memory is full, by nvidia-smi."""
    limit = LIMIT_GIB << 30
    # It fails unless driver and NVML agree.
    sizes = [one["total"] for one in container.run("/kit/visible").lines()]
    if set(sizes) != {limit}:
        raise Failed(f"the limit is {limit} bytes, and the driver shows {sizes}")
    granted = container.run("/kit/alloc_fill", "64M").json()["granted"]
    if not limit - (needs.SLACK_MIB << 20) <= granted <= limit:
        raise Failed(f"the limit is {limit} bytes, and {granted} are granted")
    return {"sizes": sizes, "granted": granted, "nvidia_smi": nvidia_smi(container)}


def nvidia_smi(container):
    """Returns whether the container has nvidia-smi, which must show the limit."""
    query = ["--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    shown = container.run("nvidia-smi", *query)
    if shown.exit in NO_SUCH_PROGRAM:
        return False
    shown.check()
    if set(shown.stdout.split()) != {str(LIMIT_GIB << 10)}:
        raise Failed(f"the limit is {LIMIT_GIB << 10} MiB, and nvidia-smi shows {shown.stdout!r}")
    return True


def limited(host, image, options):
    """Checks the limit in a container of its own."""
    container = Container(host, image, *options)
    try:
        return limit_inside(container)
    finally:
        container.remove()


def docker_ways(kit):
    """A limit by --gpus all, --runtime=cgpu, --runtime=nvidia and CDI; nvidia-smi and exec."""
    needs_memory(kit)
    with PrivateHost(kit) as host:
        chosen = image(host)
        host.install()
        results = {
            title: cases.tried(lambda: limited(host, chosen, options(host)))
            for title, options in WAYS.items()
        }
        shown = any(one.get("nvidia_smi") for one in results.values())
        missing = cases.not_possible("the containers have no nvidia-smi")
        results["nvidia-smi"] = cases.held() if shown else missing
        results["no limit"] = cases.tried(lambda: unlimited(host, chosen))
        version = host.docker_version()
    return {**cases.collected(results), "image": chosen, "docker": version}


def unlimited(host, image):
    """Checks that a container without the variable has nothing of cgpu."""
    container = Container(host, image)
    try:
        maps = container.run("cat", "/proc/self/maps")
        maps.check()
        if "cgpu" in maps.stdout:
            raise Failed("a container that requests no limit has the shim")
    finally:
        container.remove()


def docker_images(kit):
    """A limit in images with glibc 2.17 to 2.39."""
    needs_memory(kit)
    least = needed_here(kit)

    def tried(name, glibc):
        if glibc < least:
            raise NotPossible(f"the shim of this kit needs glibc 2.{least}")
        return limited(host, host.pulled(name), by_default_runtime(host))

    with PrivateHost(kit) as host:
        host.install()
        results = {
            f"{name} (glibc 2.{glibc})": cases.tried(lambda: tried(name, glibc))
            for name, glibc in IMAGES.items()
        }
    return cases.collected(results)


def docker_uninstall(kit):
    """Uninstalling with containers that run harms none: exec, stop, start, the limit, settings."""
    needs_memory(kit)
    with PrivateHost(kit) as host:
        chosen, settings = image(host), json.loads(host.read(SETTINGS))
        before = Container(host, chosen)
        host.install()
        running = {
            "started before": before,
            "limited": Container(host, chosen, *by_default_runtime(host)),
            "without a limit": Container(host, chosen),
        }
        files = [line.split()[1] for line in host.read(INSTALLED).splitlines() if "file " in line]
        results = {}

        def check(title, holds, because):
            results[title] = cases.held() if holds else cases.failed(because)

        def all_do(title, act):
            ended = {name: act(one) for name, one in running.items()}
            bad = [f"{name}: {seen.reason()}" for name, seen in ended.items() if seen.exit != 0]
            check(title, not bad, "; ".join(bad))

        refused = host.uninstall()
        named = running["limited"].id in refused.stderr
        check("refused while they run", refused.exit == 1 and named, refused.reason())
        all_do("exec after the refusal", lambda one: one.run("sh", "-c", ":"))
        forced = host.uninstall("--force")
        check("forced", forced.exit == 0, forced.reason())
        host.reload_docker()
        all_do("exec afterwards", lambda one: one.run("sh", "-c", ":"))
        results["the limit"] = cases.tried(lambda: limit_inside(running["limited"]))
        all_do("stop", lambda one: one.stop())
        seen = before.start()
        check("start again", seen.exit == 0, seen.reason())
        results["a new container"] = cases.tried(lambda: unlimited(host, chosen))
        now = json.loads(host.read(SETTINGS))
        check("Docker's settings", now == settings, f"{now}, not {settings}")
        left = [file for file in files if file != RUNTIME and host.exists(file)]
        check("no file is left", not left, ", ".join(left))
    return cases.collected(results)
