#!/usr/bin/env python3
"""Runs as the next runtime of the simulated engine: `create` makes a process in a mount namespace
with the bind mounts of the bundle and nothing else, `state` tells its process id, `delete` ends it.
The process ends by itself after five minutes.
"""
import ctypes
import json
import os
import signal
import sys
import time

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18
libc = ctypes.CDLL(None, use_errno=True)


def must(result):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def mount(source, target, kind, flags):
    must(libc.mount(source.encode(), target.encode(), kind, flags, None))


def enter_namespace():
    user, group = os.geteuid(), os.getegid()
    must(libc.unshare(CLONE_NEWNS if user == 0 else CLONE_NEWNS | CLONE_NEWUSER))
    if user != 0:
        maps = {"setgroups": "deny", "uid_map": f"0 {user} 1", "gid_map": f"0 {group} 1"}
        for name, text in maps.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    mount("none", "/", None, MS_REC | MS_PRIVATE)


def contain(bundle, ready):
    """Becomes the container's first process, which outlives its engine's command and its group."""
    os.setsid()
    with open(os.path.join(bundle, "config.json")) as file:
        mounts = json.load(file).get("mounts", [])
    enter_namespace()
    root = os.path.join(bundle, "namespace")
    os.makedirs(root, exist_ok=True)
    mount("none", root, b"tmpfs", 0)
    for one in mounts:
        if not {"bind", "rbind"} & set(one.get("options", [])):
            continue
        source, target = one["source"], root + one["destination"]
        os.makedirs(target if os.path.isdir(source) else os.path.dirname(target), exist_ok=True)
        if not os.path.isdir(source):
            open(target, "a").close()
        mount(source, target, None, MS_BIND | MS_REC)
    null = os.open("/dev/null", os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    os.chroot(root)
    os.chdir("/")
    os.write(ready, b"r")
    os.close(ready)
    time.sleep(300)


def main():
    folder, words = os.path.dirname(os.path.abspath(sys.argv[0])), sys.argv[1:]
    bundle = os.path.join(folder, words[-1])
    pid_file = os.path.join(bundle, "pid")
    pid = int(open(pid_file).read()) if os.path.exists(pid_file) else None
    if "create" in words:
        end, ready = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                contain(bundle, ready)
            finally:
                os._exit(1)
        os.close(ready)
        if os.read(end, 1) != b"r":
            sys.exit("the container's process did not start")
        with open(pid_file, "w") as file:
            file.write(str(pid))
    elif "state" in words:
        print(json.dumps({"bundle": bundle} | ({"pid": pid} if pid else {})))
    elif "delete" in words and pid:
        os.kill(pid, signal.SIGKILL)
        os.remove(pid_file)


main()
