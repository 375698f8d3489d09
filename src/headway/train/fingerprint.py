"""Whether all who should have the same weights have them: a sum over their bits, compared now and
then. Memory and arithmetic fail silently; a worker whose weights differ spoils the sums of all."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import lru_cache

import torch
import xxhash

from headway.errors import PeerLost, RunFailed
from headway.train.peers import Peers
from headway.train.shard import local_part
from headway.train.step import Training

EVERY_STEPS = 100
PROCESSOR = ("model name", "flags", "CPU implementer", "CPU part", "CPU variant", "Features")
"""Of x86, then of ARM."""
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


def kind_of(*facts: str) -> int:
    """A number for arithmetic whose results are equal bit by bit."""
    return xxhash.xxh3_64_intdigest("\0".join(facts).encode()) >> 2


def processor(cpuinfo: str) -> str:
    """What decides which instructions are used, of the first processor in /proc/cpuinfo."""
    lines = cpuinfo.partition("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.partition("\t")[0].strip(": ") in PROCESSOR)


@lru_cache(maxsize=1)
def own_kind(device: torch.device) -> int:
    build = (torch.__version__, str(torch.version.cuda), str(torch.version.hip))
    if device.type == "cuda":
        return kind_of(*build, torch.cuda.get_device_name(device))
    with open("/proc/cpuinfo") as file:
        return kind_of(*build, torch.backends.cpu.get_cpu_capability(), processor(file.read()))


def odd_ones(training: Training, peers: Peers, kind: int) -> list[int]:
    """COLLECTIVE. Ranks whose weights differ from those of most others of their `kind`: processors
    of another model, or another build of torch, may give other last bits with nothing wrong. Raises
    Diverged if this is one of them, RunFailed if nobody can tell which weights are right."""
    own = torch.tensor([fingerprint(training), kind], dtype=torch.int64)
    found = [(int(value), int(of)) for value, of in (part.tolist() for part in peers.gather(own))]
    usual, is_open = _usual(found)
    odd = [rank for rank, (value, of) in enumerate(found) if value != usual[of]]
    if not odd:
        return []
    with suppress(PeerLost):
        peers.gather(own)  # whoever goes away now does so after all have heard of it
    if is_open:
        raise RunFailed(
            f"at step {training.step} workers have different weights, and nobody can tell whose "
            f"are right; they agreed {EVERY_STEPS} steps before"
        )
    if peers.rank in odd:
        raise Diverged(f"at step {training.step} this worker's weights are not those of the others")
    return odd


def _usual(found: list[tuple[int, int]]) -> tuple[dict[int, int], bool]:
    """Of (fingerprint, kind): the most frequent fingerprint of each kind, and whether one of them
    is not that of most."""
    usual, is_open = {}, False
    for kind in {of for _, of in found}:
        values = [value for value, of in found if of == kind]
        (usual[kind], count), *_ = Counter(values).most_common(1)
        is_open = is_open or 2 * count <= len(values)
    return usual, is_open
