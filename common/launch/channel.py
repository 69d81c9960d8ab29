"""Messages between the launcher, its fork server and the tasks, over one SEQPACKET socket, as JSON.

All tasks of a run share one end. The socket keeps packets whole, but limits their size: a longer message is cut into
packets, which may be interleaved with those of other senders, and the reader joins them again.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

PACKET_BYTES = 1 << 15

NAME_BYTES = 8  # at the head of each packet: the name of its message, drawn at random, as many processes send

LAST, MORE = b".", b"+"

FORK_SERVER = "forkserver"  # the fork server's own task name in events


class Channel:
    """One end of the socket.

    Sending blocks while the other side does not read. Several threads and processes may send, but only one may read.
    """

    def __init__(self, end: socket.socket):
        self.socket = end
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
            self.socket.send(name + MORE + piece)
        self.socket.send(name + LAST + pieces[-1])

    def receive(self) -> dict[str, Any] | None:
        """Read one packet; returns the message that it completes, None if more packets follow.

        Raises:
            EOFError: the other side has closed.
        """
        packet = self.socket.recv(NAME_BYTES + 1 + PACKET_BYTES)
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
