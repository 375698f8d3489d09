"""A set that does not fit a run is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.data.reading.compatibility import require_fit, require_same_tokenizer
from headway.data.reading.sample_set import SampleSet, open_set
from headway.data.set_format import SpecialIds
from headway.errors import BadInput
from headway.state.store import Store
from support.token_sets import write_set


def made(folder: Path, layout: str) -> SampleSet:
    window = 8 if layout == "windows" else None
    ids = SpecialIds(end_of_text=0, mask=1)
    write_set(folder, [(range(64), None)], window_tokens=window, special_ids=ids)
    return open_set(Store(folder))


@pytest.mark.parametrize("objective", ["causal", "distill"])
def test_windows_are_not_for_models_that_predict_the_next_token(
    tmp_path: Path, objective: str
) -> None:
    with pytest.raises(BadInput, match=f"prepared as windows .* the objective is {objective}"):
        require_fit(made(tmp_path, "windows"), objective, 8)


def test_a_stream_is_not_for_masked_models(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the objective masked needs windows") as caught:
        require_fit(made(tmp_path, "stream"), "masked", 8)
    assert "--windows 8" in str(caught.value)


def test_a_held_out_set_of_another_tokenizer(tmp_path: Path) -> None:
    train, other = made(tmp_path / "train", "stream"), made(tmp_path / "other", "stream")
    require_same_tokenizer(train, other)
    (tmp_path / "other/manifest.json").write_text(
        (tmp_path / "other/manifest.json").read_text().replace(train.tokenizer_digest, "0" * 32)
    )
    with pytest.raises(BadInput, match="prepared with another tokenizer than") as caught:
        require_same_tokenizer(train, open_set(Store(tmp_path / "other")))
    assert f"--tokenizer {train.tokenizer_folder}" in str(caught.value.hint)


def test_too_little_text_for_one_sample(tmp_path: Path) -> None:
    samples = made(tmp_path, "stream")
    require_fit(samples, "causal", 63)
    with pytest.raises(BadInput, match="64 tokens, too few for one sample of 64"):
        require_fit(samples, "causal", 64)


def test_an_own_objective_may_use_either(tmp_path: Path) -> None:
    require_fit(made(tmp_path / "a", "windows"), None, 8)
    require_fit(made(tmp_path / "b", "stream"), None, 8)
