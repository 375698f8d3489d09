"""The page of traps says what tests prove, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.reference import NOTE
from tools.trap_page import (
    PAGE,
    TABLE,
    Trap,
    TrapTest,
    WrongTraps,
    read_traps,
    require_consistent,
    trap_page,
    trap_tests,
)

ROOT = Path(__file__).parents[2]
NUM_TRAPS = 39
MAKING_A_CLUSTER = {5, 10, 11, 12, 13, 38}
NOT_YET_PROVEN = {9, 15, 16}
"""May only shrink."""


def test_all_traps_are_there_and_those_that_are_open_are_known() -> None:
    traps = read_traps(ROOT)
    assert [trap.number for trap in traps] == list(range(1, NUM_TRAPS + 1))
    assert {trap.number for trap in traps if trap.making_a_cluster} == MAKING_A_CLUSTER
    assert {trap.number for trap in traps if trap.missing} <= NOT_YET_PROVEN


def test_the_page_is_what_the_markers_say() -> None:
    page = (ROOT / PAGE).read_text("utf-8")
    assert page.splitlines()[1:] == trap_page(ROOT, NOTE).splitlines()[1:], "make generate"
    for test in trap_tests(ROOT):
        assert test.name.removeprefix("test_") in page


def test_a_test_without_a_marker_is_missed() -> None:
    """Whichever: each trap that counts as proven has a test in the gate."""
    traps, tests = read_traps(ROOT), trap_tests(ROOT)
    proven = [trap for trap in traps if not trap.missing and not trap.making_a_cluster]
    assert len(proven) == NUM_TRAPS - len(MAKING_A_CLUSTER) - sum(bool(t.missing) for t in traps)
    for trap in proven:
        others = [test for test in tests if trap.number not in test.traps]
        with pytest.raises(WrongTraps, match=f"trap {trap.number} .* has no test in the gate"):
            require_consistent(traps, others)


# --- what is refused

TRAPS = [Trap(1, "one", "by a test"), Trap(2, "two", making_a_cluster=True)]
FILE = "tests/unit/test_it.py"


@pytest.mark.parametrize(
    ("tests", "says"),
    [
        ([TrapTest(FILE, "test_a", (1, 3))], "test_a: there is no trap 3"),
        ([TrapTest(FILE, "test_a", (1, 2))], "test_a: trap 2 is one of making a cluster"),
        ([TrapTest(FILE, "test_a", (1,), frozenset({"skip"}))], "test_a is skipped"),
        ([TrapTest(FILE, "test_a", (1,), frozenset({"long"}))], "trap 1 .* has no test"),
        ([TrapTest("tests/cluster/test_it.py", "test_a", (1,))], "trap 1 .* has no test"),
        ([], "trap 1 .* has no test in the gate"),
    ],
    ids=["unknown", "of a cluster", "skipped", "long", "in no tier", "renamed"],
)
def test_what_proves_nothing_is_refused(tests: list[TrapTest], says: str) -> None:
    with pytest.raises(WrongTraps, match=says):
        require_consistent(TRAPS, tests)


def test_numbers_are_those_of_the_table() -> None:
    with pytest.raises(WrongTraps, match="numbers go from 1 on"):
        require_consistent([Trap(1, "one", missing="all"), Trap(1, "one", missing="all")], [])


def tree(folder: Path, test: str) -> Path:
    for name, text in ((TABLE, '[[traps]]\nnumber = 1\ntrap = "One"\n'), (FILE, test)):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    return folder


def test_markers_are_found_with_those_of_the_module(tmp_path: Path) -> None:
    text = (
        "import pytest\n\npytestmark = [pytest.mark.local, pytest.mark.timeout(3)]\n\n\n"
        "@pytest.mark.trap(1, 2)\n@pytest.mark.long('slow')\ndef test_a() -> None: ...\n\n\n"
        "def test_b() -> None: ...\n"
    )
    (found,) = trap_tests(tree(tmp_path, text))
    assert found == TrapTest(
        FILE, "test_a", (1, 2), frozenset({"trap", "long", "local", "timeout"})
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pytestmark = pytest.mark.trap(1)\n", "not by all tests of a file"),
        ("@pytest.mark.trap()\ndef test_a(): ...\n", "a trap has a number"),
        ("@pytest.mark.trap(ONE)\ndef test_a(): ...\n", "a trap has a number"),
    ],
)
def test_markers_that_say_nothing(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(WrongTraps, match=says):
        trap_tests(tree(tmp_path, text))


def test_keys_that_the_table_does_not_have(tmp_path: Path) -> None:
    tree(tmp_path, "")
    (tmp_path / TABLE).write_text('[[traps]]\nnumber = 1\ntrap = "One"\nproof = "none"\n')
    with pytest.raises(WrongTraps, match="proof"):
        read_traps(tmp_path)
