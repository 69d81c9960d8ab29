"""Messages between the launcher, its fork server and the tasks, over one SEQPACKET socket, as JSON.

All tasks of a run share one end. The socket keeps packets whole, but limits their size: a longer message is cut into
packets, which may be mixed with those of others on the way, and is put together again where it is read.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

PACKET_BYTES = 1 << 15

NAME_BYTES = 8  # of a message, at the head of its packets; drawn at random, since the senders are many processes

LAST, MORE = b".", b"+"

FORK_SERVER = "forkserver"  # as a task, where it speaks for itself


class Channel:
    """One end of the socket.

    A thread that sends waits while the other side does not read. Several threads and processes may send, one may read.
    """

    def __init__(self, end: socket.socket):
        self.socket = end
        self.begun: dict[bytes, list[bytes]] = {}  # messages of which more packets are to come

    def fileno(self) -> int:
        """To be waited for."""
        return self.socket.fileno()

    def send(self, **message: Any) -> None:
        """One message of any size; raises `OSError` if the other side is gone."""
        text = json.dumps(message).encode()
        name = os.urandom(NAME_BYTES)
        pieces = [text[start : start + PACKET_BYTES] for start in range(0, len(text), PACKET_BYTES)]
        for piece in pieces[:-1]:
            self.socket.send(name + MORE + piece)
        self.socket.send(name + LAST + pieces[-1])

    def receive(self) -> dict[str, Any] | None:
        """Read one packet; returns the message that it completes, if it does.

        Raises:
            EOFError: the other side is gone.
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
        """The other side reads the end."""
        self.socket.close()
