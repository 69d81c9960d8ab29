"""Messages between the launcher, its fork server and the tasks, over one SEQPACKET socket, as JSON.

All tasks of a run share one end. The socket keeps packets whole, but limits their size: a longer message is cut into
packets, which may be interleaved with those of other senders, and the reader joins them again.

macOS has no such socket. There it is a stream, in which the length of each packet precedes it. The kernel puts what one
call sends into a stream at once, up to the size of a packet.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any

PACKET_BYTES = 1 << 15

NAME_BYTES = 8  # at the head of each packet: the name of its message, drawn at random, as many processes send

LAST, MORE = b".", b"+"

LENGTH = struct.Struct("<I")  # of the bytes of a packet in a stream

FORK_SERVER = "forkserver"  # the fork server's own task name in events


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a new socket, of packets if the system has such."""
    try:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in ends:  # room for several packets
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * PACKET_BYTES)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * PACKET_BYTES)
        return ends


class Channel:
    """One end of the socket.

    Sending blocks while the other side does not read. Several threads and processes may send, but only one may read.
    """

    def __init__(self, end: socket.socket):
        self.socket, self.is_stream = end, end.type == socket.SOCK_STREAM
        self.begun: dict[bytes, list[bytes]] = {}  # the packets of incomplete messages, by name

    def fileno(self) -> int:
        """Return the file descriptor, for `select`."""
        return self.socket.fileno()

    def send(self, **message: Any) -> None:
        """Send one message of any size; raises `OSError` if the other side has closed."""
        text = json.dumps(message).encode()
        name = os.urandom(NAME_BYTES)
        pieces = [text[start : start + PACKET_BYTES] for start in range(0, len(text), PACKET_BYTES)]
        for piece in pieces[:-1]:
            self._send(name + MORE + piece)
        self._send(name + LAST + pieces[-1])

    def _send(self, packet: bytes) -> None:
        self.socket.sendall(LENGTH.pack(len(packet)) + packet if self.is_stream else packet)

    def _receive(self) -> bytes:
        """Return the next packet; an empty one if the other side has closed."""
        if not self.is_stream:
            return self.socket.recv(NAME_BYTES + 1 + PACKET_BYTES)
        head = self._exactly(LENGTH.size)
        return self._exactly(*LENGTH.unpack(head)) if head else b""

    def _exactly(self, size: int) -> bytes:
        """Return so many bytes of a stream; none if it ends before."""
        found = b""
        while len(found) < size:
            part = self.socket.recv(size - len(found))
            if not part:
                return b""
            found += part
        return found

    def receive(self) -> dict[str, Any] | None:
        """Read one packet; returns the message that it completes, None if more packets follow.

        Raises:
            EOFError: the other side has closed.
        """
        packet = self._receive()
        if not packet:
            raise EOFError
        name, mark, piece = packet[:NAME_BYTES], packet[NAME_BYTES : NAME_BYTES + 1], packet[NAME_BYTES + 1 :]
        pieces = self.begun.setdefault(name, [])
        pieces.append(piece)
        if mark == MORE:
            return None
        return json.loads(b"".join(self.begun.pop(name)))

    def close(self) -> None:
        """Close this end; the other side then reads an end of file."""
        self.socket.close()
