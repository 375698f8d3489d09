"""Addresses as people write them, and what both ends ask of their TCP connections."""

from __future__ import annotations

import socket

from headway.errors import BadInput

USER_TIMEOUT_SECONDS = 2.0
"""A machine that vanished answers nothing: a second after the last beat that it took, the next one
is sent, and so much later the kernel ends the connection, instead of trying for 15 minutes."""


def parted(address: str) -> tuple[str, int]:
    """Host (without brackets; it may be empty) and port of HOST:PORT."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BadInput(f"{address} is no address", "`host:port`, for example 127.0.0.1:7700")
    return host.removeprefix("[").removesuffix("]"), int(port)


def spelled(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def be_prompt(connection: socket.socket) -> None:
    """Small messages go at once, and a connection to a machine that is gone ends soon."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = round(USER_TIMEOUT_SECONDS * 1000)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
