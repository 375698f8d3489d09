"""The presets are the published models: parameter counts as plain numbers, no torch needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import headway.spec
from headway.plan.model_size import model_size
from headway.spec.load import load_run

FOLDER = Path(headway.spec.__file__).parent / "presets"

PARAMETERS = {
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "distilgpt2": 81_912_576,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "qwen3-0.6b": 596_049_920,
}
TOKENS_PER_BATCH = {
    "gpt2-small": 2**19,
    "gpt2-medium": 2**19,
    "gpt2-large": 2**19,
    "gpt2-xl": 2**20,
    "bert-base": 2**17,
    "bert-large": 2**19,
    "llama2-7b": 2**22,
    "llama2-13b": 2**22,
    "llama2-70b": 2**22,
    "llama3-8b": 2**22,
    "qwen3-0.6b": 2**19,
}
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def test_no_preset_without_a_published_count() -> None:
    assert set(NAMES) == {*PARAMETERS, "tiny"}


@pytest.mark.parametrize("name", PARAMETERS)
def test_published_parameter_counts(name: str) -> None:
    model = read(name)["model"]
    size = model_size(model["type"], model["config"])
    assert size is not None
    assert size.parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", TOKENS_PER_BATCH)
def test_published_batches(name: str) -> None:
    preset = read(name)
    tokens = preset["batch"]["global"] * preset["data"]["sequence_length"]
    assert tokens == TOKENS_PER_BATCH[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_a_valid_run_file_and_says_its_source(name: str) -> None:
    text = (FOLDER / f"{name}.yaml").read_text()
    assert text.startswith("# ")
    assert max(map(len, text.splitlines())) <= 100
    run = load_run(name).run
    assert run.name is None
    assert (run.data.train is None) == (name != "tiny")
    # Dropout decides the result, so no preset leaves it to a default that may change.
    assert any("dropout" in key or "pdrop" in key for key in read(name)["model"]["config"])


@pytest.mark.parametrize("name", NAMES)
def test_the_sequences_fit_the_models_positions(name: str) -> None:
    preset = read(name)
    config = preset["model"]["config"]
    positions = config.get("n_positions", config.get("max_position_embeddings"))
    assert preset["data"]["sequence_length"] <= positions
    assert preset["objective"] == ("masked" if "bert" in name else preset["objective"])


def test_tiny_takes_its_vocabulary_from_the_tokenizer() -> None:
    tiny = read("tiny")
    vocab = tiny["data"]["train"]["tokenizer"]["train"]["vocab"]
    assert "vocab_size" not in tiny["model"]["config"]
    size = model_size("gpt2", {**tiny["model"]["config"], "vocab_size": vocab})
    assert size is not None
    assert size.parameters == 560_640
    # More than one micro-batch: with a single one, a second worker would have nothing to do.
    assert tiny["batch"]["global"] == 4 * tiny["batch"]["micro"]
