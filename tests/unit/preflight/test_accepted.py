"""What `check` must not refuse, since `run` accepts it: a false refusal is worse than none."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headway.cli.preflight import parameters_of
from headway.preflight.preflight import Preflight, preflight
from headway.preflight.vocabulary import vocabulary_size
from headway.spec.load import load_run

GPT2 = "model: {type: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 64}}\n"
TRAINED = "tokenizer: {train: {vocab: 512}}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(
    train: str, model: str = GPT2, more: str = "", length: int = 64, is_here: bool = True
) -> Preflight:
    Path("run.yaml").write_text(
        f"version: 1\n{model}batch: {{global: 8, micro: 8}}\ntrain_for: 10 steps\n"
        f"data: {{sequence_length: {length}, train: {{{train}}}}}\n{more}"
    )
    return preflight(load_run("run.yaml"), is_here)


def write(name: str, content: str | bytes) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


TEXT = lines({"text": "Once upon a time."})


def token_array(shape: tuple[int, ...]) -> Callable[[], None]:
    return lambda: np.save("ids.npy", np.zeros(shape, dtype=np.uint16))


def hdf5() -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File("a.h5", "w") as file:
        file["tokens"] = np.zeros((4, 8), dtype=np.int64)


def broken_link() -> None:
    write("d/b.txt", "Once.")
    Path("d/a.txt").symlink_to("nowhere")


SOURCES: dict[str, tuple[Callable[[], object], str]] = {
    "token ids in one row": (token_array((64,)), "sources: [ids.npy], ids: ids"),
    "token ids in rows": (token_array((4, 16)), "sources: [ids.npy], ids: any"),
    "HDF5 by the dataset's name": (hdf5, "sources: [a.h5], ids: tokens"),
    "an empty first part of a folder": (
        lambda: (write("d/part-0.jsonl", ""), write("d/part-1.jsonl", TEXT)),
        "sources: [d]",
    ),
    "an empty first part of a pattern": (
        lambda: (write("d/part-0.jsonl", ""), write("d/part-1.jsonl", TEXT)),
        "sources: ['d/*.jsonl']",
    ),
    "one of two files empty": (
        lambda: (write("a.txt", ""), write("b.txt", "Once.")),
        "sources: [a.txt, b.txt]",
    ),
    "facts about the set beside it": (
        lambda: (write("d/dataset_info.json", '{"name": "x"}'), write("d/train.jsonl", TEXT)),
        "sources: [d]",
    ),
    "a broken link": (broken_link, "sources: [d]"),
    "text beside records with another column": (
        lambda: (write("a.txt", "Once."), write("b.jsonl", lines({"content": "Once."}))),
        "sources: [a.txt, b.jsonl], column: content",
    ),
    "a few bad records first": (
        lambda: write("a.jsonl", lines(*[{"text": None}] * 20) + TEXT),
        "sources: [a.jsonl]",
    ),
    "compressed CSV with a template": (
        lambda: write("a.csv.gz", gzip.compress(b"q,a\nOne?,Two.\n")),
        'sources: [a.csv.gz], template: "{q} {a}"',
    ),
    "conversations": (
        lambda: write("a.jsonl", lines({"messages": [{"role": "user", "content": "Hi"}]})),
        "sources: [a.jsonl], messages: messages",
    ),
    "white space only": (lambda: write("a.txt", " \n"), "sources: [a.txt]"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_sources(folder: Path, name: str) -> None:
    make, sources = SOURCES[name]
    make()
    assert found(f"{sources}, {TRAINED}").problems == []


def test_a_column_that_no_file_of_many_has(folder: Path) -> None:
    """Also where only some of the files are looked at."""
    for number in range(40):
        write(f"d/{number:02}.jsonl", lines({"body": "Once."}))
    (problem,) = found(f"sources: [d], {TRAINED}").problems
    assert "no column `text`; there are: body" in problem.problem
    assert problem.hint == "column: body"


def test_a_folder_without_a_supported_file(folder: Path) -> None:
    write("d/a.docx", "PK")
    (problem,) = found(f"sources: [d], {TRAINED}").problems
    assert problem.problem == "no supported file in d"


MODELS = {
    "fewer tokens than a tokenizer may get": (
        "model: {type: gpt2, config: {n_layer: 1, n_head: 2, n_embd: 64, vocab_size: 400}}\n",
        64,
    ),
    "positions that a type derives": (
        "model: {type: zamba2, config: {use_long_context: true}}\n",
        8192,
    ),
    "rotary positions as a mapping": (
        "model: {type: llama, config: {hidden_size: 64, num_attention_heads: 2, "
        "rope_parameters: {rope_type: default, rope_theta: 1.0e+4}}}\n",
        64,
    ),
    "another name of a field": (
        "model: {type: gpt2, config: {hidden_size: 64, num_hidden_layers: 2, "
        "num_attention_heads: 2, max_position_embeddings: 4096}}\n",
        4096,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(folder: Path, name: str) -> None:
    write("a.txt", "Once.")
    model, length = MODELS[name]
    assert found(f"sources: [a.txt], {TRAINED}", model, length=length).problems == []


def test_an_override_of_a_saved_models_positions(folder: Path) -> None:
    write("a.txt", "Once.")
    write("m/config.json", json.dumps({"model_type": "gpt2", "n_positions": 2048}))
    model = "model: {from: m, config: {max_position_embeddings: 4096}}\n"
    assert found(f"sources: [a.txt], {TRAINED}", model, length=4096).problems == []
    model = "model: {from: m}\n"
    (problem,) = found(f"sources: [a.txt], {TRAINED}", model, length=4096).problems
    assert "the model has 2048 positions" in problem.problem


def test_an_image_may_have_another_transformers(folder: Path) -> None:
    write("a.txt", "Once.")
    for model, note in (
        ("model: {type: gpt9}\n", "transformers has no model type 'gpt9'"),
        ("model: {type: gpt2, config: {new_field: 1}}\n", "gpt2 has no field 'new_field'"),
    ):
        checked = found(f"sources: [a.txt], {TRAINED}", model, is_here=False)
        assert checked.problems == []
        assert any(note in one for one in checked.unchecked)


CODE: dict[str, tuple[dict[str, str], str, str]] = {
    "all of another module": ({"mine.py": "from other import *\n"}, "mine:build", "."),
    "made on demand": ({"mine.py": "def __getattr__(name):\n    return 1\n"}, "mine:build", "."),
    "a package beside a module": (
        {"both.py": "", "both/__init__.py": "def build():\n    pass\n"},
        "both:build",
        ".",
    ),
    "compiled": ({"fast.cpython-311-x86_64-linux-gnu.so": ""}, "fast:build", "."),
    "compiled in a package": ({"pkg/__init__.py": "", "pkg/core.so": ""}, "pkg.core:build", "."),
    "an assignment": ({"src/mine.py": "build = lambda **config: None\n"}, "mine:build", "src"),
    "in the current folder, without code": (
        {"mine.py": "def build():\n    pass\n"},
        "mine:build",
        "",
    ),
}


@pytest.mark.parametrize("name", CODE)
def test_code(folder: Path, name: str) -> None:
    files, call, path = CODE[name]
    for file, content in files.items():
        write(file, content)
    write("a.txt", "Once.")
    code = f"code: {{path: {path}}}\n" if path else ""
    model = f"model: {{call: '{call}'}}\n"
    assert found(f"sources: [a.txt], {TRAINED}", model, code).problems == []


def test_a_module_that_only_the_image_has(folder: Path) -> None:
    write("a.txt", "Once.")
    model = "model: {call: 'company_models:build'}\n"
    checked = found(f"sources: [a.txt], {TRAINED}", model, is_here=False)
    assert checked.problems == []
    assert checked.unchecked == ["model.call: company_models:build is looked for in the image"]
    assert found(f"sources: [a.txt], {TRAINED}", model).problems


def test_a_module_of_a_package_that_the_run_brings(folder: Path) -> None:
    write("a.txt", "Once.")
    write("requirements.txt", "company-models\n")
    model = "model: {call: 'company_models:build'}\n"
    code = "code: {path: ., requirements: requirements.txt}\n"
    checked = found(f"sources: [a.txt], {TRAINED}", model, code)
    assert checked.problems == []
    told = "model.call: company_models:build is looked for in the packages of code.requirements"
    assert told in checked.unchecked


def test_the_size_of_a_preset_is_known_before_its_tokenizer_is_trained(folder: Path) -> None:
    """Else a large model would neither be sharded nor recompute its activations by itself."""
    write("a.txt", "Once.")
    Path("run.yaml").write_text(
        f"version: 1\nextends: llama2-7b\ndata: {{train: {{sources: [a.txt], {TRAINED}}}}}\n"
    )
    loaded = load_run("run.yaml")
    parameters = parameters_of(loaded.run, vocabulary_size(loaded))
    assert parameters is not None
    assert parameters > 6e9
