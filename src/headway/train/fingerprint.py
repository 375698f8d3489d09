"""Whether all who should have the same weights have them: a sum over their bits, compared now and
then. Memory and arithmetic fail silently; a worker whose weights differ spoils the sums of all."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import torch

from headway.errors import PeerLost, RunFailed
from headway.train.peers import Peers
from headway.train.shard import local_part
from headway.train.step import Training

EVERY_STEPS = 100
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FACTOR, _MODULUS = 1_000_003, 2**61 - 1


class Diverged(PeerLost):
    """This worker's weights are not those of the others. It is of no use to them, and has to start
    again."""


@torch.no_grad()
def fingerprint(training: Training) -> int:
    """Of the weights that this worker holds. Any one bit that is another makes it another."""
    sums = [
        local_part(parameter).reshape(-1).view(_WORDS[parameter.element_size()]).sum()
        for parameter in training.model.parameters()
    ]
    total = 0
    for part in torch.stack(sums).tolist() if sums else []:  # SYNC
        total = (total * _FACTOR + part) % _MODULUS
    return total


def odd_ones(training: Training, peers: Peers) -> list[int]:
    """COLLECTIVE. Ranks whose weights differ from those of most. Raises Diverged if this is one of
    them, RunFailed if nobody can tell which weights are right."""
    own = torch.tensor([fingerprint(training)], dtype=torch.int64)
    found = [int(part.item()) for part in peers.gather(own)]
    (usual, count), *_ = Counter(found).most_common(1)
    if count == peers.size:
        return []
    with suppress(PeerLost):
        peers.gather(own)  # whoever goes away now does so after all have heard of it
    if 2 * count <= peers.size:
        raise RunFailed(
            f"at step {training.step} workers have different weights, and nobody can tell whose "
            f"are right; they agreed {EVERY_STEPS} steps before"
        )
    odd = [rank for rank, value in enumerate(found) if value != usual]
    if peers.rank in odd:
        raise Diverged(f"at step {training.step} this worker's weights are not those of the others")
    return odd
