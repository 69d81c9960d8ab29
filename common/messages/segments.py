"""Shared memory between the processes of one machine: the maker writes a vector once, readers map the same memory.

A segment is memory without a name on disk (`memfd_create`), so the kernel frees it when the last process that has it
ends, however that ends. Its maker sends a handle: process, descriptor, name of the segment, mark. The reader opens the
segment through the maker's descriptor, and keeps it open.

    maker     find a free segment; set a mark for the reader; write; send the handle, a few bytes, through a socket --->
    reader    lock the segment (shared); clear the mark; return an array that *is* the segment; unlock when it is freed

Maker and readers close a segment when they have not used it for `IDLE_SECONDS`; a reader keeps at most `SEEN` segments
of one maker open. So the number of descriptors is bounded, see `needed`. A vector to be kept for long is copied.

A segment is free if no mark is set and no process has locked it. The lock is the kernel's (`flock`), so that of a
reader that dies is released. A reader's array is never copied, and does not change as long as it exists: a variable may
use it as its buffer.

A vector with several readers is also written once: its maker takes it as an array of its segment. As long as the maker
has that array, each `put` of it returns a handle for the same segment, with a new mark.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import secrets
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from ..system import fcntl, resource

GONE = "[segment gone]"

HEADER = mmap.PAGESIZE  # the name and the marks come first; the bytes after them are aligned as TensorFlow requires

MARKS = 8  # offset of the marks: one byte for each expected reader, which that reader alone clears

PENDING, FREE = b"\1", b"\0"

PR_GET_DUMPABLE = 3

SHARED_BYTES = 1 << 20  # sending a smaller tensor through a socket is faster than calling two Python functions

IDLE_SECONDS = 10.0

SEEN = 16  # segments of one maker that a reader keeps open, as reopening takes time

RESERVE = 64  # descriptors of a task for other purposes: without them TensorFlow aborts


def needed(tasks: int) -> int:
    """Return the most descriptors that a task needs in a run of that number of tasks; a segment takes two."""
    return RESERVE + 2 * SEEN * max(1, tasks - 1)


def allowed() -> int:
    """Return the hard limit of descriptors, to which a process can raise its own limit."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1] & sys.maxsize if resource else sys.maxsize  # -1 is no limit


def raise_limit() -> None:
    """Raise the limit of descriptors, of this process and those that it forks, to the hard limit."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


class Segment:
    """A mapping of shared memory that holds the bytes of one vector.

    Args:
        descriptor: descriptor of the memory, closed with this object.
        made_here: True in the maker, which counts its own arrays instead of taking the kernel's lock.

    Attributes:
        name: a number that no other segment has.
        size: bytes of the vector.
        used: time of the last write or read, on the clock `time.monotonic`.
    """

    def __init__(self, descriptor: int, made_here: bool = False):
        self.descriptor, self.made_here, self.used = descriptor, made_here, time.monotonic()
        self.memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self.name, self.size = int.from_bytes(self.memory[:MARKS], "little"), len(self.memory) - HEADER
        self.address = self.bytes().ctypes.data
        self._readers = 0  # arrays of the segment in this process
        self._counting = threading.RLock()  # the finalizer of an array may run in the thread that holds this lock

    def __del__(self) -> None:
        os.close(self.descriptor)

    @classmethod
    def new(cls, size: int) -> Segment:
        """Make a segment for that many bytes."""
        _check_descriptors()
        descriptor = os.memfd_create("distsgd", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, HEADER + size)
        os.pwrite(descriptor, secrets.randbits(62).to_bytes(MARKS, "little"), 0)
        return cls(descriptor, made_here=True)

    def is_free(self) -> bool:
        """Return True if no process reads the segment, and no reader is expected."""
        if self.memory.find(PENDING, MARKS, HEADER) >= 0:
            return False
        if self._readers:  # a reader counts itself before it clears its mark
            return False
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # a process reads it
            return False
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        return True

    def expect(self) -> int:
        """Set a mark for one more reader; returns its offset."""
        mark = MARKS + self.memory[MARKS:HEADER].index(FREE)
        self.memory[mark : mark + 1] = PENDING
        return mark

    def read(self, mark: int) -> np.ndarray:
        """Return the bytes without a copy, [size]; the segment stays locked until this array is freed."""
        with self._counting:
            self._readers += 1
            if not self.made_here:
                fcntl.flock(self.descriptor, fcntl.LOCK_SH)
        self.used = time.monotonic()
        array = self.bytes()
        weakref.finalize(array, self._let_go).atexit = False
        self.memory[mark : mark + 1] = FREE
        return array

    def bytes(self) -> np.ndarray:
        """Return the bytes, [size], without locking them."""
        return np.frombuffer(self.memory, np.uint8, self.size, HEADER)

    def _let_go(self) -> None:
        """Count a freed array, and release the kernel's lock after the last one."""
        with self._counting:
            self._readers -= 1
            if not (self._readers or self.made_here):
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)


