"""What a case of bad input is: files, where each problem has to be reported, and the good documents
around it; and how such cases are put into a folder and found again in a prepared set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from headway.data.reading.token_set import TokenSet
from headway.data.set_format import shard_file
from headway.data.tiny_stories import stories
from headway.data.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer, trained_roles
from headway.state.store import Store
from support.contents import chat, json_lines, spoken

Way = Literal["text", "ids", "masked", "messages", "template", "transform"]

TRANSFORM = "bad_corpus_transform"
SETTINGS: Mapping[Way, dict[str, Any]] = {
    "text": {},
    "ids": {"ids": "ids"},
    "masked": {"ids": "ids", "mask": "mask"},
    "messages": {"messages": "messages"},
    "template": {"template": "Q: {question} A: {answer}"},
    "transform": {"transform": f"{TRANSFORM}:to_text"},
}
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|turn|>{% endgeneration %}"
    "{% else %}{{ m.content }}\n{% endif %}{% endfor %}"
)
VOCAB = 400
BEFORE, AFTER = "a-good.jsonl", "z-good.jsonl"

Document = str | list[int]
Place = tuple[str, str, int | None]
"""Kind, file inside the folder of the case, line or row."""


@dataclass(frozen=True)
class Case:
    name: str
    files: Mapping[str, bytes]
    problems: tuple[Place, ...]
    """In the order they are met."""
    documents: tuple[Document, ...] = ()
    """Of `files`, in order."""
    way: Way = "text"
    num_blank: int = 0

    @property
    def all_documents(self) -> list[Document]:
        """With those of the good files beside it."""
        return [_good(self, BEFORE)[1], *self.documents, _good(self, AFTER)[1]]

    def places(self, folder: str) -> list[tuple[str, str, int | None]]:
        return [(kind, f"{folder}/{self.name}/{file}", line) for kind, file, line in self.problems]


def build(folder: Path, cases: Sequence[Case]) -> None:
    """Each case in a folder of its own, between two good files."""
    for case in cases:
        (folder / case.name).mkdir(parents=True)
        for name in (BEFORE, AFTER):
            (folder / case.name / name).write_bytes(json_lines(_good(case, name)[0]))
        for name, content in case.files.items():
            (folder / case.name / name).write_bytes(content)


def write_tokenizer(folder: Path) -> None:
    """One for all cases: byte-level, so that text comes back as it was, with a chat template."""
    tokenizer = train_tokenizer(stories(20_000, seed=1), VOCAB - 1, "stream")
    tokenizer.add_special_tokens(["<|turn|>"])
    save_tokenizer(tokenizer, trained_roles("stream"), folder)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def write_transform(folder: Path) -> None:
    folder.mkdir()
    (folder / f"{TRANSFORM}.py").write_text(
        "def to_text(record):\n"
        "    if record['text'] == 'number':\n"
        "        return 7\n"
        "    if record['text'].startswith('refuse'):\n"
        "        raise ValueError(record['text'])\n"
        "    return record['text'].upper()\n"
    )


def documents_in(folder: Path, way: Way) -> list[Document]:
    """What a prepared set of a way holds, in order."""
    opened = TokenSet.open(Store(folder))
    tokenizer = load_tokenizer("tokenizer", folder)
    found: list[Document] = []
    for number, shard in enumerate(opened.table):
        tokens = np.fromfile(folder / shard_file(shard.name, "tokens"), dtype="<u2").tolist()
        starts = opened.document_starts(number).tolist()
        for begin, end in pairwise([*starts, len(tokens)]):
            ids = tokens[begin:end]
            if way in ("ids", "masked"):
                found.append(ids)
            else:
                assert ids.pop() == opened.special_ids.end_of_text
                found.append(tokenizer.decode(ids, skip_special_tokens=False))
    return found


def _good(case: Case, file: str) -> tuple[dict[str, Any], Document]:
    """A record of a good file, and the document it makes."""
    text = f"Good text in {file} of {case.name}."
    match case.way:
        case "text":
            return {"text": text}, text
        case "ids":
            return {"ids": [7, 8, len(file)]}, [7, 8, len(file)]
        case "masked":
            return {"ids": [7, 9], "mask": [0, 1]}, [7, 9]
        case "messages":
            return {"messages": chat(text)}, spoken(text)
        case "template":
            return {"question": "Who?", "answer": text}, f"Q: Who? A: {text}"
        case "transform":
            return {"text": text}, text.upper()
