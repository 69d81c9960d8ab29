"""A slow and lossy link in user space: two TAP devices, and frames that travel from one to the other late or never.

The kernel's own netem is missing on many machines; this needs only /dev/net/tun. `python lossy_link.py NEAR FAR DELAY
JITTER LOSS` (seconds, seconds, a share) makes the devices in its network namespace, prints a line, carries frames until
its standard input has data, and prints the numbers of frames carried and lost.
"""

import contextlib
import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, TAP, NO_PI = 0x400454CA, 0x0002, 0x1000
FRAME_BYTES = 65536


def device(name: str) -> int:
    """Make a new TAP device: frames sent to it can be read here, and frames written here it receives."""
    end = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP | NO_PI))
    return end


def carry(ends: tuple[int, int], delay: float, jitter: float, loss: float) -> tuple[int, int]:
    """Carry frames until the standard input has data; return how many, and how many were lost."""
    rng, number = random.Random(0), itertools.count()
    to = dict(zip(ends, reversed(ends), strict=True))
    under_way: list[tuple[float, int, int, bytes]] = []  # when it arrives, an order among equals, where, what
    carried = lost = 0
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        ready, _, _ = select.select([*ends, sys.stdin], [], [], wait)
        if sys.stdin in ready:
            return carried, lost
        for end in ready:
            frame = os.read(end, FRAME_BYTES)
            if rng.random() < loss:
                lost += 1
            else:
                due = time.monotonic() + rng.uniform(delay - jitter, delay + jitter)
                heapq.heappush(under_way, (due, next(number), to[end], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(under_way)
            with contextlib.suppress(OSError):  # that end is not up yet
                os.write(end, frame)
                carried += 1


if __name__ == "__main__":
    near, far, *numbers = sys.argv[1:]
    both = device(near), device(far)
    sys.stdout.write("made\n")
    sys.stdout.flush()
    sys.stdout.write("{} {}\n".format(*carry(both, *map(float, numbers))))
