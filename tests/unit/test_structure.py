"""What holds for every source file, read from the tree: one class for one name, and files of a
size that one reads through."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "headway"
MOST_LINES = 500
PUBLIC_CLASS = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)


def modules() -> list[Path]:
    found = sorted(SOURCE.rglob("*.py"))
    assert found
    return found


def test_no_public_class_name_is_used_twice() -> None:
    classes = defaultdict(list)
    for path in modules():
        for name in PUBLIC_CLASS.findall(path.read_text()):
            classes[name].append(str(path.relative_to(SOURCE)))
    assert {name: where for name, where in classes.items() if len(where) > 1} == {}


def test_no_file_is_too_long_to_read_through() -> None:
    lengths = {str(path.relative_to(SOURCE)): path.read_text().count("\n") for path in modules()}
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}
