"""Errors of torch for a peer or a store that is gone are recognized: provoked in real processes,
since their words and types are torch's and may change with any version."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.train.lost_peer_signs import LOST_PEER_SIGNS

pytestmark = pytest.mark.local

Errors = dict[str, list[dict[str, Any]]]
TYPED = {"DistStoreError", "DistNetworkError", "DistBackendError"}
IN_A_GROUP = ("peer_killed_in_all_reduce", "peer_hangs_in_two_all_reduces")
WHILE_FORMING = (
    "peer_killed_before_it_has_an_address",
    "peer_killed_before_it_connects",
    "key_that_is_never_set",
    "store_killed",
    "store_killed_while_forming",
    "store_that_is_not_there",
)
OF_THIS_MACHINE = "interface_that_is_not_there"


@pytest.fixture(scope="module")
def provoked(tmp_path_factory: pytest.TempPathFactory) -> Errors:
    command = [sys.executable, "-m", "support.lost_peers", str(tmp_path_factory.mktemp("stores"))]
    tests = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=tests, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found: Errors = json.loads(done.stdout)
    return found


def test_a_lost_peer_is_recognized_by_torchs_own_errors(provoked: Errors) -> None:
    assert {*provoked} == {*IN_A_GROUP, *WHILE_FORMING, OF_THIS_MACHINE}
    for case in (*IN_A_GROUP, *WHILE_FORMING):
        assert provoked[case], f"{case} raised nothing"
        assert all(error["is_lost_peer"] for error in provoked[case]), provoked[case]
    for case in WHILE_FORMING:
        assert {error["while_forming"] for error in provoked[case]} == {"lost"}, provoked[case]


def test_a_fault_of_this_machine_is_no_lost_peer_while_a_group_forms(provoked: Errors) -> None:
    [error] = provoked[OF_THIS_MACHINE]
    assert error["while_forming"] == "failed", error


def test_words_are_read_only_where_torch_has_no_type(provoked: Errors) -> None:
    errors = [error for case in provoked.values() for error in case]
    without_type = [error["words"] for error in errors if error["type"] not in TYPED]
    for words in without_type:
        assert any(sign in words for sign in LOST_PEER_SIGNS), words
    for sign in LOST_PEER_SIGNS:
        assert any(sign in words for words in without_type), f"torch no longer says {sign!r}"
