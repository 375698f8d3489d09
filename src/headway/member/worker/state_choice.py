"""Which state of the run its members continue from. Pure.

A state is named (step, generation that committed it). A collective may complete for some members
and fail for others, so members may enter a generation with different states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Name = tuple[int, int]
NO_STATE: Name = (-1, 0)


def state_of_domain(names: Sequence[Name]) -> Name:
    """The state that a domain holds: the one that all of its ranks have. The source of a state may
    have died when only some of them had received it."""
    return names[0] if len(set(names)) == 1 else NO_STATE


def state_of_most(held: Sequence[Name]) -> Name:
    """The state to continue from, out of those that domains hold: the most common one, and on a tie
    the highest. A step that only one domain has committed was not settled, and copying it over all
    other states would make the run depend on a single source."""
    holders = Counter(name for name in held if name != NO_STATE)
    return max(holders, key=lambda name: (holders[name], name), default=NO_STATE)
