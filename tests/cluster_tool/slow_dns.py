"""A proxy in front of a DNS server that delays every query.

A program of its own: slow_dns.py ADDRESS PORT SERVER_PORT SECONDS. The kernel could do it, but not
every kernel has the queue for that.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from contextlib import suppress

TRY_SECONDS = 2.0
MAX_BYTES = 65535


def resolves(server: str, port: int, name: str = "kubernetes.default.svc.cluster.local") -> bool:
    """Whether the server has an address for the name."""
    try:
        answer = _answer((server, port), _question(name))
    except OSError:
        return False
    num_answers = struct.unpack(">H", answer[6:8])[0]
    return bool(num_answers)


def serve(address: str, port: int, server_port: int, seconds: float) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as before:
        before.bind((address, port))

        def pass_on(question: bytes, asker: tuple[str, int]) -> None:
            time.sleep(seconds)
            # Who asks will ask again.
            with suppress(OSError):
                before.sendto(_answer((address, server_port), question), asker)

        while True:
            threading.Thread(target=pass_on, args=before.recvfrom(MAX_BYTES)).start()


def _question(name: str) -> bytes:
    """For the addresses of a name."""
    labels = b"".join(bytes([len(word)]) + word.encode() for word in name.split("."))
    return struct.pack(">6H", 1, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", 1, 1)


def _answer(server: tuple[str, int], question: bytes) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.settimeout(TRY_SECONDS)
        asker.connect(server)
        asker.send(question)
        return asker.recv(MAX_BYTES)


if __name__ == "__main__":
    own, port, server_port, seconds = sys.argv[1:]
    serve(own, int(port), int(server_port), float(seconds))
