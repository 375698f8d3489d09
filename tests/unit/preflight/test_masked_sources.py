"""`check` refuses columns of masks that do not go with the objective, where they are written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headway.preflight.preflight import preflight
from headway.spec.load import load_run

RUN = """\
version: 1
model: {type: %s}
objective: %s
batch: {global: 8}
data:
  sequence_length: 64
  train:
    sources: [ids.npy]
    tokenizer: {from: ./tokenizer}
    ids: input_ids
    %s
"""
UNMASK = "unmask: {positions: p, ids: t}"


@pytest.mark.parametrize(
    ("model", "objective", "key", "problem"),
    [
        ("gpt2", "causal", UNMASK, "data.train.unmask is for a masked model: the objective is"),
        ("bert", "masked", "mask: m", "data.train.mask: which tokens of a masked model count"),
        ("bert", "masked", UNMASK, None),
        ("gpt2", "causal", "mask: m", None),
    ],
)
def test_masks_and_objectives(
    tmp_path: Path, model: str, objective: str, key: str, problem: str | None
) -> None:
    np.save(tmp_path / "ids.npy", np.arange(10))
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    (tmp_path / "run.yaml").write_text(RUN % (model, objective, key))
    problems = [
        one for one in preflight(load_run(tmp_path / "run.yaml")).problems if "mask" in one.problem
    ]
    if problem is None:
        assert problems == []
        return
    (refusal,) = problems
    assert refusal.problem.startswith(problem)
    assert refusal.position[1:] == (11, 5)
