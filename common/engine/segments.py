"""Shared memory between the processes of one machine: who has a vector writes it once, who needs it reads it there.

A segment is memory without a name on disk (`memfd_create`), so the kernel frees it when the last process that has it
ends, however that ends. Its maker sends a ticket: which process, which descriptor, which segment. Whoever has the
ticket opens the segment through the maker's descriptor, and keeps it open.

    maker     a segment that is free; a mark that a reader comes; write; ticket ---- a few bytes, through a socket --->
    reader    lock the segment (shared); take the mark away; an array that *is* the segment; unlock when it is dropped

A segment is closed, by its maker and by each reader, when it has not been used for `IDLE_SECONDS`; of one maker, a
reader keeps at most `SEEN` open. So descriptors have a bound, see `needed`: a vector to be kept for long is copied.

A segment is free if nobody is on the way to it, and nobody has locked it. The lock is the kernel's (`flock`), so a
reader that dies lets go of it. What is read is never copied, and never changes as long as somebody has the array: a
variable may be it.

What many shall read is written once, too: its maker takes it, where it is. As long as it has that array, each time
that it puts it somebody gets a ticket for the same segment, with a mark of his own.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import resource
import secrets
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np

GONE = "[segment gone]"

HEADER = mmap.PAGESIZE  # the name and the marks come first; what follows is aligned as TensorFlow wants it

MARKS = 8  # where they begin: a byte for each reader on its way, which that reader alone takes away

ON_ITS_WAY, NOBODY = b"\1", b"\0"

PR_GET_DUMPABLE = 3

SHARED_BYTES = 1 << 20  # a smaller tensor is through a socket before two functions of Python have been called

IDLE_SECONDS = 10.0

SEEN = 16  # segments of one maker that a reader keeps open: to open one again takes time

RESERVE = 64  # descriptors of a task for all else: without them TensorFlow aborts


def needed(tasks: int) -> int:
    """Return how many descriptors a task of a run needs at most, with that number of tasks; a segment takes two."""
    return RESERVE + 2 * SEEN * max(1, tasks - 1)


def allowed() -> int:
    """Return how many descriptors a task may have: a process can raise its limit to that."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1] & sys.maxsize  # -1 is no limit


