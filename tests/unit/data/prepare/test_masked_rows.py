"""Token ids of BERT's files become the windows that their text would have made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tokenizers import Tokenizer

from headway.data.prepare.columns import BadRecord
from headway.data.prepare.manifest import read_problems
from headway.data.prepare.masked_rows import MaskedRows
from headway.data.prepare.recipe import RecipeSettings, TokenizerFacts
from headway.data.set_format import SpecialIds
from headway.data.tiny_stories import stories
from headway.errors import BadInput
from headway.spec.data_config import UnmaskConfig
from headway.state.store import Store
from support.bert_files import CLS, MASK, PAD, SEP, UNMASK, write_bert_file
from support.prepared import job_for, run, tokens_of, write_lines

STORIES = [one[:400] for one in stories(60_000, 3)][:60]
COLUMNS = UnmaskConfig(**UNMASK)
FACTS = TokenizerFacts(
    digest="",
    vocab_size=400,
    special_ids=SpecialIds(mask=MASK, special=(PAD, 1, CLS, SEP, MASK)),
    start=CLS,
    separator=SEP,
    unknown=1,
)
ROWS = MaskedRows(FACTS, COLUMNS)


def ids_of(tokenizer: Path, texts: list[str]) -> list[list[int]]:
    loaded = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    return [loaded.encode(text, add_special_tokens=False).ids for text in texts]


@pytest.fixture
def bert(folder: Path, masked_tokenizer: Path) -> Path:
    """A folder with a file of BERT's, and the text it is made of."""
    documents = ids_of(masked_tokenizer, STORIES)
    pairs = list(zip(documents[::2], documents[1::2], strict=True))
    write_bert_file(folder / "bert.hdf5", pairs, length=512, vocab=400, predictions=80)
    write_lines(folder / "text.jsonl", [{"text": story} for story in STORIES])
    return folder


def windows(folder: Path, source: str, tokenizer: Path, tokens: int, **settings: Any) -> np.ndarray:
    into = folder / f"{source}-{tokens}"
    run(job_for([source], into, tokenizer, window_tokens=tokens, **settings))
    return np.asarray(tokens_of(into)).reshape(-1, tokens)


@pytest.mark.parametrize("tokens", [128, 512])
def test_both_phases_are_made_of_one_file_and_equal_those_of_its_text(
    bert: Path, masked_tokenizer: Path, tokens: int
) -> None:
    made = windows(bert, "bert.hdf5", masked_tokenizer, tokens, ids="input_ids", unmask=COLUMNS)
    assert len(made) > 2
    assert (made == windows(bert, "text.jsonl", masked_tokenizer, tokens)).all()


def test_a_file_that_is_masked_and_cannot_be_unmasked_is_refused(
    bert: Path, masked_tokenizer: Path
) -> None:
    with pytest.raises(
        BadInput, match=r"bert\.hdf5, row 1: \d+ of 512 tokens are \[MASK\]"
    ) as said:
        windows(bert, "bert.hdf5", masked_tokenizer, 128, ids="input_ids")
    assert "unmask: {positions: masked_lm_positions, ids: masked_lm_ids}" in (said.value.hint or "")
    assert not (bert / "bert.hdf5-128" / "manifest.json").exists()


def test_damaged_rows_are_left_out_and_named(bert: Path, masked_tokenizer: Path) -> None:
    with h5py.File(bert / "bert.hdf5", "r+") as file:
        file["masked_lm_positions"][1, 0] = 512
        file["masked_lm_ids"][2, 0] = 400
        masked = np.flatnonzero(file["input_ids"][3] == MASK)
        gone = file["masked_lm_positions"][3] == masked[0]
        file["masked_lm_positions"][3, gone] = masked[1]
        file["input_ids"][4, 5] = -1
    windows(bert, "bert.hdf5", masked_tokenizer, 128, ids="input_ids", unmask=COLUMNS)
    problems = read_problems(Store(bert / "bert.hdf5-128"))
    assert [(one.line, one.kind) for one in problems] == [
        (2, "position outside the row"),
        (3, "id outside the vocabulary"),
        (4, "still masked"),
        (5, "id outside the vocabulary"),
    ]
    assert problems[0].message == "512; the row has 512 tokens"


def test_a_column_of_another_number_of_rows_is_refused(bert: Path, masked_tokenizer: Path) -> None:
    with h5py.File(bert / "bert.hdf5", "r+") as file:
        kept = file["masked_lm_ids"][:-1]
        del file["masked_lm_ids"]
        file["masked_lm_ids"] = kept
    with pytest.raises(BadInput, match="mask of another shape"):
        windows(bert, "bert.hdf5", masked_tokenizer, 128, ids="input_ids", unmask=COLUMNS)


def test_a_whole_row_is_on_one_side(bert: Path, masked_tokenizer: Path) -> None:
    """Of what is held out: its pieces follow each other in the text."""
    sides = [
        windows_of_side(bert, masked_tokenizer, side=side, hold_out=0.4)
        for side in ("train", "held_out")
    ]
    assert sum(sides) == len(STORIES) // 2
    assert all(sides)


def windows_of_side(folder: Path, tokenizer: Path, **settings: Any) -> int:
    made = run(
        job_for(
            ["bert.hdf5"],
            folder / settings["side"],
            tokenizer,
            window_tokens=32,
            ids="input_ids",
            unmask=COLUMNS,
            **settings,
        )
    )
    return made.num_documents


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ([CLS, 10, 11, SEP, 12, SEP, PAD, PAD], [10, 11, SEP, 12]),
        ([CLS, 10, SEP], [10]),
        ([10, 11], [10, 11]),
        ([CLS, 10, 1], [10, 1]),  # [UNK] is text
        ([CLS, 10, SEP, SEP, 11, SEP], [10, SEP, 11]),
        ([CLS, SEP, SEP, PAD], []),
        ([PAD, PAD], []),
        ([], []),
    ],
)
def test_what_is_left_of_a_row(row: list[int], text: list[int]) -> None:
    assert ROWS.text_of(np.array(row, np.int64)).tolist() == text


def test_positions_after_the_last_are_zero() -> None:
    record = {"masked_lm_positions": [2, 1, 0, 0], "masked_lm_ids": [12, 11, 0, 0]}
    row = np.array([CLS, MASK, MASK, SEP])
    assert ROWS.unmasked(row, record).tolist() == [CLS, 11, 12, SEP]
    assert row.tolist() == [CLS, MASK, MASK, SEP], "the source is not changed"


@pytest.mark.parametrize(
    ("positions", "ids", "kind"),
    [
        ([1], [11, 12], "positions of another length"),
        ([-1], [11], "position outside the row"),
        ([1.0], [11], "not token ids"),
        ([[1]], [11], "not token ids"),
        ([1], ["a"], "not token ids"),
    ],
)
def test_what_cannot_be_unmasked(positions: Any, ids: Any, kind: str) -> None:
    record = {"masked_lm_positions": positions, "masked_lm_ids": ids}
    with pytest.raises(BadRecord) as bad:
        ROWS.unmasked(np.array([CLS, MASK, SEP]), record)
    assert bad.value.kind == kind
    with pytest.raises(BadRecord, match="no column `masked_lm_ids`"):
        ROWS.unmasked(np.array([CLS, MASK, SEP]), {"masked_lm_positions": [1]})


def test_recipes_without_the_key_are_as_earlier_versions_wrote_them() -> None:
    assert "unmask" not in RecipeSettings(ids="i").model_dump()
    assert RecipeSettings(unmask=COLUMNS).model_dump()["unmask"] == UNMASK
    assert RecipeSettings.model_validate({"ids": "i"}).unmask is None
