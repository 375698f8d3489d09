"""Addresses in the form HOST:PORT, and the TCP options of both ends."""

from __future__ import annotations

import socket

from headway.errors import BadInput

USER_TIMEOUT_SECONDS = 2.0
"""Seconds after which the kernel closes a connection on which nothing is acknowledged, instead of
retrying for 15 minutes. A machine that vanished is noticed so long after the next heartbeat."""


def split_address(address: str) -> tuple[str, int]:
    """Host (without brackets; it may be empty) and port of HOST:PORT."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BadInput(f"{address} is not an address", "use HOST:PORT, for example 127.0.0.1:7700")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bound_to(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet. Without a host it is bound to all addresses, IPv6
    and IPv4: a pod has those that its cluster gives it."""
    is_any = host in ("", "::")
    if is_any and not socket.has_dualstack_ipv6():
        host, is_any = "0.0.0.0", False
    family, kind, protocol, _, place = socket.getaddrinfo(
        "::" if is_any else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, protocol)
    try:
        # The process before may have been killed a moment ago.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_any:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(place)
    except OSError:
        made.close()
        raise
    return made


def set_tcp_options(connection: socket.socket) -> None:
    """Small messages are sent at once, and a connection to a machine that vanished ends soon."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = round(USER_TIMEOUT_SECONDS * 1000)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
