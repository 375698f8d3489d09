"""Windows are all of the documents' tokens with a separator between them, and know their starts."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from headway.data.prepare.recipe import TokenizerFacts
from headway.data.prepare.windows import WindowPacker
from headway.data.reading.verify import verify_set
from headway.data.set_format import SpecialIds
from headway.data.tiny_stories import stories
from headway.state.store import Store
from support.prepared import encoded, job_for, run, tokens_of, write_lines
from support.token_sets import table_of

CLS, SEP = 2, 3
TOKENS = TokenizerFacts(
    digest="",
    vocab_size=400,
    special_ids=SpecialIds(),
    start=CLS,
    separator=SEP,
    unknown=1,
)


@given(
    documents=st.lists(st.lists(st.integers(10, 99), max_size=25), max_size=20),
    cuts=st.lists(st.integers(0, 300), max_size=6),
    window=st.integers(3, 20),
)
def test_the_insides_are_the_documents_whatever_the_chunks(
    documents: list[list[int]], cuts: list[int], window: int
) -> None:
    # Each token as (document, token); chunks may cut anywhere, also inside a document.
    flat = [(number, token) for number, one in enumerate(documents) for token in one]
    bounds = sorted({0, len(flat), *(cut for cut in cuts if cut < len(flat))})
    windows = WindowPacker(TOKENS, window)
    stream: list[int] = []
    starts: list[int] = []
    for begin, end in itertools.pairwise(bounds):
        here: dict[int, list[int]] = {}
        for number, token in flat[begin:end]:
            here.setdefault(number, []).append(token)
        opens = begin > 0 and flat[begin - 1][0] == flat[begin][0]
        packed = windows.add(
            encoded([[], *here.values()] if not opens else [*here.values()]), opens
        )
        assert packed.mask is None
        starts += (packed.starts + len(stream)).tolist()
        stream += packed.tokens.tolist()
    rows = np.array(stream, dtype=np.int64).reshape(-1, window)
    assert (rows[:, 0] == CLS).all()
    assert (rows[:, -1] == SEP).all()
    inside = rows[:, 1:-1].reshape(-1).tolist()
    there = [one for one in documents if one]
    everything = [token for one in there for token in (*one, SEP)][:-1]
    assert inside == everything[: len(inside)]
    assert len(everything) - len(inside) == windows.num_held < window - 2
    assert [stream[start] for start in starts] == [one[0] for one in there][: len(starts)]
    assert starts == sorted(set(starts))
    # All that begin inside a window are found.
    begun = np.cumsum([0, *(len(one) + 1 for one in there)])[: len(there)]
    assert len(starts) == int(np.sum(begun < len(inside)))


@pytest.mark.parametrize("unit_bytes", [2**27, 3_000])
def test_windows_decode_to_the_very_text(
    folder: Path, masked_tokenizer: Path, unit_bytes: int
) -> None:
    told = [*stories(12_000, 1), "Text may spell [SEP], [CLS] and [MASK]. [UNK] ä 🦊"]
    write_lines(folder / "text.jsonl", [{"text": one} for one in told])
    made = run(
        job_for(
            ["text.jsonl"],
            folder / "set",
            masked_tokenizer,
            window_tokens=32,
            unit_bytes=unit_bytes,
        )
    )
    assert verify_set(Store(folder / "set")) == []
    assert made.special_ids.mask == 4
    assert made.special_ids.special == (0, 1, 2, 3, 4)
    tokenizer = Tokenizer.from_file(str(folder / "set" / "tokenizer" / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    left = list(told)
    left_out = 0
    for shard, tokens in zip(table_of(folder / "set"), tokens_of(folder / "set"), strict=True):
        rows = tokens.reshape(-1, 32)
        assert (rows[:, 0] == CLS).all()
        assert (rows[:, -1] == SEP).all()
        inside = rows[:, 1:-1].reshape(-1)
        found = [
            part[part != SEP].tolist() for part in np.split(inside, np.flatnonzero(inside == SEP))
        ]
        starts = np.fromfile(folder / "set" / "shards" / f"{shard.name}.documents", "<u8")
        assert len(starts) == len([part for part in found if part])
        # What begins in a shard ends in it, or is the one whose end is left out.
        for number, (ids, start) in enumerate(zip(found, starts.tolist(), strict=False)):
            whole = tokenizer.encode(left[0], add_special_tokens=False).ids
            assert tokens[start] == whole[0]
            if number + 1 < len(found):
                assert tokenizer.decode(ids, skip_special_tokens=False) == left[0]
            else:
                assert ids == whole[: len(ids)]
                left_out += len(whole) - len(ids)
            left.pop(0)
    assert (made.num_shards > 1) == (unit_bytes < 10_000)
    assert made.num_documents == len(told) - len(left)
    assert left_out <= made.num_tokens_left_out < 30 * made.num_shards
    assert sum(made.statistics.lengths) == len(told), "also those at the end that fill no window"
