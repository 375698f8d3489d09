"""Plays histories, judges and tells them."""

from __future__ import annotations

from collections.abc import Callable

from headway.member.coordinator.decide import Membership
from headway.member.worker.follower import Follower
from support.membership.checks import CHOOSE, Choose
from support.membership.coordinator import MakeMembership
from support.membership.history import History
from support.membership.live_run import LiveRun
from support.membership.restart_run import RestartRun


def simulated(
    history: History,
    membership: MakeMembership = Membership,
    follower: Callable[[str], Follower] = Follower,
    choose: Choose = CHOOSE,
    telling: bool = False,
) -> LiveRun | RestartRun:
    if history.restarts:
        return RestartRun(history, membership, follower, telling)
    return LiveRun(history, membership, follower, choose, telling)


def failure(
    history: History,
    membership: MakeMembership = Membership,
    follower: Callable[[str], Follower] = Follower,
    choose: Choose = CHOOSE,
) -> str | None:
    """What did not hold in this history, if anything."""
    try:
        simulated(history, membership, follower, choose).play()
    except Exception as error:  # noqa: BLE001 - a crash of the membership is a failure like any other
        return f"{type(error).__name__}: {error}"
    return None


def story(
    history: History,
    membership: MakeMembership = Membership,
    follower: Callable[[str], Follower] = Follower,
    choose: Choose = CHOOSE,
) -> str:
    """The history as it went, for people."""
    run = simulated(history, membership, follower, choose, telling=True)
    try:
        run.play()
        end = "All held."
    except Exception as error:  # noqa: BLE001
        end = f"{run.world.now:8.3f} s  BROKEN: {error}"
    lines = run.world.story or []
    return "\n".join([repr(history), "", *lines, end])
