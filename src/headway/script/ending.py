"""When a script is ended, and with which code its worker exits. Pure: no clock, no process.

                     generation runs on       asked to stop    generation over,   generation lost
                     and nobody asked         or to leave      nobody lost        a member
    Headway sends    nothing                  SIGTERM, after 110 s SIGKILL        SIGKILL after 1 s
    the script ends
      with 0         0, once all ranks have   6                8                  8
      otherwise      1, 7 or its signal       6                8                  8

If several columns hold, a lost member comes first and a request second.

A script that fails waits 5 s for the coordinator to name a lost member, unless a signal from
outside ended it. If no member is named, the worker ends by the script's own signal, or exits:
  1  the run fails: an error in the first minute, before any heartbeat, if no earlier start since
     the launch has worked, and the last words tell of no lost peer and no taken port
  7  any other error, which the launcher counts
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable
from enum import Enum

from headway.errors import Exit
from headway.train.lost_peer_signs import LOST_PEER_SIGNS

GRACE_SECONDS = 110.0
"""From SIGTERM to SIGKILL, for a script that saves before it ends. Pods have 120 s."""
LOST_GRACE_SECONDS = 1.0
"""The same when a member was lost: most likely it waits in a collective, and saves nothing."""
DECISION_SECONDS = 5.0
"""Wait, after the script has failed here, for the coordinator to say who is lost."""
FIRST_SECONDS = 60.0
"""Age at which an error of the script may be a mistake that every start would repeat: a missing
file, a wrong name. Later ones look like those of a machine."""

FOLLOWING_SIGNS = (
    *LOST_PEER_SIGNS,
    *("Connection closed by peer", "Connection reset by peer", "Connection refused"),
    *("Broken pipe", "Socket closed", "[enforce fail at"),
    *("DistNetworkError", "DistStoreError", "Store::get", "wait timeout"),
    *("ncclRemoteError", "remote process exited", "NCCL communicator was aborted"),
    "recvValue failed",
    "Watchdog caught collective operation timeout",
)
"""Of processes whose peer has ended, or never came."""
PORT_SIGNS = ("Address already in use", "EADDRINUSE")
"""Of rank 0, if another process has taken its port since it was found free: the next start has
another one."""


class GenerationState(Enum):
    CURRENT = "current"
    SOUND = "over, and nobody was lost"
    LOST = "over, since a member was lost"


class Blame(Enum):
    """Least first."""

    FOLLOWS = 0
    """Its words say that it has lost a peer."""
    ABORTED = 1
    """By itself, as torch's watchdog does when a peer is lost."""
    OWN = 2


def grace_seconds(is_asked: bool, generation: GenerationState) -> float | None:
    """From SIGTERM to SIGKILL; None: the script is left alone."""
    if generation is GenerationState.LOST:
        return LOST_GRACE_SECONDS
    is_ended = is_asked or generation is GenerationState.SOUND
    return GRACE_SECONDS if is_ended else None


def ended_code(is_asked: bool, generation: GenerationState) -> Exit | None:
    """Exit code of the worker of a script that has ended, however it did; None: it has ended by
    itself."""
    if generation is GenerationState.LOST:
        return Exit.GENERATION_OVER
    if is_asked:
        return Exit.STOPPED
    return Exit.GENERATION_OVER if generation is GenerationState.SOUND else None


def is_cut_short(generation: GenerationState, age_seconds: float, has_begun: bool) -> bool:
    """Whether a planned change ended the script before anybody could know that it works: the next
    start is as good as the first. `age_seconds`: when it was asked to end."""
    is_young = age_seconds < FIRST_SECONDS and not has_begun
    return generation is GenerationState.SOUND and is_young


def is_untried(first: int, begun: Iterable[int], cut_short: Collection[int]) -> bool:
    """Whether no start since the launch has worked, failed or lost a member. `first`: generation
    of the launch; `begun`: those that were begun; `cut_short`: those of them that were. One whose
    end nobody has recorded has lost the member that would have."""
    return all(number in cut_short for number in begun if number >= first)


def has_finished(first: int, finished: Iterable[int]) -> bool:
    """Whether the script has finished since the launch: a node that comes now has nothing to do. By
    generations, not by times: the clock of a machine may be ahead, and a launch on purpose runs the
    script again. `first`: generation of the launch; `finished`: those in which it has."""
    return any(number >= first for number in finished)


def failed_code(exit_code: int, age_seconds: float, is_untried: bool, words: str) -> int:
    """Exit code of the worker to blame for a script that has failed by itself; negative: the signal
    by which it ends itself, so that the kernel's count of out-of-memory kills still explains it.
    `is_untried`: nothing is known of this script since the run was launched."""
    assert exit_code != 0
    if exit_code < 0:
        return exit_code
    is_of_network = any(sign in words for sign in (*FOLLOWING_SIGNS, *PORT_SIGNS))
    is_mistake = is_untried and age_seconds < FIRST_SECONDS and not is_of_network
    return Exit.RUN_FAILED if is_mistake else Exit.PEER_LOST


def decision_seconds(exit_code: int) -> float:
    """How long a failure here may still be explained by the loss of another member. A signal comes
    from this machine, unless the process has ended itself."""
    return DECISION_SECONDS if exit_code > 0 or exit_code == -signal.SIGABRT else 0.0


def blame(exit_code: int, words: str) -> Blame:
    """How much this failure explains, if several ranks have failed."""
    if any(sign in words for sign in FOLLOWING_SIGNS):
        return Blame.FOLLOWS
    return Blame.ABORTED if exit_code == -signal.SIGABRT else Blame.OWN
