"""The workers of a generation tell each other where parts of snapshots are served, and which ones
each node holds, as numbers in collectives of their group."""

from __future__ import annotations

import ipaddress
import secrets
import struct
from dataclasses import dataclass

from headway.train.snapshot_choice import HeldPart
from headway.train.snapshot_memory import COPIES, KINDS
from headway.train.snapshot_server import TOKEN_BYTES, Address
from headway.train.world import World

NO_ADDRESS = [0, 0, 0]


@dataclass(frozen=True)
class PeerAddresses:
    """How the ranks of a generation reach each other's parts."""

    addresses: tuple[Address | None, ...]
    """By rank; None: it serves nothing."""
    token: bytes


def exchange_addresses(world: World, address: Address | None) -> PeerAddresses:
    """COLLECTIVE. The token is the one that the first rank has drawn."""
    token = secrets.token_bytes(TOKEN_BYTES)
    own = NO_ADDRESS if address is None else _as_integers(address)
    rows = _all_gather(world, [*own, *struct.unpack("!2q", token)])  # COLLECTIVE
    addresses = tuple(_as_address(row[:3]) for row in rows)
    return PeerAddresses(addresses, struct.pack("!2q", *rows[0][3:]))


def exchange_held(world: World, held: list[HeldPart]) -> list[list[HeldPart]]:
    """COLLECTIVE. What each rank's node holds, by rank."""
    parts: list[list[HeldPart]] = [[] for _ in range(world.num_workers)]
    for _ in KINDS:
        some, held = held[:COPIES], held[COPIES:]
        for rank, row in enumerate(_all_gather(world, _part_integers(some))):  # COLLECTIVE
            parts[rank].extend(_parts_of(row))
    return parts


def _all_gather(world: World, values: list[int]) -> list[list[int]]:
    """COLLECTIVE. The values of all workers, by rank. All are in one domain."""
    assert world.replicas is None
    return [values] if world.domain is None else world.domain.all_gather(values)


def _as_integers(address: Address) -> list[int]:
    """Port and address. Never zero: of a rank without one."""
    found = ipaddress.ip_address(address[0])
    if found.version == 4:
        found = ipaddress.IPv6Address(f"::ffff:{found}")
    return [address[1], *struct.unpack("!2q", found.packed)]


def _as_address(values: list[int]) -> Address | None:
    port, *packed = values
    if port == 0:
        return None
    found = ipaddress.IPv6Address(struct.pack("!2q", *packed))
    return str(found.ipv4_mapped or found), port


def _part_integers(parts: list[HeldPart]) -> list[int]:
    """Of as many as there are copies."""
    integers = [len(parts)]
    for one in parts:
        integers += [*one.name, one.part, one.num_parts]
    return integers + [0] * (1 + 4 * COPIES - len(integers))


def _parts_of(integers: list[int]) -> list[HeldPart]:
    number, *rest = integers
    found = [rest[at : at + 4] for at in range(0, 4 * number, 4)]
    return [HeldPart((step, within), part, num) for step, within, part, num in found]
