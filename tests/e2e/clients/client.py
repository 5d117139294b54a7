# SPDX-License-Identifier: Apache-2.0
"""What the client programs share: a watchdog, the expected size of the GPU, and the answer as one line of JSON.

Each program takes the number of bytes that the GPU should have (`--total BYTES`, or CGPU_EXPECT_TOTAL); without it, any size is
right. It exits 0 if all that it checks held.
"""

import argparse
import json
import os
import signal

MIB = 1 << 20


def start(what, seconds=240):
    """Reads the arguments; SIGALRM ends the program after `seconds`."""
    signal.alarm(seconds)
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--total", type=int, default=int(os.environ.get("CGPU_EXPECT_TOTAL", "0")))
    return parser.parse_args()


def expect(what, found, wanted):
    """The two must be equal."""
    if found != wanted:
        raise SystemExit(f"{what}: expected {wanted}, found {found}")


def fill(allocate, sizes=(512 * MIB, 16 * MIB, 2 * MIB)):
    """Calls `allocate(bytes)` until it returns None, with smaller and smaller sizes; what it gave, and how many bytes."""
    blocks, granted = [], 0
    for size in sizes:
        while (block := allocate(size)) is not None:
            blocks.append(block)
            granted += size
    return blocks, granted


def answer(**figures):
    print(json.dumps(figures))
