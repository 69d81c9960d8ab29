"""Atomic writes of files, strict JSON, and the lock on a run directory."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import numbers
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from .errors import CannotWrite, UserError, first_line
from .record_format import open_to_read, regular
from .system import lock, unlock

LOCK = ".lock"

RESERVE_BYTES = 1 << 16

STDERR = 2  # file descriptor, which native code also writes to

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)

SCRATCH = "distsgd-"  # start of the names of temporary folders

PART = ".part"  # end of the name of a file that is being written


@contextmanager
def writing(path: Path, content: str = "") -> Iterator[None]:
    """Turn an `OSError` inside the block into a `CannotWrite` that names `path` and its `content`, in one line."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error, content) from None


def cannot_write(path: Path | None, error: OSError, content: str = "") -> CannotWrite:
    """Return the error to raise if a file cannot be written, or one that is not known (None)."""
    text = f"cannot write {path or 'a file'}{f' ({content})' if content else ''}: {reason_of(error)}"
    is_temporary = path is not None and any(
        part.parent == temporary_folder() and part.name.startswith(SCRATCH) for part in path.absolute().parents
    )
    if error.errno == errno.ENOSPC:
        places = [temporary_folder()] if is_temporary else [path.parent] if path else [temporary_folder(), Path()]
        began = path.stat().st_size if path is not None and path.is_file() else 0  # is deleted after this
        text += "".join(f", {free_in(place, began)}" for place in places)
    if error.errno in NO_ROOM and is_temporary:
        text += ": set TMPDIR to a folder with room, as in TMPDIR=/scratch"
    return CannotWrite(text)


def free_in(folder: Path, more: int = 0) -> str:
    """Return the free space of the disk of a folder, and some bytes more, in words."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    return f"{(shutil.disk_usage(existing).free + more) / 1e6:.1f} MB are free in {existing}"


def temporary_folder() -> Path:
    """Return the folder for temporary files, by TMPDIR; raises `CannotWrite` if none can be written."""
    import tempfile

    try:
        return Path(tempfile.gettempdir()).absolute()
    except FileNotFoundError as error:
        raise CannotWrite(f"{error.strerror}: set TMPDIR to a folder that can be written, and has room") from None


def reason_of(error: OSError) -> str:
    """Return why a file could not be opened or written, without its path."""
    if error.errno == errno.ELOOP:
        return "it is a symbolic link, and a run writes through none"
    return error.strerror or first_line(error)


# A run directory may come from another machine, and hold links to files of this user. So each file in it is opened by
# one of the next functions, or replaced as a whole: a write through a link would damage the file that it points to.


def open_in_place(path: Path, mode: str, **options: Any) -> Any:
    """Open a file to write in place, as `open` does; raises `OSError` for a symbolic link, a pipe or a device."""
    return open(path, mode, opener=no_link, **options)


def no_link(path: str | Path, flags: int) -> int:
    """Return a descriptor of the file itself, for `open`; raises `OSError` for a symbolic link, a pipe or a device."""
    return regular(path, flags | getattr(os, "O_NOFOLLOW", 0))


def own_folder(path: Path) -> Path:
    """Return a folder of a run directory, created if it is missing; raises `OSError` if it is a symbolic link."""
    refuse_link(path)
    path.mkdir(parents=True, exist_ok=True)
    return path


def refuse_link(path: Path) -> None:
    """Raise `OSError` if `path` is a symbolic link."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def delete(path: Path) -> None:
    """Delete a file, a link, or a folder with its content, if it exists; raises `OSError`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def standard_error_to(path: Path) -> Iterator[None]:
    """Append the standard error of this process, that of native code included, to a file inside the block.

    Raises:
        CannotWrite: the file cannot be opened.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with writing(path):
        descriptor = os.open(path, flags) if str(path) == os.devnull else no_link(path, flags)
    if sys.stderr is not None:
        sys.stderr.flush()
    try:
        before = os.dup(STDERR)
    except OSError:
        before = None  # it is closed
    os.dup2(descriptor, STDERR)
    try:
        yield
    finally:
        if before is None:
            os.close(STDERR)
        else:
            os.dup2(before, STDERR)
            os.close(before)
        os.close(descriptor)


def in_one_line(error: BaseException) -> BaseException:
    """Return `CannotWrite` in place of an error that a full disk caused; return any other error unchanged."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return cannot_write(Path(error.filename) if error.filename else None, error)
    return error


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file that replaces `path` at the end of the block, complete and on the disk, or not at all.

    A leftover temporary file is deleted first: it may be a link to a file outside the run.

    Raises:
        CannotWrite: `path` is unchanged.
    """
    part = path.with_name(f".{path.name}{PART}")
    with writing(path):
        try:
            part.unlink(missing_ok=True)
            with open_in_place(part, "xb") as file:
                yield file
                flush(file)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def copy(source: Path, target: Path) -> None:
    """Copy a file atomically; raises `CannotWrite`, or `UserError` if the source cannot be read."""
    try:
        found = open_to_read(source)
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror}") from None
    with found, replacing(target) as file:
        shutil.copyfileobj(found, file)


def flush(file: Any) -> None:
    """Flush a file to the disk, so that a power failure does not lose it."""
    file.flush()
    os.fsync(file.fileno())


def dumps(value: Any, **options: Any) -> str:
    """Return a value as strict JSON; numbers that are not finite, which JSON lacks, become null."""
    return json.dumps(finite(value), allow_nan=False, **options)


def finite(value: Any) -> Any:
    """Return a value with Python's numbers in place of NumPy's, and None in place of numbers that are not finite."""
    if isinstance(value, numbers.Integral):
        return value if isinstance(value, bool) else int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    """Write a JSON file atomically, in one line if `indent` is None; raises `CannotWrite`."""
    with replacing(path) as file:
        file.write((dumps(value, indent=indent) + "\n").encode())


def cannot_write_into(run_dir: Path, error: OSError) -> UserError:
    """Return the error to raise if a run directory cannot be written."""
    place = f" ({Path(error.filename).name})" if error.filename and Path(error.filename) != run_dir else ""
    return UserError(f"cannot write the run directory {run_dir}{place}: {reason_of(error)}. Choose another one")


class Lock:
    """The lock on a run directory for its writer. It ends with `release`, or with this process, however that ends.

    A file system without locks permits two writers at the same time.

    The lock file reserves a little space on the disk, so that a run that has filled the disk can write its result.

    Raises:
        UserError: another run holds the lock, or the folder cannot be written.
    """

    def __init__(self, run_dir: Path):
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            self.handle: int | None = no_link(run_dir / LOCK, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise cannot_write_into(run_dir, error) from None
        try:
            lock(self.handle)
        except BlockingIOError:
            os.close(self.handle)
            raise UserError(
                f"another run is under way in {run_dir}: wait for its end, or choose another run directory"
            ) from None
        with contextlib.suppress(OSError):  # random, as some file systems need no space for zeros
            os.pwrite(self.handle, os.urandom(RESERVE_BYTES), 0)

    def make_room(self) -> None:
        """Free the reserved disk space."""
        if self.handle is not None:
            os.ftruncate(self.handle, 0)

    def release(self) -> None:
        """Release the lock, so that another run can use the folder."""
        if self.handle is not None:
            self.make_room()
            unlock(self.handle)
            os.close(self.handle)
            self.handle = None
