"""What a worker does about what it hears."""

from __future__ import annotations

from headway.member.protocol.generation import Domain, Generation
from headway.member.worker.follower import Follower


def generation(number: int, *workers: str, sound: tuple[int, ...] = ()) -> Generation:
    domains = tuple(Domain((worker,), 1, holds=True) for worker in workers)
    return Generation(number, 1, domains, 0, paused=False, sound=sound, reason="")


def working(worker: str = "a") -> Follower:
    follower = Follower(worker)
    follower.be_ready()
    follower.hear(generation(1, "a", "b"), went=True)
    follower.enter()
    follower.healed()
    return follower


def test_a_planned_change_does_not_interrupt_the_step() -> None:
    follower = working()
    follower.hear(generation(2, "a", "b", "c", sound=(1,)))
    assert not follower.must_drop()


def test_a_loss_does_not_wait() -> None:
    follower = working()
    follower.hear(generation(2, "a"))
    assert follower.must_drop()


def test_what_came_between_need_not_have_been_heard() -> None:
    follower = working()
    follower.hear(generation(5, "a", "c", sound=(3, 4)))
    assert follower.must_drop()


def test_one_that_hangs_takes_any_newer_generation() -> None:
    """Its peer has vanished, and the coordinator took it for a planned leave."""
    follower = working()
    follower.complain(("b",))
    follower.hear(generation(2, "a", sound=(1,)))
    assert follower.must_drop()


def test_one_that_waits_says_where_and_finishes_its_step_all_the_same() -> None:
    follower = working()
    follower.hear(generation(2, "a", "b", "c", sound=(1,)))
    follower.start_waiting()
    assert follower.status.waits == 1, "where it works, not what it has heard of"
    assert follower.status.trouble == 0
    assert not follower.must_drop()
    follower.stop_waiting()
    assert follower.status.waits == 0
    follower.start_waiting()
    follower.enter()
    assert follower.status.waits == 0, "all before is let go of"


def test_older_news_is_no_news() -> None:
    follower = working()
    follower.hear(generation(3, "a"))
    follower.hear(generation(2, "a", "b"))
    assert follower.newest.number == 3


def test_one_that_is_out_is_ready_again_only_when_training_says_so() -> None:
    follower = working()
    follower.hear(generation(2, "b"))
    assert follower.domain is None
    assert not follower.status.ready
    follower.be_ready()
    assert follower.status.ready


def test_only_the_newest_coordinator_is_followed() -> None:
    follower = working()
    assert follower.meet(3)
    assert not follower.meet(2)
    assert follower.meet(3)
