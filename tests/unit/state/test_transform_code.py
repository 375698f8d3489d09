"""An edit has the data prepared anew if the transform is made of it, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.state.transform_code import transform_digest, transform_files

FILES = {
    "texts.py": "import json\nfrom cleaning import clean\nfrom parts import lines\n",
    "cleaning.py": "def clean(text):\n    from words import stop\n    return text\n",
    "words.py": "stop = []\n",
    "parts/__init__.py": "",
    "parts/lines.py": "from . import width\nfrom ..words import stop\n",
    "parts/width.py": "limit = 80\n",
    "parts/unused.py": "",
    "mine.py": "import texts\nimport torch\n",
    "bare/one.py": "import bare.two\n",
    "bare/two.py": "",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def names(folder: Path, transform: str) -> list[str]:
    return [str(path.relative_to(folder)) for path in transform_files(folder, transform)]


def test_what_a_transform_imports_from_the_folder(folder: Path) -> None:
    assert names(folder, "texts:to_text") == [
        "cleaning.py",
        "parts/__init__.py",
        "parts/lines.py",
        "parts/width.py",
        "texts.py",
        "words.py",
    ]
    assert names(folder, "bare.one:to_text") == ["bare/one.py", "bare/two.py"]


def test_an_edit_of_the_loss_changes_nothing(folder: Path) -> None:
    before = transform_digest(folder, "texts:to_text")
    (folder / "mine.py").write_text("def loss(): pass\n")
    (folder / "parts" / "unused.py").write_text("x = 1\n")
    assert transform_digest(folder, "texts:to_text") == before
    (folder / "parts" / "width.py").write_text("limit = 90\n")
    assert transform_digest(folder, "texts:to_text") != before


@pytest.mark.parametrize(
    "content",
    ["import importlib\nimportlib.import_module(NAME)\n", "exec(TEXT)\n", "def to_text(:\n"],
)
def test_where_it_cannot_be_known_all_of_the_folder_counts(folder: Path, content: str) -> None:
    (folder / "words.py").write_text(content)
    assert names(folder, "texts:to_text") == sorted(FILES)


@pytest.mark.parametrize("above", ["project", ".hidden/project"])
def test_all_of_the_folder_are_its_python_files(tmp_path: Path, above: str) -> None:
    folder = tmp_path / above
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text("exec(TEXT)")
    before = transform_digest(folder, "mine:to_text")
    noise = (".git/x.py", "__pycache__/mine.py", "weights.bin", "data.json", "runs/a/resolved.yaml")
    for name in noise:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("noise")
    assert transform_digest(folder, "mine:to_text") == before
    (folder / "other.py").write_text("")
    assert transform_digest(folder, "mine:to_text") != before


def test_the_digest_is_frozen(tmp_path: Path) -> None:
    """Recipes of prepared sets have it."""
    (tmp_path / "mine.py").write_text("x = 1\n")
    digest = "3-2ab004b6f7332f1f900ef82c471070bdec1dfb44c4878cfef2b6369d20769fc6"
    assert transform_digest(tmp_path, "mine:to_text") == digest
