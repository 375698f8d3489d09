"""The process groups of a restart world, and the files that their connections take."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from headway.errors import BadInput
from headway.train.file_limit import raise_file_limit
from headway.train.world import WorldShape, form_world


@pytest.mark.parametrize(
    ("shape", "mesh", "sizes"),
    [
        (WorldShape(8, 4, None), {}, [32]),
        (WorldShape(8, 4, 0), {"shard": 32}, [32]),
        (WorldShape(1, 4, 1), {"shard": 4}, [4]),
        (WorldShape(8, 4, 1), {"replica": 8, "shard": 4}, [32, 8, 4]),
        (WorldShape(8, 4, 2), {"replica": 4, "shard": 8}, [32, 4, 8]),
    ],
)
def test_one_copy_of_the_model_has_the_group_of_all_and_no_other(
    shape: WorldShape, mesh: dict[str, int], sizes: list[int]
) -> None:
    assert shape.mesh == mesh
    assert shape.group_sizes == sizes


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    limits = [(64, 300)]
    monkeypatch.setattr("resource.getrlimit", lambda _: limits[-1])
    monkeypatch.setattr("resource.setrlimit", lambda _, new: limits.append(new))
    return limits


def test_the_limit_of_open_files_is_raised_as_far_as_needed(limits: list[tuple[int, int]]) -> None:
    raise_file_limit(40, 40)
    assert limits == [(64, 300), (296, 300)]


def test_a_world_that_has_more_connections_than_open_files_is_refused_by_name(
    limits: list[tuple[int, int]],
) -> None:
    """Before anybody waits in it."""
    with pytest.raises(BadInput, match=r"36 workers needs 305 open files .* allows 300"):
        form_world(
            rank=0,
            shape=WorldShape(9, 4, 1),
            device=torch.device("cpu"),
            store=HashStore(),
            generation=1,
        )
