"""Addresses of both families."""

from __future__ import annotations

import socket

import pytest

from headway.member.coordinator.process import address_of, bound


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["", "[::]"])
@pytest.mark.parametrize("asked", ["127.0.0.1", "::1"])
def test_all_addresses_are_those_of_both_families(host: str, asked: str) -> None:
    """Workers have one of either, or both, as their cluster has it."""
    with bound(f"{host}:0") as listening:
        listening.listen()
        port = int(address_of(listening).rpartition(":")[2])
        socket.create_connection((asked, port), timeout=5).close()
        # One that was killed is started again at the address it had.
        again = address_of(listening)
    with bound(again) as listening:
        listening.listen()
        socket.create_connection((asked, port), timeout=5).close()
