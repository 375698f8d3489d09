"""Who is there, as the coordinator tells its keeper."""

from __future__ import annotations

from headway.launch.roster import present


def test_a_session_that_nobody_speaks_in_is_no_sign_of_life() -> None:
    """A machine without power closes nothing."""
    pods = {
        "headway-it-0-aaaaa.1/0.da8b6cd1": {"session": 0, "silent_seconds": 0.4},
        "headway-it-1-bbbbb.2/0.0c5e": {"session": 7, "silent_seconds": 9.0},
        "headway-it-2-ccccc.1/0.77aa": {"session": None, "silent_seconds": 0.1},
        "headway-it-3-ddddd.1/0.1234": {"session": 8, "silent_seconds": 9.0},
        "headway-it-3-ddddd.1/1.5678": {"session": 9, "silent_seconds": 1.0},
    }
    assert present({"pods": pods}) == {"headway-it-0-aaaaa", "headway-it-3-ddddd"}
