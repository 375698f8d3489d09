"""Checkpoints of workers that all restart together: every rank of every copy writes its share."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.state.checkpoints import find_checkpoint
from headway.state.run_directory import RunDirectory
from support.workers import TEN_STEPS, resolved_run, train

pytestmark = pytest.mark.local
TWO_OF_TWO = ("elastic=restart", "resources.accelerators=cpu:2")
RANKS = [f"rank-{rank}.safetensors" for rank in range(4)]


def sizes(directory: RunDirectory) -> list[int]:
    """Bytes that each rank wrote of the newest checkpoint."""
    _, manifest = find_checkpoint(directory)
    assert sorted(manifest.files) == RANKS
    return [manifest.files[name].size for name in RANKS]


def test_two_nodes_of_two_ranks_write_as_much_each_and_any_other_shape_reads_it(
    tmp_path: Path, stream: dict[str, Path]
) -> None:
    """Half of the weights are one embedding."""
    (tmp_path / "run.yaml").write_text(TEN_STEPS)

    def trained(steps: int, nodes: int, *how: str) -> RunDirectory:
        return train(resolved_run(tmp_path, stream, nodes, [f"train_for={steps} steps", *how]))

    replicated = sizes(trained(2, 2, *TWO_OF_TWO, "shard=none"))
    assert max(replicated) <= 1.1 * min(replicated)
    sharded = sizes(trained(4, 2, *TWO_OF_TWO, "shard=node"))
    assert max(sharded) <= 1.1 * min(sharded)
    assert sum(sharded) == pytest.approx(sum(replicated), rel=0.02)
    alone = trained(5, 1)
    starts = [event["resumed_from"] for event in alone.history() if event["event"] == "started"]
    assert starts == [None, 2, 4]
    assert sorted(find_checkpoint(alone)[1].files) == RANKS[:1]
