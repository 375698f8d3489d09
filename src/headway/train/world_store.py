"""The store over which the workers of a restart world form their process groups, if the run has a
coordinator.

For gloo it is the session's, where a group costs each member two requests. On accelerators it is
what torchrun has: a TCPStore, which the first rank serves as long as it lives. It authenticates
nobody, and neither does NCCL, whose ids are all that goes through it.
"""

from __future__ import annotations

import os

import torch
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from headway.member.protocol.sockets import join_address, split_address
from headway.member.worker.session import Session
from headway.train.collectives import forming_group
from headway.train.device import is_accelerator
from headway.train.file_limit import raise_file_limit
from headway.train.session_store import GroupStore, SessionStore
from headway.train.world import FORM_TIMEOUT, WorldShape

ADDRESS = "tcp_store"
"""Key of the session's store: where the first rank serves."""


def world_store(
    session: Session, generation: int, rank: int, shape: WorldShape, device: torch.device
) -> Store:
    """COLLECTIVE. Return the store of that generation's world, for `form_world`."""
    if shape.num_workers == 1 or not is_accelerator(device):
        return GroupStore(session, generation, shape.group_sizes)
    return _served_store(SessionStore(session, generation), rank, shape.num_workers)


def _served_store(meeting: SessionStore, rank: int, num_workers: int) -> Store:
    """COLLECTIVE. Serve a store as the first rank, or connect to it."""
    meeting.set_timeout(FORM_TIMEOUT)
    raise_file_limit(num_workers, num_workers)
    with forming_group():
        if rank == 0:
            address = os.environ["HEADWAY_ADDRESS"]
            # Port 0: a free one. Nobody is waited for: the others do not know it yet.
            store = TCPStore(address, 0, num_workers, True, FORM_TIMEOUT, wait_for_workers=False)
            meeting.set(ADDRESS, join_address(address, store.port))
            return store
        host, port = split_address(meeting.get(ADDRESS).decode())
        return TCPStore(host, port, num_workers, False, FORM_TIMEOUT, wait_for_workers=False)
