"""The scripts of examples/scripts are nobody's but their user's."""

from __future__ import annotations

import pytest

from support.example_scripts import EXAMPLES, SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_knows_nothing_of_headway(name: str) -> None:
    sources = [path.read_text() for path in (EXAMPLES / name).rglob("*.py")]
    assert sources
    assert not any("headway" in source.lower() for source in sources)


def test_each_folder_is_one_of_them_and_explained() -> None:
    folders = {path.parent.name for path in EXAMPLES.glob("*/README.md")}
    assert folders == set(SCRIPTS) == {path.parent.name for path in EXAMPLES.glob("*/train.py")}
    table = (EXAMPLES / "README.md").read_text()
    assert all(f"]({name}/README.md)" in table for name in SCRIPTS)
