"""Forty mistakes that people make in their first hour, and what they should be told.

Each changes the folder of a good first run. `where` is the text in the run file that the message
has to point at; `fix` is what its hint says to do, after which the run is accepted. A command in a
hint is typed as it stands.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

RUN_FILE = """\
version: 1
name: first
model:
  type: gpt2
  config:
    n_layer: 2
    n_head: 2
    n_embd: 32
    n_positions: 64
data:
  train:
    sources: [text.jsonl]
    tokenizer: {train: {vocab: 384}}
  sequence_length: 32
batch: {global: 8, micro: 4}
train_for: 4 steps
optimizer: {type: adamw, lr: 1.0e-3}
schedule: {type: cosine, warmup: 1 steps}
precision: fp32
threads: 1
"""
STORIES = [
    {"id": number, "text": f"Story {number}. The {word} went home, and all was well in the end. "}
    for number, word in enumerate(("cat", "dog", "fox", "hen", "owl", "cow", "pig", "bee") * 40)
]
OWN_CODE = """\
import torch.nn.functional as F

from headway import IGNORED, Batch, Loss


def loss(model, batch: Batch) -> Loss:
    logits = model(input_ids=batch.inputs).logits
    flat, labels = logits.flatten(0, 1).float(), batch.targets.flatten()
    return Loss(F.cross_entropy(flat, labels, ignore_index=IGNORED, reduction="sum"),
                (labels != IGNORED).sum())