def raise_limit() -> None:
    """Let this process, and those that it forks, have as many descriptors as the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Segment:
    """Memory that is here, and perhaps elsewhere: the bytes of one vector.

    Args:
        descriptor: of the memory, which closes with this object.
        made_here: arrays of this process are counted, which needs no lock of the kernel.

    Attributes:
        name: a number that no other segment has.
        size: bytes of the vector.
        used: when it was written or read last, on the clock `time.monotonic`.
    """

    def __init__(self, descriptor: int, made_here: bool = False):
        self.descriptor, self.made_here, self.used = descriptor, made_here, time.monotonic()
        self.memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self.name, self.size = int.from_bytes(self.memory[:MARKS], "little"), len(self.memory) - HEADER
        self.address = self.bytes().ctypes.data
        self._readers = 0  # arrays that this process has of it
        self._counting = threading.RLock()  # an array may be dropped while one counts

    def __del__(self) -> None:
        os.close(self.descriptor)

    @classmethod
    def new(cls, size: int) -> Segment:
        """One that nobody has yet, for so many bytes."""
        _check_descriptors()
        descriptor = os.memfd_create("distsgd", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, HEADER + size)
        os.pwrite(descriptor, secrets.randbits(62).to_bytes(MARKS, "little"), 0)
        return cls(descriptor, made_here=True)

    def is_free(self) -> bool:
        """True if nobody has it, and nobody is on the way to it."""
        if self.memory.find(ON_ITS_WAY, MARKS, HEADER) >= 0:
            return False
        if self._readers:  # a reader counts before it takes its mark away
            return False
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # somebody reads it
            return False
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        return True

    def expect(self) -> int:
        """One more reader is on its way from now on; returns where its mark is."""
        mark = MARKS + self.memory[MARKS:HEADER].index(NOBODY)
        self.memory[mark : mark + 1] = ON_ITS_WAY
        return mark

    def read(self, mark: int) -> np.ndarray:
        """The bytes where they lie, [size]; the segment is locked until nobody has this array any more."""
        with self._counting:
            self._readers += 1
            if not self.made_here:
                fcntl.flock(self.descriptor, fcntl.LOCK_SH)
        self.used = time.monotonic()
        array = self.bytes()
        weakref.finalize(array, self._let_go).atexit = False
        self.memory[mark : mark + 1] = NOBODY
        return array

    def bytes(self) -> np.ndarray:
        """The bytes, [size], whoever may have them."""
        return np.frombuffer(self.memory, np.uint8, self.size, HEADER)

    def _let_go(self) -> None:
        with self._counting:
            self._readers -= 1
            if not (self._readers or self.made_here):
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)


class Segments:
    """Those that this process has made, and those of others that it has read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # TensorFlow's threads come here
        self._own: dict[int, list[Segment]] = {}  # by size
        self._seen: dict[tuple[int, ...], Segment] = {}  # by ticket, without the mark; the last that was used, last
        self._looked = time.monotonic()  # for those that are idle

    def put(self, *data: np.ndarray) -> np.ndarray:
        """Lay down some bytes, one after the other, unless that is where they are.

        Returns:
            the ticket, int64 [4], which is good for one reader.
        """
        with self._lock:
            self._close_idle()
            kept = self._kept(*data)
            segment = kept or self._free(sum(part.nbytes for part in data))
            mark = segment.expect()
            segment.used = time.monotonic()
        if kept is None:
            np.concatenate([part.reshape(-1) for part in data], out=segment.bytes())
        return np.array([os.getpid(), segment.descriptor, segment.name, mark], np.int64)

    def _kept(self, first: np.ndarray, *others: np.ndarray) -> Segment | None:
        """Return the segment of this process that these bytes are, if a reader here has it; else None."""
        own = [] if others else self._own.get(first.nbytes, [])
        return next((one for one in own if one.address == first.ctypes.data), None)

    def _free(self, size: int) -> Segment:
        own = self._own.setdefault(size, [])
        segment = next((one for one in own if one.is_free()), None)
        if segment is None:
            segment = Segment.new(size)
            own.append(segment)
        return segment

    def take(self, ticket: np.ndarray) -> np.ndarray:
        """The bytes that were laid down, uint8 [n], not copied.

        Raises:
            RuntimeError: whoever laid them down is gone.
        """
        *key, mark = (int(number) for number in ticket)
        key = tuple(key)
        with self._lock:
            self._close_idle()
            segment = self._made(*key) or self._seen.pop(key, None)
            if segment is None:
                segment = _opened(*key)
                same = [other for other in self._seen if other[0] == key[0]]
                gone = [other for other in self._seen if not Path(f"/proc/{other[0]}").exists()]
                for other in {*gone, *same[: -(SEEN - 1)]}:
                    del self._seen[other]
            if not segment.made_here:
                self._seen[key] = segment
            return segment.read(mark)

    def _made(self, process: int, descriptor: int, name: int) -> Segment | None:
        """The segment of this ticket, if this process has made it."""
        own = (one for same in self._own.values() for one in same) if process == os.getpid() else ()
        return next((one for one in own if (one.descriptor, one.name) == (descriptor, name)), None)

    def _close_idle(self) -> None:
        """Close what has not been used for a while. Arrays keep their memory, and their lock, as long as they are."""
        now = time.monotonic()
        if now - self._looked < IDLE_SECONDS:
            return
        self._looked = now
        for size, own in list(self._own.items()):
            self._own[size] = [one for one in own if now - one.used < IDLE_SECONDS or not one.is_free()]
        self._seen = {key: one for key, one in self._seen.items() if now - one.used < IDLE_SECONDS}

    def count(self) -> int:
        """How many this process has made."""
        return sum(map(len, self._own.values()))


def _check_descriptors() -> None:
    """Refuse to open one more where that would leave too few for TensorFlow, which aborts without them."""
    used, most = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)[0] & sys.maxsize
    if used + RESERVE // 2 > most:
        raise RuntimeError(
            f"{used} file descriptors are in use, and {most} allowed: raise the limit (ulimit -n), or use "
            "--transport sockets"
        )


def _opened(process: int, descriptor: int, name: int) -> Segment:
    _check_descriptors()
    try:
        segment = Segment(os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC))
    except PermissionError as error:
        raise RuntimeError(
            f"process {process} lets no other into its memory ({error}): use --transport sockets"
        ) from None
    except (OSError, ValueError) as error:  # the number may be of something else by now
        raise RuntimeError(f"{GONE} process {process} does not have its segment any more: {error}") from None
    if segment.name != name:
        raise RuntimeError(f"{GONE} process {process} has ended, and its number is another's")
    return segment


def available() -> bool:
    """True where processes can share memory this way: on Linux, unless it closes this one to others of the same user.

    It does so for a Python with capabilities of its own, or one that its user may start and not read.
    """
    try:
        segments: Any = Segments()
        is_open = ctypes.CDLL(None).prctl(PR_GET_DUMPABLE) == 1
        return is_open and segments.take(segments.put(np.zeros(1, np.uint8))).tolist() == [0]
    except (AttributeError, OSError, RuntimeError):
        return False
