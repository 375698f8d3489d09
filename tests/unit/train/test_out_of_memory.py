"""Memory that runs out, as the allocators say it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headway.spec.resolve import Resolved
from headway.train.out_of_memory import out_of_memory
from support.workers import resolved_run


@pytest.fixture
def resolved(tmp_path: Path) -> Resolved:
    (tmp_path / "run.yaml").write_text(
        "version: 1\nname: it\nmodel: {type: gpt2}\ndata: {train: prepared}\nbatch: {global: 4}\n"
    )
    return resolved_run(tmp_path, {"train": tmp_path}, 1)


def test_the_cpus_allocator_says_what_it_lacks(resolved: Resolved) -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**15)
    found = out_of_memory(caught.value, resolved, None)
    assert found is not None
    assert found.message.startswith("out of memory while building the model: DefaultCPUAllocator")
    assert "you tried to allocate 4000000000000000 bytes" in found.message
    assert "; weights, gradients and optimizer state need at least 1.4 GiB; " in found.message
    assert "--set batch.micro=2 " in (found.hint or "")


def test_a_pod_has_one_node_of_its_run(
    resolved: Resolved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = resolved.model_copy(update={"nodes": 3})
    here = out_of_memory(MemoryError(), three, 7)
    assert here is not None
    assert "state of all 3 workers need at least 4.3 GiB" in here.message
    monkeypatch.setenv("HEADWAY_POD_UID", "a-uid")
    in_pod = out_of_memory(MemoryError(), three, 7)
    assert in_pod is not None
    assert "optimizer state need at least 1.4 GiB" in in_pod.message


def test_a_gpus_allocator_and_pythons(resolved: Resolved) -> None:
    words = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15 GiB"
    found = out_of_memory(torch.OutOfMemoryError(f"{words}\nmore"), resolved, 7)
    assert found is not None
    assert found.message == f"out of memory in step 7: {words}"
    assert out_of_memory(MemoryError(), resolved, 7) is not None
    assert out_of_memory(RuntimeError("shapes do not match"), resolved, 7) is None