"""

Edit = tuple[str, str]
"""A text in the run file, and what replaces it."""


@dataclass(frozen=True)
class Mistake:
    name: str
    says: str
    """Words of the message."""
    edits: tuple[Edit, ...] = ()
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """Files besides, by name."""
    where: str | None = None
    """Text whose line the message points at; None: it is not about a line of the run file."""
    hint: str | None = None
    """Words of the hint."""
    fix: tuple[Edit, ...] = ()
    """What the hint says, done to the run file."""
    repair: Callable[[Path], object] | None = None
    """What it says, done to other files."""
    options: tuple[str, ...] = ()
    """Options of the command."""
    instead: tuple[str, ...] = ()
    """Options that the hint says to give."""
    found_by: Literal["check", "run"] = "check"


def start(folder: Path) -> None:
    """A first run that works."""
    (folder / "run.yaml").write_text(RUN_FILE)
    (folder / "text.jsonl").write_text("".join(json.dumps(story) + "\n" for story in STORIES))
    (folder / "mine.py").write_text(OWN_CODE)


def make(mistake: Mistake, folder: Path) -> None:
    start(folder)
    change(folder, mistake.edits)
    for name, content in mistake.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def repair(mistake: Mistake, folder: Path) -> None:
    change(folder, mistake.fix)
    if mistake.repair is not None:
        mistake.repair(folder)


def change(folder: Path, edits: tuple[Edit, ...]) -> None:
    text = (folder / "run.yaml").read_text()
    for old, new in edits:
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in the run file"
        text = text.replace(old, new)
    (folder / "run.yaml").write_text(text)


def commands_in(hints: str) -> list[list[str]]:
    """Arguments of the commands that hints say to type."""
    found = re.findall(r"(?:^hint: |: )headway (.*)$", hints, re.MULTILINE)
    return [shlex.split(command) for command in found]


def _undo(edit: Edit) -> tuple[Edit, ...]:
    return ((edit[1], edit[0]),)


def _text(rows: list[object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _tokenizer(size: int) -> str:
    """As much of a tokenizer as `check` looks at."""
    return json.dumps({"model": {"vocab": {f"t{number}": number for number in range(size)}}})


def _touch_stories(folder: Path) -> None:
    (folder / "text.jsonl").write_text(_text(list(STORIES)))


N_LAYER: Edit = ("    n_layer: 2\n", "    n_layers: 2\n")
CALL = 'objective: {call: "mine:loss"}\ncode: {path: .}\n'

MISTAKES = [
    # Keys and values of the run file.
    Mistake(
        "the learning rate at the top, as other tools have it",
        "unknown key 'learning_rate'",
        edits=(("precision: fp32", "learning_rate: 1.0e-3\nprecision: fp32"),),
        where="learning_rate",
        hint="write optimizer.lr",
        fix=(("learning_rate: 1.0e-3\n", ""),),
    ),
    Mistake(
        "a misspelt section",
        "unknown key 'optimiser'",
        edits=(("optimizer:", "optimiser:"),),
        where="optimiser",
        hint="did you mean optimizer?",
        fix=(("optimiser:", "optimizer:"),),
    ),
    Mistake(
        "a length without a unit",
        "train_for",
        edits=(("4 steps", "4"),),
        where="train_for",
        hint="4 steps",
        fix=(("train_for: 4", "train_for: 4 steps"),),
    ),
    Mistake(
        "a precision by torch's name",
        "'bfloat16' is not one of 'bf16', 'fp16' or 'fp32'",
        edits=(("precision: fp32", "precision: bfloat16"),),
        where="precision",
        hint="did you mean bf16?",
        fix=(("precision: bfloat16", "precision: bf16"),),
    ),
    Mistake(
        "a name with capitals",
        "'My_Run' is not a valid name",
        edits=(("name: first", "name: My_Run"),),
        where="name: My_Run",
        hint="my-run",
        fix=(("name: My_Run", "name: my-run"),),
    ),
    Mistake(
        "a tab for indentation",
        "indent with spaces, not tabs",
        edits=(("  type: gpt2", "\ttype: gpt2"),),
        where="\ttype",
        fix=(("\ttype: gpt2", "  type: gpt2"),),
    ),
    Mistake(
        "a key twice",
        "'precision' is given twice",
        edits=(("threads: 1", "threads: 1\nprecision: bf16"),),
        where="precision: bf16",
        hint="remove one",
        fix=(("\nprecision: bf16", ""),),
    ),
    Mistake(
        "a preset that does not exist",
        "`extends: gpt2-smal` is neither a preset nor a file",
        edits=(("name: first", "name: first\nextends: gpt2-smal"),),
        where="extends",
        hint="did you mean gpt2-small?",
        fix=(("gpt2-smal", "gpt2-small"),),
    ),
    Mistake(
        "no batch",
        "the run file has no batch",
        edits=(("batch: {global: 8, micro: 4}\n", ""),),
        where="version: 1",
        hint="batch: {global: ",
        fix=(("train_for:", "batch: {global: 16}\ntrain_for:"),),
    ),
    Mistake(
        "a micro-batch of nothing",
        "batch.micro: 0 is not a positive number of sequences",
        edits=(("micro: 4", "micro: 0"),),
        where="micro",
        hint="micro: auto",
        fix=(("micro: 0", "micro: auto"),),
    ),
    Mistake(
        "an option of --set that does not exist",
        "unknown key 'lrr'",
        options=("--set", "optimizer.lrr=1e-4"),
        hint="did you mean lr?",
        instead=("--set", "optimizer.lr=1e-4"),
    ),
    # The model.
    Mistake(
        "n_layers for n_layer",
        "gpt2 has no field 'n_layers'",
        edits=(N_LAYER,),
        where="n_layers",
        hint="did you mean n_layer?",
        fix=_undo(N_LAYER),
    ),
    Mistake(
        "another family's field",
        "gpt2 has no field 'num_key_value_heads'",
        edits=(("n_head: 2", "n_head: 2\n    num_key_value_heads: 1"),),
        where="num_key_value_heads",
        hint="remove it",
        fix=(("\n    num_key_value_heads: 1", ""),),
    ),
    Mistake(
        "a number in quotes",
        "model.config.n_embd: '32' is not a whole number",
        edits=(("n_embd: 32", 'n_embd: "32"'),),
        where="n_embd",
        hint="write 32",
        fix=(('n_embd: "32"', "n_embd: 32"),),
    ),
    Mistake(
        "heads that do not divide the width",
        "n_embd (32) is not a multiple of n_head (3)",
        edits=(("n_head: 2", "n_head: 3"),),
        where="n_embd",
        hint="so that n_head divides n_embd",
        fix=(("n_head: 3", "n_head: 4"),),
    ),
    Mistake(
        "no layer",
        "n_layer is 0, not a whole number above zero",
        edits=(("n_layer: 2", "n_layer: 0"),),
        where="n_layer",
        hint="1",
        fix=(("n_layer: 0", "n_layer: 1"),),
    ),
    Mistake(
        "sequences longer than the model's positions",
        "data.sequence_length is 128, and the model has 64 positions",
        edits=(("sequence_length: 32", "sequence_length: 128"),),
        where="sequence_length",
        hint="n_positions: 128",
        fix=(("n_positions: 64", "n_positions: 128"),),
    ),
    Mistake(
        "a vocabulary smaller than the tokenizer's",
        "the tokenizer has 400 tokens, and the model 300",
        edits=(
            ("n_layer: 2", "n_layer: 2\n    vocab_size: 300"),
            ("{train: {vocab: 384}}", "./tokenizer"),
        ),
        files={"tokenizer/tokenizer.json": _tokenizer(400)},
        where="vocab_size",
        hint="remove vocab_size",
        fix=(("\n    vocab_size: 300", ""),),
    ),
    Mistake(
        "a misspelt model type",
        "transformers has no model type 'gtp2'",
        edits=(("type: gpt2", "type: gtp2"),),
        where="type: gtp2",
        hint="gpt2",
        fix=(("type: gtp2", "type: gpt2"),),
    ),
    Mistake(
        "a model that cannot do the objective",
        "gpt2 has no masked language model",
        edits=(("precision: fp32", "objective: masked\nprecision: fp32"),),
        where="type: gpt2",
        hint="objective: causal",
        fix=(("objective: masked", "objective: causal"),),
    ),
    Mistake(
        "a folder of weights that does not exist",
        "model.from: no folder",
        edits=(
            ("  type: gpt2\n", "  from: ./weights\n"),
            (RUN_FILE[RUN_FILE.index("  config:") : RUN_FILE.index("data:")], ""),
        ),
        where="from: ./weights",
        hint="path",
        fix=(("from: ./weights", "type: gpt2\n  config: {n_layer: 1, n_head: 2, n_embd: 32}"),),
    ),
    # The data.
    Mistake(
        "a file that does not exist",
        "texts.jsonl does not exist",
        edits=(("[text.jsonl]", "[texts.jsonl]"),),
        where="sources",
        hint="did you mean text.jsonl?",
        fix=(("[texts.jsonl]", "[text.jsonl]"),),
    ),
    Mistake(
        "a pattern that matches nothing",
        "no file matches",
        edits=(("[text.jsonl]", '["data/*.txt"]'),),
        where="sources",
        hint="pattern",
        repair=lambda folder: _write(folder / "data" / "a.txt", "A story. " * 900),
    ),
    Mistake(
        "a file in no known format",
        "book.docx has an unsupported suffix",
        edits=(("[text.jsonl]", "[book.docx]"),),
        files={"book.docx": b"PK\x03\x04"},
        where="sources",
        hint=".txt",
        fix=(("[book.docx]", "[text.jsonl]"),),
    ),
    Mistake(
        "an empty file",
        "empty.txt: empty file",
        edits=(("[text.jsonl]", "[empty.txt]"),),
        files={"empty.txt": ""},
        where="sources",
        hint="text",
        repair=lambda folder: _write(folder / "empty.txt", "A story. " * 900),
    ),
    Mistake(
        "the column has another name",
        "no column `text`; there are: id, body",
        files={"text.jsonl": _text([{"id": 1, "body": "Once. " * 400}] * 60)},
        where="sources",
        hint="column: body",
        fix=(("sources: [text.jsonl]", "sources: [text.jsonl]\n    column: body"),),
    ),
    Mistake(
        "a misspelt column",
        "no column `txt`; there are: id, text",
        edits=(("sources: [text.jsonl]", "sources: [text.jsonl]\n    column: txt"),),
        where="column",
        hint="column: text",
        fix=(("column: txt", "column: text"),),
    ),
    Mistake(
        "a template with a column that is not there",
        "no column `answer`; there are: id, text",
        edits=(
            (
                "sources: [text.jsonl]",
                'sources: [text.jsonl]\n    template: "{text} {answer}"',
            ),
        ),
        where="template",
        hint="template",
        fix=(('"{text} {answer}"', '"{text}"'),),
    ),
    Mistake(
        "numbers where text should be",
        "column `id` holds int, not text",
        edits=(("sources: [text.jsonl]", "sources: [text.jsonl]\n    column: id"),),
        where="column",
        hint="column: text",
        fix=(("column: id", "column: text"),),
    ),
    Mistake(
        "JSON that is none",
        "text.jsonl:1",
        files={"text.jsonl": "{'id': 1, 'text': 'single quotes'}\n" * 60},
        where="sources",
        hint="JSON",
        repair=_touch_stories,
    ),
    Mistake(
        "a file that is not what its name says",
        "text.txt.gz",
        edits=(("[text.jsonl]", "[text.txt.gz]"),),
        files={"text.txt.gz": "This was never compressed. " * 50},
        where="sources",
        hint="text",
        repair=lambda folder: _gzip(folder / "text.txt.gz", "A story. " * 900),
    ),
    Mistake(
        "conversations, and a tokenizer without a chat template",
        "has no chat template, which messages need",
        edits=(("{train: {vocab: 384}}", "./tokenizer\n    messages: messages"),),
        files={
            "tokenizer/tokenizer.json": _tokenizer(400),
            "text.jsonl": _text([{"messages": [{"role": "user", "content": "Why?"}]}]),
        },
        where="tokenizer: ./tokenizer",
        hint="tokenizer: {from: ./tokenizer, chat_template: zephyr}",
        fix=(("./tokenizer", "{from: ./tokenizer, chat_template: zephyr}"),),
    ),
    Mistake(
        "no tokenizer",
        "data.train: sources need a tokenizer",
        edits=(("    tokenizer: {train: {vocab: 384}}\n", ""),),
        where="train:",
        hint="{train: {vocab: 8192}}",
        fix=(("  sequence_length", "    tokenizer: {train: {vocab: 8192}}\n  sequence_length"),),
    ),
    Mistake(
        "a prepared set that does not exist",
        "no prepared set",
        edits=(
            (
                "    sources: [text.jsonl]\n    tokenizer: {train: {vocab: 384}}\n",
                "    path: set\n",
            ),
        ),
        where="path",
        hint="to make it: headway data prepare text.jsonl --into set --train-vocab 8192",
    ),
    Mistake(
        "a tokenizer folder without a tokenizer",
        "has no tokenizer.json",
        edits=(("{train: {vocab: 384}}", "./tokenizer"),),
        files={"tokenizer/vocab.json": "{}"},
        where="tokenizer",
        hint="save_pretrained",
        fix=(("./tokenizer", "{train: {vocab: 384}}"),),
    ),
    # Code and machines.
    Mistake(
        "a function that does not exist",
        "mine.py has no function 'los'",
        edits=(("precision: fp32", f"{CALL.replace('mine:loss', 'mine:los')}precision: fp32"),),
        where="call",
        hint="did you mean mine:loss?",
        fix=(("mine:los", "mine:loss"),),
    ),
    Mistake(
        "a module that is not there",
        "no module 'min'",
        edits=(("precision: fp32", f"{CALL.replace('mine:', 'min:')}precision: fp32"),),
        where="call",
        hint="mine",
        fix=(("min:loss", "mine:loss"),),
    ),
    Mistake(
        "code that does not parse",
        "mine.py:3",
        edits=(("precision: fp32", f"{CALL}precision: fp32"),),
        files={"mine.py": "import torch\n\ndef loss(model, batch)\n    return 0\n"},
        where="call",
        hint="mine.py",
        repair=lambda folder: (folder / "mine.py").write_text(OWN_CODE),
    ),
    Mistake(
        "GPUs that this machine does not have",
        "accelerators",
        edits=(("threads: 1", "threads: 1\nresources: {accelerators: H100:8}"),),
        where="accelerators",
        hint="cpu",
        fix=(("{accelerators: H100:8}", "{accelerators: cpu:1}"),),
    ),
    Mistake(
        "a model larger than the machine",
        "weights, gradients and optimizer state need",
        edits=(("n_embd: 32", "n_embd: 32768"), ("n_layer: 2", "n_layer: 64")),
        where="model:",
        fix=(("n_embd: 32768", "n_embd: 32"), ("n_layer: 64", "n_layer: 2")),
    ),
    Mistake(
        "a secret that is not set",
        "secrets: HEADWAY_TEST_TOKEN not set",
        edits=(("threads: 1", "threads: 1\nsecrets: [HEADWAY_TEST_TOKEN]"),),
        where="secrets",
        hint="export HEADWAY_TEST_TOKEN=",
        fix=(("\nsecrets: [HEADWAY_TEST_TOKEN]", ""),),
    ),
    # Found only by starting.
    Mistake(
        "text too short for one sequence",
        "tokens",
        files={"text.jsonl": _text([{"text": "Short."}])},
        found_by="run",
        hint="sequence_length",
        repair=_touch_stories,
    ),
    Mistake(
        "a loss that fails",
        "your code failed in step 1: AttributeError",
        edits=(("precision: fp32", f"{CALL}precision: fp32"),),
        files={"mine.py": "def loss(model, batch):\n    return model.missing(batch)\n"},
        found_by="run",
        hint="headway check --code",
        repair=lambda folder: (folder / "mine.py").write_text(OWN_CODE),
    ),
]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _gzip(path: Path, text: str) -> None:
    import gzip

    path.write_bytes(gzip.compress(text.encode()))