class Segments:
    """The segments that this process has made, and those of others that it has read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # several threads of TensorFlow call `put` and `take`
        self._own: dict[int, list[Segment]] = {}  # by size
        self._seen: dict[tuple[int, ...], Segment] = {}  # by handle without the mark, in the order of last use
        self._looked = time.monotonic()  # time of the last search for idle segments

    def put(self, *data: np.ndarray) -> np.ndarray:
        """Concatenate some bytes in a free segment, unless they are the bytes of a segment already.

        Returns:
            the handle, int64 [4], valid for one reader.
        """
        with self._lock:
            self._close_idle()
            kept = self._kept(*data)
            segment = kept or self._free(sum(part.nbytes for part in data))
            mark = segment.expect()
            segment.used = time.monotonic()
        # No lock is needed to write: the mark keeps the segment from other threads.
        if kept is None:
            np.concatenate([part.reshape(-1) for part in data], out=segment.bytes())
        return np.array([os.getpid(), segment.descriptor, segment.name, mark], np.int64)

    def _kept(self, first: np.ndarray, *others: np.ndarray) -> Segment | None:
        """Return the segment of this process whose bytes these are, or None."""
        segments = [] if others else self._own.get(first.nbytes, [])
        return next((segment for segment in segments if segment.address == first.ctypes.data), None)

    def _free(self, size: int) -> Segment:
        """Return a free segment of that size, a new one if there is none."""
        segments = self._own.setdefault(size, [])
        segment = next((candidate for candidate in segments if candidate.is_free()), None)
        if segment is None:
            segment = Segment.new(size)
            segments.append(segment)
        return segment

    def take(self, handle: np.ndarray) -> np.ndarray:
        """Return the bytes of a handle, uint8 [n], without a copy.

        Raises:
            RuntimeError: the maker of the segment has ended.
        """
        *key, mark = (int(number) for number in handle)
        key = tuple(key)
        with self._lock:
            self._close_idle()
            segment = self._made(*key) or self._seen.pop(key, None)
            if segment is None:
                segment = _opened(*key)
                # Close the segments of makers that have ended, and all but the last used ones of this maker.
                same = [other for other in self._seen if other[0] == key[0]]
                ended = [other for other in self._seen if not Path(f"/proc/{other[0]}").exists()]
                for other in {*ended, *same[: -(SEEN - 1)]}:
                    del self._seen[other]
            if not segment.made_here:
                self._seen[key] = segment
            return segment.read(mark)

    def _made(self, process: int, descriptor: int, name: int) -> Segment | None:
        """Return the segment of this handle if this process has made it, else None."""
        segments = (segment for same in self._own.values() for segment in same) if process == os.getpid() else ()
        return next((segment for segment in segments if (segment.descriptor, segment.name) == (descriptor, name)), None)

    def _close_idle(self) -> None:
        """Close idle segments. Arrays keep their memory and their lock as long as they exist."""
        now = time.monotonic()
        if now - self._looked < IDLE_SECONDS:
            return
        self._looked = now
        for size, segments in list(self._own.items()):
            self._own[size] = [
                segment for segment in segments if now - segment.used < IDLE_SECONDS or not segment.is_free()
            ]
        self._seen = {key: segment for key, segment in self._seen.items() if now - segment.used < IDLE_SECONDS}

    def count(self) -> int:
        """Return the number of segments that this process has made."""
        return sum(map(len, self._own.values()))


def _check_descriptors() -> None:
    """Refuse to open one more descriptor if too few remain for TensorFlow, which aborts without them."""
    used, limit = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)[0] & sys.maxsize
    if used + RESERVE // 2 > limit:
        raise RuntimeError(
            f"{used} file descriptors are in use, and {limit} allowed: raise the limit (ulimit -n), or use "
            "--transport sockets"
        )


def _opened(process: int, descriptor: int, name: int) -> Segment:
    """Open a segment that another process has made; raises `RuntimeError`, with `GONE` if the process has ended."""
    _check_descriptors()
    try:
        segment = Segment(os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC))
    except PermissionError as error:
        raise RuntimeError(
            f"process {process} lets no other into its memory ({error}): use --transport sockets"
        ) from None
    except (OSError, ValueError) as error:  # the descriptor may belong to another file by now
        raise RuntimeError(f"{GONE} process {process} does not have its segment any more: {error}") from None
    if segment.name != name:
        raise RuntimeError(f"{GONE} process {process} has ended, and another has its number")
    return segment


def available() -> bool:
    """Return True if processes can share memory this way: on Linux, if those of one user may open each other's files.

    Linux forbids that for a Python with capabilities of its own, or one whose executable the user may not read.
    """
    try:
        segments: Any = Segments()
        is_open = ctypes.CDLL(None).prctl(PR_GET_DUMPABLE) == 1
        return is_open and segments.take(segments.put(np.zeros(1, np.uint8))).tolist() == [0]
    except (AttributeError, OSError, RuntimeError):
        return False
