# SPDX-License-Identifier: Apache-2.0
"""Shared by the client programs: a watchdog, the expected GPU size, the answer as a line of JSON.

`--total BYTES`, or CGPU_EXPECT_TOTAL, is the expected size of the GPU. Without it, any size is
right.
A program exits 0 if all checks hold.
"""

import argparse
import json
import os
import signal

MIB = 1 << 20


def start(what, seconds=240):
    """Parses the arguments. SIGALRM ends the program after `seconds`."""
    signal.alarm(seconds)
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--total", type=int, default=int(os.environ.get("CGPU_EXPECT_TOTAL", "0")))
    return parser.parse_args()


def expect(what, found, wanted):
    """Fails unless the two are equal."""
    if found != wanted:
        raise SystemExit(f"{what}: expected {wanted}, found {found}")


def fill(allocate, sizes=(512 * MIB, 16 * MIB, 2 * MIB)):
    """Calls `allocate(bytes)` with smaller and smaller sizes until it returns None.

    Returns the allocations and their bytes.
    """
    blocks, granted = [], 0
    for size in sizes:
        while (block := allocate(size)) is not None:
            blocks.append(block)
            granted += size
    return blocks, granted


def answer(**figures):
    print(json.dumps(figures))
