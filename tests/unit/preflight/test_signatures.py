"""`check` compares the functions of the user's own code with the way they are called, without
running them; what the source does not show is left to `run`."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import SpecError
from headway.preflight.preflight import preflight
from headway.spec.load import load_run

RUN = """\
version: 1
model: {call: "mine:build", config: {vocab: 512, width: 32}}
objective: {call: "mine:loss"}
evaluation: {metrics: {call: "mine:metrics"}}
data: {sequence_length: 8, train: {sources: [a.txt], transform: "mine:to_text", TOKENIZER}}
batch: {global: 8, micro: 8}
train_for: 10 steps
code: {path: .}
""".replace("TOKENIZER", "tokenizer: {train: {vocab: 512}}")
GOOD = {
    "build": "def build(vocab, width): pass",
    "loss": "def loss(model, batch): pass",
    "metrics": "def metrics(model, batch): pass",
    "to_text": "def to_text(record): pass",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("Once.")
    (tmp_path / "run.yaml").write_text(RUN)
    return tmp_path


def problems(folder: Path, **functions: str) -> list[SpecError]:
    (folder / "mine.py").write_text("\n".join({**GOOD, **functions}.values()))
    return preflight(load_run(folder), True).problems


@pytest.mark.parametrize(
    ("function", "source", "line", "says", "hint"),
    [
        (
            "loss",
            "def loss(model, batch: int, alpha): pass",
            3,
            "mine.py: mine:loss is loss(model, batch, alpha), and is called as loss(model, batch)",
            "def loss(model, batch): ...",
        ),
        ("loss", "def loss(batch): pass", 3, "mine:loss is loss(batch)", "def loss(model, batch)"),
        ("metrics", "def metrics(model, *, k): pass", 4, "metrics(model, *, k)", "(model, batch)"),
        ("to_text", "def to_text(row, tokenizer): pass", 5, "to_text(record)", "to_text(record)"),
        ("to_text", "def to_text(row):\n    yield row", 5, "has a `yield`", "use return"),
        ("build", "def build(vocabs, width): pass", 2, "no argument 'vocab'", "mean vocabs?"),
        ("build", "def build(vocab): pass", 2, "no argument 'width'", "it takes vocab"),
        (
            "build",
            "class build:\n    def __init__(self, vocab, width, depth): pass",
            2,
            "model.config: mine:build needs an argument 'depth'",
            "config: {depth: ...}",
        ),
    ],
)
def test_a_function_that_cannot_be_called_is_named(
    folder: Path, function: str, source: str, line: int, says: str, hint: str
) -> None:
    (problem,) = problems(folder, **{function: source})
    assert says in problem.problem
    assert hint in (problem.hint or "")
    assert problem.position[1] == line


@pytest.mark.parametrize(
    ("function", "source"),
    [
        ("loss", "def loss(model, batch, alpha=0.01): pass"),
        ("loss", "def loss(*arguments): pass"),
        ("loss", "loss = make(3)"),
        ("loss", "@partial_of(3)\ndef loss(alpha, model, batch): pass"),
        ("loss", "def loss(a): pass\nloss = fixed(loss)"),
        ("loss", "if fast:\n    def loss(a): pass\nelse:\n    def loss(a, b): pass"),
        ("loss", "class Loss:\n    def loss(self): pass\nloss = Loss()"),
        ("to_text", "def to_text(record):\n    def parts():\n        yield 1\n    return ''"),
        ("build", "def build(**config): pass"),
        ("build", "def build(vocab, *, width, depth=2): pass"),
        ("build", "class build(Base): pass"),
        ("build", "@dataclass\nclass build:\n    vocab: int\n    width: int"),
    ],
)
def test_one_that_may_be_is_left_to_the_run(folder: Path, function: str, source: str) -> None:
    assert problems(folder, **{function: source}) == []
