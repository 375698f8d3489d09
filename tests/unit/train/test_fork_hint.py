"""Which checkpoint to fork from when no majority shows whose weights are right."""

from __future__ import annotations

import pytest

from headway.state.run_directory import RunDirectory
from headway.train.loop import fork_hint
from support.chains import saved_at


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (300, "headway fork it@150 it-2"),  # that of step 250 may have the flipped bit
        (350, "headway fork it@250 it-2"),
        (200, "nothing was saved before that"),
    ],
)
def test_the_newest_checkpoint_from_when_all_agreed(
    directory: RunDirectory, step: int, says: str
) -> None:
    saved_at(directory, 150, 250)
    assert says in fork_hint(directory, step)
