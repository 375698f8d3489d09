"""An edit has the data prepared anew if the transform is made of it, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.state.transform_code import has_transform, transform_digest, transform_files
from headway.state.user_code import python_digest, python_digest_1

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
    assert has_transform(folder, "texts:to_text", before)
    (folder / "parts" / "width.py").write_text("limit = 90\n")
    assert not has_transform(folder, "texts:to_text", before)


@pytest.mark.parametrize(
    "content",
    ["import importlib\nimportlib.import_module(NAME)\n", "exec(TEXT)\n", "def to_text(:\n"],
)
def test_where_it_cannot_be_known_all_of_the_folder_counts(folder: Path, content: str) -> None:
    (folder / "words.py").write_text(content)
    assert names(folder, "texts:to_text") == sorted(FILES)


def test_digests_of_earlier_versions_are_of_all_files(folder: Path) -> None:
    for digest in (python_digest(folder), python_digest_1(folder)):
        assert has_transform(folder, "texts:to_text", digest)
    before = python_digest(folder)
    (folder / "mine.py").write_text("def loss(): pass\n")
    assert not has_transform(folder, "texts:to_text", before)
