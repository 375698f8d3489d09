"""A device that failed is told from what a run does to one that works, by its driver's words."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from headway.train.broken_device import broken_device
from headway.train.collectives import forming_group, is_lost_peer

MORE = "\nCUDA kernel errors might be asynchronously reported at some other API call."
NCCL = "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error, NCCL version 2.27.7\nLast error:\n"


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: uncorrectable ECC error encountered",
        "CUDA error: uncorrectable NVLink error detected during the execution",
        "CUDA error: unspecified launch failure",
        "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
        "CUDA error: unknown error",
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    ],
)
def test_a_device_that_failed_is_named_in_the_words_of_its_driver(words: str) -> None:
    assert broken_device(torch.AcceleratorError(f"{words}{MORE}")) == words


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError(f"CUDA error: device-side assert triggered{MORE}"),
        torch.AcceleratorError(f"CUDA error: an illegal memory access was encountered{MORE}"),
        torch.AcceleratorError(f"CUDA error: out of memory{MORE}"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
        ValueError("uncorrectable ECC error encountered"),
    ],
)
def test_what_a_run_does_by_itself_is_no_broken_device(error: Exception) -> None:
    assert broken_device(error) is None


def test_nccl_tells_of_this_workers_device_and_not_of_another_worker() -> None:
    words = "Cuda failure 214 'uncorrectable ECC error encountered'"
    error = dist.DistBackendError(f"{NCCL}{words}")
    assert broken_device(error) == words
    assert not is_lost_peer(error)
    with pytest.raises(dist.DistBackendError), forming_group():
        raise error
