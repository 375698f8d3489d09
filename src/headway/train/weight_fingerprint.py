"""Fingerprints of the weights, compared between workers every so many steps. Memory and arithmetic
can fail silently, and a worker whose weights differ corrupts the gradients of all."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import lru_cache

import torch
import xxhash

from headway.errors import PeerLost, RunFailed
from headway.train.collectives import WorkerGroup
from headway.train.device import is_accelerator, name_of
from headway.train.fsdp import local_part
from headway.train.step import Training

EVERY_STEPS = 100
PROCESSOR = ("model name", "flags", "CPU implementer", "CPU part", "CPU variant", "Features")
"""Fields of /proc/cpuinfo on x86, then on ARM."""
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FACTOR, _MODULUS = 1_000_003, 2**61 - 1


class Diverged(PeerLost):
    """This worker's weights differ from the majority: it has to restart."""


@torch.no_grad()
def fingerprint(training: Training) -> int:
    """Fingerprint of the weights that this worker holds. Any flipped bit changes it."""
    sums = [
        local_part(parameter).reshape(-1).view(_WORDS[parameter.element_size()]).sum()
        for parameter in training.model.parameters()
    ]
    total = 0
    for part in torch.stack(sums).tolist() if sums else []:  # SYNC
        total = (total * _FACTOR + part) % _MODULUS
    return total


def kind_of(*facts: str) -> int:
    """An id for hardware and software whose arithmetic gives the same bits."""
    return xxhash.xxh3_64_intdigest("\0".join(facts).encode()) >> 2


def processor(cpuinfo: str) -> str:
    """The fields that decide which instructions are used, of the first processor in
    /proc/cpuinfo."""
    lines = cpuinfo.partition("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.partition("\t")[0].strip(": ") in PROCESSOR)


@lru_cache(maxsize=1)
def own_kind(device: torch.device) -> int:
    build = (torch.__version__, str(torch.version.cuda), str(torch.version.hip))
    if is_accelerator(device):
        return kind_of(*build, name_of(device))
    with open("/proc/cpuinfo") as file:
        return kind_of(*build, torch.backends.cpu.get_cpu_capability(), processor(file.read()))


def diverged_ranks(training: Training, replicas: WorkerGroup, kind: int) -> list[int]:
    """COLLECTIVE. Ranks whose weights differ from those of most others of their `kind`: processors
    of another model, or another build of torch, may give other last bits with nothing wrong. Raises
    Diverged if this is one of them, RunFailed if there is no majority."""
    device = next(training.model.parameters()).device
    own = torch.tensor([fingerprint(training), kind], dtype=torch.int64, device=device)
    gathered = torch.stack(replicas.all_gather(own)).tolist()  # SYNC
    found = [(int(value), int(of)) for value, of in gathered]
    usual, is_open = _usual(found)
    odd = [rank for rank, (value, of) in enumerate(found) if value != usual[of]]
    if not odd:
        return []
    with suppress(PeerLost):
        replicas.all_gather(own)  # so that a worker exits only after all have the result
    if is_open:
        raise RunFailed(
            f"workers have different weights at step {training.step}, with no majority that shows "
            f"which are right; they agreed {EVERY_STEPS} steps before"
        )
    if replicas.rank in odd:
        raise Diverged(f"this worker's weights differ from the majority at step {training.step}")
    return odd


def _usual(found: list[tuple[int, int]]) -> tuple[dict[int, int], bool]:
    """From (fingerprint, kind) of each rank: the most frequent fingerprint of each kind, and
    whether one of them has no majority."""
    usual, is_open = {}, False
    for kind in {of for _, of in found}:
        values = [value for value, of in found if of == kind]
        (usual[kind], count), *_ = Counter(values).most_common(1)
        is_open = is_open or 2 * count <= len(values)
    return usual, is_open
