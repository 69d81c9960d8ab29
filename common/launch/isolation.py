"""A private network for the processes of a local cluster.

TensorFlow's servers listen on all interfaces, without authentication, and run any graph that they receive. In a network
namespace of their own, with only a loopback interface, no process outside can reach them.

`python -S -P isolation.py PRELOAD MODE MODULE ARGUMENT` enters such a network, and becomes the process
`python -P -m MODULE ARGUMENT NETWORK`, which finds "private" there, or why not. Only a process with a single thread may
enter. So this file imports no package, `-S` lets the environment start no thread, and the libraries of `LD_PRELOAD` are
the argument PRELOAD, as that variable is not set yet. Without MODULE it prints the network.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

CLONE_NEWUSER = 0x10000000

CLONE_NEWNET = 0x40000000

SIOCGIFFLAGS = 0x8913

SIOCSIFFLAGS = 0x8914

IFF_UP = 1

PRELOAD = "LD_PRELOAD"


def enter_private_network() -> None:
    """Move this process, which must have one thread, into a new network that its children inherit.

    Raises:
        OSError: the kernel refuses (no Linux, or user namespaces are switched off).
    """
    uid, gid = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare"):
        raise OSError("this system has no network namespaces")
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    import fcntl  # which Windows does not have

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        name, flags = struct.unpack("16sh", fcntl.ioctl(probe, SIOCGIFFLAGS, struct.pack("16sh", b"lo", 0)))
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sh", name, flags | IFF_UP))
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=10).close()


def why_not() -> str:
    """Return why this process cannot enter a private network, or an empty text.

    A child tries. A process that has entered a network which it may not configure (`/proc` is read-only in many
    sandboxes) cannot go back, and would have none.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            enter_private_network()
        except OSError as error:
            os.write(write, (error.strerror or str(error)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        reason = answer.read()
    _, status = os.waitpid(child, 0)
    return reason or (f"status {status}" if status else "")


def network_of(mode: str) -> str:
    """Enter a private network unless `mode` is "off"; return "private", "open", or "refused: " and the reason."""
    if mode == "off":
        return "open"
    if reason := why_not():
        return f"refused: {reason}"
    try:
        enter_private_network()
    except OSError as error:  # a library of the whole system (/etc/ld.so.preload) has started a thread
        return f"refused: {error.strerror or error}"
    return "private"


def command(python: Sequence[str], mode: str, *module: str) -> list[str]:
    """Return the command that enters a network, and becomes the process of a module with its argument."""
    return [*python, "-S", "-P", __file__, os.environ.get(PRELOAD, ""), mode, *module]


def main() -> None:
    """Enter the network, and become the process of the module, if one is given."""
    preload, mode, *module = sys.argv[1:]
    network = network_of(mode)
    if not module:
        print(network)  # noqa: T201
        return
    if preload:
        os.environ[PRELOAD] = preload
    # -P: import only the modules that the launcher can import, and none from the current folder.
    os.execv(sys.executable, [sys.executable, "-P", "-m", *module, network])


if __name__ == "__main__":
    main()
