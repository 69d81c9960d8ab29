"""Shared memory between the processes of one machine: who has a vector writes it once, who needs it reads it there.

A segment is memory without a name on disk (`memfd_create`), so the kernel frees it when the last process that has it
ends, however that ends. Its maker sends a ticket: which process, which descriptor, which segment. Whoever has the
ticket opens the segment through the maker's descriptor, and keeps it open.

    maker     a segment that is free; a mark that a reader comes; write; ticket ---- a few bytes, through a socket --->
    reader    lock the segment (shared); take the mark away; an array that *is* the segment; unlock when it is dropped

A segment is free if nobody is on the way to it, and nobody has locked it. The lock is the kernel's (`flock`), so a
reader that dies lets go of it. What is read is never copied, and never changes as long as somebody has the array: a
variable may be it.

What many shall read is written once, too: its maker takes it like any reader. As long as it has that array, each time
that it puts it somebody gets a ticket for the same segment, with a mark of his own.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import secrets
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np

GONE = "[segment gone]"

HEADER = mmap.PAGESIZE  # the name and the marks come first; what follows is aligned as TensorFlow wants it

MARKS = 8  # where they begin: a byte for each reader on its way, which that reader alone takes away

ON_ITS_WAY, NOBODY = b"\1", b"\0"

PR_GET_DUMPABLE = 3


class Segment:
    """Memory that is here, and perhaps elsewhere: the bytes of one vector.

    Args:
        descriptor: of the memory, which closes with this object.

    Attributes:
        name: a number that no other segment has.
        size: bytes of the vector.
    """

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
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
        descriptor = os.memfd_create("distsgd", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, HEADER + size)
        os.pwrite(descriptor, secrets.randbits(62).to_bytes(MARKS, "little"), 0)
        return cls(descriptor)

    def is_free(self) -> bool:
        """True if nobody has it, and nobody is on the way to it."""
        if self.memory.find(ON_ITS_WAY, MARKS, HEADER) >= 0:
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
            fcntl.flock(self.descriptor, fcntl.LOCK_SH)
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
            if not self._readers:
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)


class Segments:
    """Those that this process has made, and those of others that it has read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # TensorFlow's threads come here
        self._own: dict[int, list[Segment]] = {}  # by size
        self._seen: dict[tuple[int, ...], Segment] = {}  # by ticket, without the mark

    def put(self, *data: np.ndarray) -> np.ndarray:
        """Lay down some bytes, one after the other, unless that is where they are.

        Returns:
            the ticket, int64 [4], which is good for one reader.
        """
        with self._lock:
            key = self._where(*data)
            if key is not None:
                return np.array([*key, self._seen[key].expect()], np.int64)
            segment = self._free(sum(part.nbytes for part in data))
            mark = segment.expect()
        np.concatenate([part.reshape(-1) for part in data], out=segment.bytes())
        return np.array([os.getpid(), segment.descriptor, segment.name, mark], np.int64)

    def _where(self, first: np.ndarray, *others: np.ndarray) -> tuple[int, ...] | None:
        """The segment of this process that somebody here has read, and these bytes are; None if there is none."""
        here, place = os.getpid(), (first.ctypes.data, first.nbytes)
        found = (key for key, one in self._seen.items() if key[0] == here and (one.address, one.size) == place)
        return None if others else next(found, None)

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
            if key not in self._seen:
                segment = _opened(*key)
                for other in [other for other in self._seen if not Path(f"/proc/{other[0]}").exists()]:
                    del self._seen[other]
                self._seen[key] = segment
            return self._seen[key].read(mark)

    def count(self) -> int:
        """How many this process has made."""
        return sum(map(len, self._own.values()))


def _opened(process: int, descriptor: int, name: int) -> Segment:
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
