"""What a restart world asks its stores for: real processes over a real coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.world_forming import form_a_world

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]


@pytest.mark.parametrize("size", [4, 8])
def test_each_member_asks_the_session_twice_at_any_size(tmp_path: Path, size: int) -> None:
    """It sets its address, and gets those of all in one answer: else the square of the group."""
    formed = form_a_world(tmp_path, (size, 1, None))
    assert [one.rank for one in formed] == list(range(size))
    assert {one.session_requests for one in formed} == {2}


def test_copies_of_a_sharded_model_ask_twice_for_each_of_their_groups(tmp_path: Path) -> None:
    formed = form_a_world(tmp_path, (2, 2, 1))
    assert {one.session_requests for one in formed} == {3 * 2}
    assert all(one.groups == [2, 2, 4] for one in formed)


def test_on_accelerators_the_session_only_names_the_store_of_the_first_rank(
    tmp_path: Path,
) -> None:
    """One copy over two nodes: no group but that of all. gloo in the place of NCCL."""
    formed = form_a_world(tmp_path, (2, 2, 0), on_accelerators=True)
    assert {one.session_requests for one in formed} == {1}
    assert {one.store_requests for one in formed} == {2}
    assert all(one.groups == [4] for one in formed)
