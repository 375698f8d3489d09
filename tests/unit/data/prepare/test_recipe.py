"""Equal recipes are known again, every difference has a name, and units divide the sources."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data.formats.chunks import Problem
from headway.data.prepare.columns import template_columns
from headway.data.prepare.recipe import (
    Recipe,
    RecipeSettings,
    SourceUnit,
    TokenizerFacts,
    differences,
    parts_for,
    read_recipe,
    source_units,
    units_of_part,
)
from headway.data.prepare.sources import SourceFile
from headway.data.set_format import SpecialIds
from headway.errors import BadInput
from headway.spec.data_config import UnmaskConfig
from headway.state.store import Store

TOKENS = TokenizerFacts(
    digest="1",
    vocab_size=400,
    special_ids=SpecialIds(end_of_text=0, special=(0,)),
    start=None,
    separator=None,
    unknown=None,
)


def file(name: str, size: int = 10, fingerprint: str = "f", num_parts: int = 1) -> SourceFile:
    return SourceFile(name=name, size=size, fingerprint=fingerprint, num_parts=num_parts)


def recipe(*files: SourceFile, **settings: Any) -> Recipe:
    return Recipe(
        settings=RecipeSettings(**settings),
        tokens=TOKENS,
        files=files or (file("a.txt"), file("b.txt")),
        beside="/here",
    )


# --- the same or not


def test_where_things_are_is_not_part_of_the_digest() -> None:
    one = recipe()
    moved = one.model_copy(
        update={
            "beside": "/there",
            "code": "/code",
            "anonymous": True,
            "left_out": (Problem("unknown suffix", "notes.pdf", None, "no"),),
        }
    )
    assert moved.digest == one.digest
    assert differences(one, moved) == []


OTHER_SETTINGS: dict[str, Any] = {
    "layout": "windows",
    "window_tokens": 8,
    "column": "body",
    "template": "{a}",
    "messages": "m",
    "transform": "a:b",
    "code_digest": "c",
    "ids": "i",
    "mask": "m",
    "unmask": UnmaskConfig(positions="p", ids="t"),
    "train_vocab": 7,
    "deduplicate": True,
    "hold_out": 0.1,
    "side": "held_out",
    "in_sequence": True,
    "unit_bytes": 7,
    "first_bytes": 7,
    "block_tokens": 7,
    "window_blocks": 7,
}


def test_every_setting_is_tried_here() -> None:
    assert OTHER_SETTINGS.keys() == RecipeSettings.model_fields.keys()


@pytest.mark.parametrize("name", OTHER_SETTINGS)
def test_every_setting_makes_another_set_and_is_named(name: str) -> None:
    one, other = recipe(), recipe(**{name: OTHER_SETTINGS[name]})
    assert one.digest != other.digest
    was = getattr(one.settings, name)
    assert differences(one, other) == [f"{name}: {OTHER_SETTINGS[name]}, was {was}"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([file("a.txt"), file("b.txt", size=11)], ["b.txt: has changed"]),
        ([file("a.txt", fingerprint="g"), file("b.txt")], ["a.txt: has changed"]),
        ([file("a.txt")], ["b.txt: is missing"]),
        ([file("a.txt"), file("b.txt"), file("c.txt")], ["c.txt: is new"]),
        ([file("b.txt"), file("a.txt")], ["the order of the files has changed"]),
    ],
)
def test_every_change_of_files_makes_another_set_and_is_named(
    files: list[SourceFile], said: list[str]
) -> None:
    assert recipe(*files).digest != recipe().digest
    assert differences(recipe(), recipe(*files)) == said


def test_differences_are_named_in_one_order() -> None:
    names = [f"{number}.txt" for number in range(30)]
    many = recipe(*map(file, names))
    assert differences(recipe(), many)[:30] == [f"{name}: is new" for name in sorted(names)]
    gone = differences(many, recipe())
    assert gone[2:] == [f"{name}: is missing" for name in sorted(names)]


@pytest.mark.parametrize("change", [{"digest": "2"}, {"vocab_size": 401}, {"unknown": 3}], ids=str)
def test_another_tokenizer_makes_another_set_and_is_named(change: dict[str, Any]) -> None:
    other = recipe().model_copy(update={"tokens": TOKENS.model_copy(update=change)})
    assert other.digest != recipe().digest
    assert differences(recipe(), other) == ["the tokenizer has changed"]


def test_a_recipe_is_read_back(tmp_path: Any) -> None:
    store = Store(tmp_path)
    assert read_recipe(store) is None
    one = recipe(hold_out=0.1, window_tokens=8, layout="windows")
    one = one.model_copy(update={"left_out": (Problem("k", "f", 3, "m"),)})
    one.save(store)
    assert read_recipe(store) == one
    (tmp_path / "recipe.json").write_text("{")
    with pytest.raises(BadInput, match=r"recipe\.json"):
        read_recipe(store)


# --- units

sizes = st.lists(
    st.tuples(st.integers(0, 3000), st.sampled_from(["txt", "jsonl", "csv", "jsonl.gz", "hub"])),
    min_size=1,
    max_size=20,
)


def units(drawn: list[tuple[int, str]], unit_bytes: int) -> list[SourceUnit]:
    files = [
        file(f"hub:{number}", 0, num_parts=size % 5 + 1)
        if kind == "hub"
        else file(f"{number}.{kind}", size)
        for number, (size, kind) in enumerate(drawn)
    ]
    return source_units(recipe(*files, unit_bytes=unit_bytes))


@given(drawn=sizes, unit_bytes=st.integers(1, 2000))
def test_units_are_all_of_the_sources_in_order_and_of_even_size(
    drawn: list[tuple[int, str]], unit_bytes: int
) -> None:
    found = units(drawn, unit_bytes)
    assert [unit.number for unit in found] == list(range(len(found)))
    assert sum(unit.num_bytes for unit in found) == sum(s for s, kind in drawn if kind != "hub")
    pieces = [piece for unit in found for piece in unit.ranges]
    for number, (size, kind) in enumerate(drawn):
        mine = [piece for piece in pieces if piece.file.startswith((f"{number}.", f"hub:{number}"))]
        mine = [piece for piece in mine if piece.file in (f"{number}.{kind}", f"hub:{number}")]
        if kind == "hub":
            assert [piece.part or 0 for piece in mine] == list(range(size % 5 + 1))
            continue
        # Each byte is in exactly one piece; only what can be cut is.
        assert mine[0].begin == 0
        assert mine[-1].end is None
        assert [one.end for one in mine[:-1]] == [one.begin for one in mine[1:]]
        assert len(mine) == 1 or kind in ("txt", "jsonl")
    in_order = [int(piece.file.removeprefix("hub:").split(".")[0]) for piece in pieces]
    assert in_order == sorted(in_order)
    for unit in found:
        assert len({piece.file for piece in unit.ranges}) == len(unit.ranges)
        if len(unit.ranges) > 1:
            assert unit.num_bytes <= unit_bytes
        elif unit.ranges[0].file.endswith(("txt", "jsonl")):
            assert unit.num_bytes <= 1.5 * unit_bytes + 1


def test_small_files_share_a_unit() -> None:
    found = units([(100, "txt"), (100, "csv"), (100, "jsonl.gz"), (900, "csv")], 1000)
    assert [len(unit.ranges) for unit in found] == [3, 1]
    assert found[0].name == "0.txt and 2 more"
    assert units([(3000, "txt")], 1000)[1].name == "0.txt from byte 1000"


def test_the_first_units_hold_as_much_as_is_asked_for() -> None:
    files = [file(f"{number}.txt", 100) for number in range(5)]
    for first_bytes, number in ((1, 1), (100, 1), (101, 2), (450, 5), (9999, 5)):
        found = source_units(recipe(*files, unit_bytes=100, first_bytes=first_bytes))
        assert found == source_units(recipe(*files, unit_bytes=100))[:number]
    hub = source_units(recipe(file("hub:x", 0, num_parts=9), unit_bytes=100, first_bytes=250))
    assert len(hub) == 3, "a part whose size is not known counts as a whole unit"


@given(num_units=st.integers(1, 200), num_parts=st.integers(1, 40), nodes=st.integers(1, 12))
def test_parts_that_run_together_take_a_stretch_of_units_in_turn(
    num_units: int, num_parts: int, nodes: int
) -> None:
    parts = [units_of_part(num_units, part, num_parts, nodes) for part in range(num_parts)]
    for first in range(0, num_parts, nodes):
        together = [unit for part in parts[first : first + nodes] for unit in part]
        assert len(together) <= -(-num_units * nodes // num_parts) + nodes
        begin = parts[first].start
        assert sorted(together) == list(range(begin, begin + len(together)))
        firsts = [part[0] for part in parts[first : first + nodes] if part]
        assert firsts == list(range(begin, begin + len(firsts)))
    assert sorted(unit for part in parts for unit in part) == list(range(num_units))


@pytest.mark.parametrize(
    ("num_files", "file_bytes", "nodes", "num_parts"),
    [
        (10**5, 4 * 10**8, 4, 80),
        (10**5, 4 * 10**8, 512, 10_240),
        (100, 10**8, 4, 4),
        (100, 10**9, 4, 44),
        (5, 10**10, 4, 4),
        (3, 10**5, 4, 1),
    ],
    ids=["40 TB", "many nodes", "10 GB", "100 GB", "few large files", "a little"],
)
def test_parts_are_many_for_a_long_preparation_and_few_for_a_short_one(
    num_files: int, file_bytes: int, nodes: int, num_parts: int
) -> None:
    found = units([(file_bytes, "parquet")] * num_files, 2**27)
    assert parts_for(found, nodes, 2**27) == num_parts


# --- columns


@pytest.mark.parametrize(
    ("settings", "columns"),
    [
        ({}, ("text",)),
        ({"column": "body"}, ("body",)),
        ({"template": "{b} and {a}, {b}!"}, ("b", "a")),
        ({"messages": "m"}, ("m",)),
        ({"ids": "i"}, ("i",)),
        ({"ids": "i", "mask": "m"}, ("i", "m")),
        ({"transform": "a:b"}, None),
    ],
    ids=str,
)
def test_only_the_columns_that_are_needed_are_read(
    settings: dict[str, Any], columns: tuple[str, ...] | None
) -> None:
    assert RecipeSettings(**settings).columns == columns


@pytest.mark.parametrize("template", ["", "words", "{}", "{{a}}", "{a", "a}"])
def test_an_invalid_template_is_refused(template: str) -> None:
    with pytest.raises(BadInput, match="template"):
        template_columns(template)
