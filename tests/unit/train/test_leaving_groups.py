"""A worker finds out whether it can leave a group in which it waits."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headway.train import leaving_groups
from headway.train.leaving_groups import why_groups_cannot_be_left


def test_groups_can_be_left_here() -> None:
    """At both ends of the range of torch that is tested. If it fails, live recovery is off."""
    assert why_groups_cannot_be_left() is None


def test_a_gloo_that_cannot_be_interrupted_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It publishes addresses in which Headway finds no connections."""
    monkeypatch.setattr(leaving_groups, "shut_connections", lambda addresses, rank: None)
    monkeypatch.setattr(leaving_groups, "LEAVE_TIMEOUT", timedelta(seconds=0.2))
    why = why_groups_cannot_be_left()
    assert why == "a collective of gloo goes on waiting when Headway shuts its connections"


def test_a_group_that_does_not_form_is_left_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    assert why_groups_cannot_be_left() is None
