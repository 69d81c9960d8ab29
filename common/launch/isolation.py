"""A private network for the processes of a local cluster.

TensorFlow's servers listen on all interfaces, without authentication, and run any graph that they receive. In a network
namespace of their own, with only a loopback interface, no process outside can reach them.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

CLONE_NEWUSER = 0x10000000

CLONE_NEWNET = 0x40000000

SIOCGIFFLAGS = 0x8913

SIOCSIFFLAGS = 0x8914

IFF_UP = 1


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
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        name, flags = struct.unpack("16sh", fcntl.ioctl(probe, SIOCGIFFLAGS, struct.pack("16sh", b"lo", 0)))
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sh", name, flags | IFF_UP))
