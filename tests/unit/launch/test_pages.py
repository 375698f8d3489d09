"""What is said of a run in the coordinator's pod."""

from __future__ import annotations

from headway.launch.pages import newest_loss


def test_a_loss_is_told_until_the_run_goes_on_from_it() -> None:
    launched = {"event": "launched"}
    lost = {"event": "lost", "node": 2, "how": "ended with exit code 137 (out of memory) (it-2-a)"}
    words = "node 2 was lost: its pod ended with exit code 137 (out of memory) (it-2-a)"
    assert newest_loss([launched, lost, {"event": "saved"}]) == words
    assert newest_loss([launched, lost, {"event": "changed"}]) is None
    assert newest_loss([lost, launched]) is None
    assert newest_loss([]) is None
