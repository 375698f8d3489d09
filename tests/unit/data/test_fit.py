"""A set that does not fit a run is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headway.data.fit import require_fit
from headway.data.shards import SpecialIds, TokenSet
from headway.data.writer import SetWriter
from headway.errors import BadInput


def made(folder: Path, layout: str) -> TokenSet:
    window = 8 if layout == "windows" else None
    with SetWriter(folder, 100, layout=layout, window_tokens=window) as writer:  # type: ignore[arg-type]
        writer.add(np.arange(64))
        ids = SpecialIds(end_of_text=0, mask=1)
        writer.finish(special_ids=ids, tokenizer_digest="0" * 32, num_bytes=64)
    return TokenSet.open(folder)


@pytest.mark.parametrize("objective", ["causal", "distill"])
def test_windows_are_not_for_models_that_predict_the_next_token(
    tmp_path: Path, objective: str
) -> None:
    with pytest.raises(BadInput, match=f"cut into windows .* the objective is {objective}"):
        require_fit(made(tmp_path, "windows"), objective, 8)


def test_a_stream_is_not_for_masked_models(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="a masked model needs windows") as caught:
        require_fit(made(tmp_path, "stream"), "masked", 8)
    assert "--windows 8" in str(caught.value)


def test_too_little_text_for_one_sample(tmp_path: Path) -> None:
    tokens = made(tmp_path, "stream")
    require_fit(tokens, "causal", 63)
    with pytest.raises(BadInput, match="64 tokens, not enough for one sample of 64"):
        require_fit(tokens, "causal", 64)


def test_an_own_objective_may_use_either(tmp_path: Path) -> None:
    require_fit(made(tmp_path / "a", "windows"), None, 8)
    require_fit(made(tmp_path / "b", "stream"), None, 8)
