from __future__ import annotations

from pathlib import Path

import pytest

from headway.plan.memory import least_bytes, needed_and_present
from headway.spec.load import load_run
from headway.spec.resolve import Machine, Resolved, resolve


def resolved(folder: Path, *overrides: str, nodes: int = 1) -> Resolved:
    (folder / "run.yaml").write_text("version: 1\nname: it\nextends: llama2-7b\n")
    return resolve(
        load_run(folder, ["data.train=prepared", *overrides]),
        Machine(cores=2, cuda_devices=0),
        nodes=nodes,
        parameters=None,
        train_set=folder,
        validation_sets={},
    )


@pytest.mark.parametrize(
    ("overrides", "nodes", "copies"),
    [
        ((), 1, 1),
        ((), 3, 3),
        (("resources.accelerators=cpu:2",), 1, 2),
        (("resources.accelerators=cpu:2", "shard=node"), 3, 3),
    ],
)
def test_every_copy_of_the_state_is_counted(
    tmp_path: Path, overrides: tuple[str, ...], nodes: int, copies: int
) -> None:
    # 6,738,415,616 parameters, as published.
    found = least_bytes(resolved(tmp_path, *overrides, nodes=nodes), nodes)
    assert found == 16 * 6_738_415_616 * copies


def test_in_words(tmp_path: Path) -> None:
    assert needed_and_present(resolved(tmp_path), 1, 23 * 2**30) == (
        "weights, gradients and optimizer state need at least 100.4 GiB; 23.0 GiB is available"
    )
    own = resolved(tmp_path, 'model={call: "mine:net"}')
    assert needed_and_present(own, 1, 2**30) == "1.0 GiB is available"


def test_nodes_elsewhere_take_no_memory_here(tmp_path: Path) -> None:
    three = resolved(tmp_path, nodes=3)
    alone = resolved(tmp_path)
    assert needed_and_present(three, 1, 2**30) == needed_and_present(alone, 1, 2**30)
    assert "state of all 3 workers need at least 301.2 GiB" in needed_and_present(three, 3, 2**30)
