"""YAML with positions, and one file over another."""

from __future__ import annotations

import pytest

from headway.errors import SpecError
from headway.spec.key_suggestions import key_paths
from headway.spec.located_yaml import CHOICES, Located, merge, read_yaml
from headway.spec.run_file import RunFile

TEXT = """\
# a comment
version: 1
model:
  type: gpt2
  config: {n_layer: 2}
track: [one,
  two]
"""


def where(located: Located, *path: str | int) -> str:
    return str(located.mark(path))


def over(base: str, above: str) -> Located:
    return merge(read_yaml(base, "base"), read_yaml(above, "over"))


def test_every_key_and_value_knows_its_place() -> None:
    located = read_yaml(TEXT, "run.yaml")
    assert where(located) == "run.yaml:2:1"
    assert where(located, "version") == "run.yaml:2:1"
    assert where(located, "model", "type") == "run.yaml:4:3"
    assert where(located, "model", "config", "n_layer") == "run.yaml:5:12"
    assert where(located, "track", 1) == "run.yaml:7:3"
    assert where(located, "model", "config", "n_head") == "run.yaml:5:3", "the nearest above it"


def test_an_empty_file_has_a_place_too() -> None:
    located = read_yaml("# nothing yet\n", "run.yaml")
    assert located.value == {}
    assert where(located, "version") == "run.yaml:1:1"


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("a: 1\nb: 2\na: 3\n", "f:3:1", "key 'a' is given twice (first in line 1)"),
        ("m:\n  x: 1\n  x: 2\n", "f:3:3", "key 'x' is given twice (first in line 2)"),
        ("a: 1\n5: 2\n", "f:2:1", "key 5 is not a word"),
        ("true: 2\n", "f:1:1", "key true is not a word"),
        ("null: 2\n", "f:1:1", "key null is not a word"),
        ("? [a]\n: 2\n", "f:1:3", "is not a word"),
        ("a: [1, 2\nb: 3\n", "f:2:2", "not valid YAML"),
        ("a:\n\t- 1\n", "f:2:1", "not valid YAML"),
        ("a: 1\n---\nb: 2\n", "f:2:1", "not valid YAML"),
        ("a: *nowhere\n", "f:1:4", "not valid YAML"),
        ("a: !!python/object:os.system x\n", "f:1:4", "not valid YAML"),
        ("a: 1\nseed: !!int abc\n", "f:2:7", "not valid YAML"),
        ("a: 1\nb: \x00\n", "f:2:4", "not valid YAML"),
        ("a: 1\n<<: {b: 2}\n", "f:2:1", "`<<` is not read here"),
        ("a: &x {b: *x}\n", "f", "an anchor that contains itself"),
    ],
)
def test_what_is_no_run_file_is_refused_where_it_stands(text: str, place: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_yaml(text, "f")
    assert caught.value.where == place
    assert says in caught.value.problem


def test_only_true_and_false_are_booleans() -> None:
    located = read_yaml("a: [true, True, false, False]\nb: [yes, no, on, off, y, TRUE]\n", "f")
    assert located.value["a"] == [True, True, False, False]
    assert located.value["b"] == ["yes", "no", "on", "off", "y", "TRUE"]


def test_anchors_may_be_used() -> None:
    assert read_yaml("a: &x [1, 2]\nb: *x\n", "f").value == {"a": [1, 2], "b": [1, 2]}


def test_mappings_merge_and_lists_are_replaced() -> None:
    merged = over(
        "optimizer: {lr: 1, betas: [0.9, 0.95]}\nseed: 1\n",
        "optimizer: {betas: [0.8, 0.9]}\nname: x\n",
    )
    assert merged.value == {"optimizer": {"lr": 1, "betas": [0.8, 0.9]}, "seed": 1, "name": "x"}


def test_places_follow_the_file_that_has_the_last_word() -> None:
    merged = over("optimizer:\n  lr: 1\n  eps: 1\nseed: 1\n", "\n\noptimizer: {lr: 2}\nname: x\n")
    assert where(merged, "optimizer", "lr") == "over:3:13"
    assert where(merged, "optimizer", "eps") == "base:3:3"
    assert where(merged, "optimizer") == "over:3:1"
    assert where(merged, "seed") == "base:4:1"
    assert where(merged, "name") == "over:4:1"
    assert where(merged) == "over:3:1"


MODEL = "model: {type: gpt2, config: {n_layer: 12, n_head: 12}}"


@pytest.mark.parametrize(
    ("base", "above", "expected"),
    [
        (MODEL, "model: {from: gpt2}", {"from": "gpt2"}),
        (MODEL, "model: {type: llama}", {"type": "llama"}),
        (MODEL, 'model: {call: "a:b"}', {"call": "a:b"}),
        (
            MODEL,
            "model: {type: gpt2, config: {n_layer: 6}}",
            {"type": "gpt2", "config": {"n_layer": 6, "n_head": 12}},
        ),
        (
            MODEL,
            "model: {config: {n_layer: 6}}",
            {"type": "gpt2", "config": {"n_layer": 6, "n_head": 12}},
        ),
        (
            "objective: {type: distill, teacher: gpt2}",
            "objective: {type: causal}",
            {"type": "causal"},
        ),
        ("objective: {type: distill, teacher: gpt2}", "objective: causal", "causal"),
        # A bare word below is a section like any other.
        (
            "objective: masked",
            "objective: {mask_probability: 0.3}",
            {"type": "masked", "mask_probability": 0.3},
        ),
        ("objective: masked", 'objective: {call: "a:b"}', {"call": "a:b"}),
    ],
)
def test_a_choice_made_anew_replaces_the_old_one(
    base: str, above: str, expected: dict[str, object] | str
) -> None:
    (merged,) = over(base, above).value.values()
    assert merged == expected


def test_a_replaced_choice_leaves_no_places_behind() -> None:
    merged = over(MODEL, "model: {from: gpt2}")
    assert where(merged, "model", "config", "n_layer") == "over:1:1"


SET = "{sources: [a.txt], tokenizer: gpt2, column: body}"


@pytest.mark.parametrize("place", ["data: {train: SET}", "data: {validation: {wiki: SET}}"])
@pytest.mark.parametrize(
    ("above", "expected"),
    [
        ("prepared", "prepared"),
        ("{path: prepared}", {"path": "prepared"}),
        # Other text, but still text: how it is tokenised stays.
        (
            "{sources: [b.txt]}",
            {"sources": ["b.txt"], "tokenizer": "gpt2", "column": "body"},
        ),
        (
            "{tokenizer: {train: {vocab: 300}}}",
            {"sources": ["a.txt"], "tokenizer": {"train": {"vocab": 300}}, "column": "body"},
        ),
    ],
)
def test_sets_of_data(place: str, above: str, expected: dict[str, object] | str) -> None:
    merged = over(place.replace("SET", SET), place.replace("SET", above)).value["data"]
    assert merged.get("train", merged.get("validation", {}).get("wiki")) == expected


def test_validation_sets_merge_by_name() -> None:
    merged = over("data: {validation: {a: x, b: y}}", "data: {validation: {b: z, c: w}}").value
    assert merged == {"data": {"validation": {"a": "x", "b": "z", "c": "w"}}}


def test_choices_are_keys_that_exist() -> None:
    known = set(key_paths(RunFile))
    for path, keys in CHOICES.items():
        for key in keys:
            assert ".".join([*map(str, path), key]) in known
