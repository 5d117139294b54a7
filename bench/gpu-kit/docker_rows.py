"""Rows about Docker: ways to give a container the GPU, and images with several versions of glibc.

They use the shim by LD_PRELOAD, and neither install nor configure anything: what is on the host
stays as it is. A container is removed at its row's end, and ends by itself after ten minutes.
"""

import json
import uuid

from processes import Failed, NotPossible

LIMIT_GIB = 4
# An image for the ways, and those of other glibc versions: CentOS 7 has the oldest supported one.
IMAGE = "ubuntu:22.04"
IMAGES = {
    "centos:7": "2.17",
    "ubuntu:18.04": "2.27",
    "rockylinux:8": "2.28",
    "debian:11": "2.31",
    "ubuntu:22.04": "2.35",
    "ubuntu:24.04": "2.39",
}
# Options of `docker run` by which NVIDIA's toolkit gives a container all GPUs.
WAYS = {
    "--gpus all": ["--gpus", "all"],
    "--runtime=nvidia": ["--runtime=nvidia", "--env", "NVIDIA_VISIBLE_DEVICES=all"],
    "CDI": ["--device", "nvidia.com/gpu=all"],
}
SHIM = {"LD_PRELOAD": "/kit/libcgpu.so", "ALIYUN_COM_GPU_MEM_CONTAINER": str(LIMIT_GIB)}


def needs_docker(kit):
    if kit.is_simulated:
        raise NotPossible("NVIDIA's toolkit passes real GPUs only, and this one is simulated")
    seen = kit.docker("info", "--format", "{{json .}}")
    if seen.exit != 0:
        raise NotPossible(f"Docker cannot be used: {seen.reason()}")
    if "nvidia" not in json.loads(seen.stdout).get("Runtimes", {}):
        raise NotPossible("Docker has no runtime nvidia: NVIDIA's container toolkit is missing")
    if kit.machine["free_mib"] < (LIMIT_GIB + 1) << 10:
        raise NotPossible(f"only {kit.machine['free_mib']} MiB of the GPU are free")


def needs_image(kit, image):
    if kit.docker("image", "inspect", image).exit == 0:
        return
    seen = kit.docker("pull", "--quiet", image)
    if seen.exit != 0:
        raise NotPossible(f"the image {image} cannot be pulled: {seen.reason()}")


class Container:
    """A container with the kit's files at /kit and a limit, which waits for commands."""

    def __init__(self, kit, image, way):
        self.kit, self.name = kit, f"cgpu-kit-{uuid.uuid4().hex[:12]}"
        self.folder = kit.root / self.name
        self.folder.mkdir()
        options = ["--volume", f"{kit.file('cgpu').parent}:/kit:ro"]
        options += ["--volume", f"{self.folder}:/run/cgpu-container", *way]
        self.start = ["run", "--detach", "--rm", "--name", self.name, *options, image]

    def __enter__(self):
        started = self.kit.docker(*self.start, "sleep", "600")
        if started.exit != 0:
            raise Failed(started.reason())
        return self

    def __exit__(self, *_):
        self.kit.docker("rm", "--force", self.name)

    def run(self, *command, shim=True):
        """Runs a command by `docker exec`."""
        variables = {**SHIM, "CGPU_DIR": "/run/cgpu-container"} if shim else {}
        options = [f"--env={name}={value}" for name, value in variables.items()]
        return self.kit.docker("exec", *options, self.name, *command)


def limit_inside(kit, image, way):
    """Returns whether a container has the limit: by the driver, when it fills, and in NVML."""
    with Container(kit, image, way) as container:
        told = container.run("/kit/programs/meminfo")
        filled = container.run("/kit/programs/alloc_fill", "64M")
        smi = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        shown = container.run(*smi)
        native = container.run("/kit/programs/meminfo", shim=False)
    total, granted, limit = told.json()["total"], filled.json()["granted"], LIMIT_GIB << 30
    # Without the utility capability the toolkit does not mount nvidia-smi.
    agrees = shown.exit != 0 or shown.stdout.split()[0] == str(limit >> 20)
    return {
        "ok": total == limit and granted <= limit and agrees,
        "total": total,
        "granted": granted,
        "nvidia_smi": shown.summary(),
        "native_total": native.json()["total"],
    }


def each(kit, cases):
    """Tries all cases: title, image, options. One that is not possible stops no other."""
    needs_docker(kit)
    results = {}
    for title, image, way in cases:
        try:
            needs_image(kit, image)
            results[title] = limit_inside(kit, image, way)
        except NotPossible as reason:
            results[title] = {"ok": None, "because": str(reason)}
        except Failed as reason:
            results[title] = {"ok": False, "because": str(reason)}
    if all(one["ok"] is None for one in results.values()):
        raise NotPossible("; ".join(sorted({one["because"] for one in results.values()})))
    words = {True: "held", False: "FAILED", None: "not possible"}
    told = ", ".join(f"{title} {words[one['ok']]}" for title, one in results.items())
    return {
        "ok": not any(one["ok"] is False for one in results.values()),
        "figure": told,
        "cases": results,
    }


def docker_ways(kit):
    """A limit in containers of --gpus all, --runtime=nvidia and CDI, with exec and nvidia-smi."""
    return each(kit, [(title, IMAGE, way) for title, way in WAYS.items()])


def docker_images(kit):
    """A limit in images with glibc 2.17 to 2.39."""
    cases = [(f"{image} (glibc {glibc})", image) for image, glibc in IMAGES.items()]
    return each(kit, [(title, image, WAYS["--gpus all"]) for title, image in cases])
