"""What a run needs, and every deadline of the coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from headway.member.protocol.messages import MAX_WORKERS

FIRST_STEP_SECONDS = 900.0
"""Time for the first step of a process: compiling a large model takes minutes."""
ALONE_SECONDS = 90.0
RESTART_ALONE_SECONDS = 15.0
"""Shorter where workers restart: their state is restored from a checkpoint anyway, and a run of
one machine is to be replaced when that has no power."""


@dataclass(frozen=True)
class Rules:
    min_domains: int = 1
    """Domains below which the run saves and waits."""
    max_domains: int = 1
    """Domains above which workers are spares."""
    first_domains: int = 0
    """Domains with which the first generation starts, without waiting for more. 0:
    `max_domains`."""
    domain_workers: int = 1
    """Workers that hold one copy of the model between them."""
    node_workers: int = 1
    """Workers of one node. They have formed a group before they ask to join, so a domain is made of
    whole nodes. 1: any workers make a domain."""
    restarts: bool = False
    """Whether workers end with their generation: a change ends the generation, and the next is made
    of new processes, which restore the newest checkpoint. Nobody keeps the run's state."""

    reconnect_seconds: float = 0.25
    """Time to reconnect. A connection closes mostly because the process died; a living one is back
    within this time."""
    silence_seconds: float = 5.0
    """Time without a heartbeat after which a member is lost, while nobody complains or waits: then
    its silence costs nothing."""
    suspected_seconds: float = 1.5
    """The same when somebody does, in a small group that is not late. The longest pause by imports
    and compiling was 0.4 s, a lost packet is sent again after 0.2 s: one late heartbeat is not
    enough. Grows with the group and with its pauses: `silence.silence_limit`."""
    small_group: int = 8
    """Members up to which it does not grow with their number."""
    longest_silence_seconds: float = 15.0
    """The most that it grows to. Also the time for everybody while more than half of a group that
    is not small are silent: rather than they the network or the coordinator has failed."""
    lateness_seconds: float = 3600.0
    """How long a late heartbeat is remembered, at least."""
    alone_seconds: float = ALONE_SECONDS
    """The same when no member that has the run's state is heard: most likely the coordinator is cut
    off, or has moved and is not found yet, and to continue without them would lose steps. A
    launcher knows sooner if they have ended."""
    absent_seconds: float = 90.0
    """Time to reconnect after a restart of the coordinator, for members that nobody misses: they
    are at work, and have not found it yet. Names are cached for half a minute and longer."""
    comeback_seconds: float = 6.0
    """The same for members that are missed, from the first that came back. A worker whose
    coordinator vanished notices 2 s after its next heartbeat, and retries at least once a
    second."""
    lull_seconds: float = 1.5
    """The same, from the last that came back: the others were lost with the coordinator. Thousands
    need seconds to come back, but without a lull."""
    enter_seconds: float = 30.0
    """Least time to enter a generation. A worker that takes longer is stuck, whatever its
    heartbeats say; but a step may be longer, and the ranks of a sharded domain cannot leave one
    early."""
    enter_steps: int = 4
    """Time to enter, as a multiple of the median time of its steps."""
    first_step_seconds: float = FIRST_STEP_SECONDS
    """Time to enter for a worker that is in its first step."""
    idle_enter_seconds: float = 5.0
    """Time to enter for a worker that waits to be called, from when it has heard of the
    generation."""

    gather_seconds: float = 10.0
    """Wait for more workers before the first generation, from the first that is ready, if the
    minimum is."""
    join_seconds: float = 1.0
    """Wait from the first worker that wants to join: those that come together are admitted
    together."""
    newcomer_seconds: float = 1.0
    """The same where workers restart, and the others are at work: they have to end for it."""
    trouble_seconds: float = 0.5
    """Time from the first complaint to a retry with the same members, unless a loss becomes known.
    It doubles with each retry in a row, up to `longest_trouble_seconds`."""
    longest_trouble_seconds: float = 4.0
    tries: int = 3
    """Retries in a row with the same members before the one most complained of is removed."""
    barred_seconds: float = 30.0
    """How long it stays out."""

    decide_seconds: float = 0.02
    """Time from a change to a decision: what comes together is decided together."""
    idle_seconds: float = 0.5
    """Time between two decisions when nothing has changed."""
    pause_seconds: float = 0.5
    """Delay of a decision after which the coordinator knows that it was itself held up. For as long
    again it reads what came in meanwhile."""

    def __post_init__(self) -> None:
        assert self.min_domains <= self.max_domains
        assert self.max_domains * self.domain_workers <= MAX_WORKERS
        assert self.domain_workers % self.node_workers == 0, "a domain is made of whole nodes"
