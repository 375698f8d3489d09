"""How long the coordinator waits for what, and what a run needs. Every deadline is here."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_STEP_SECONDS = 900.0
"""For the first step of a process: compiling a large model takes minutes."""


@dataclass(frozen=True)
class Rules:
    min_domains: int = 1
    """Below it the run saves and waits."""
    max_domains: int = 1
    """More are kept waiting, as spares."""
    first_domains: int = 0
    """So many make the first generation at once, without waiting for more. 0: the most there may
    be."""
    domain_pods: int = 1
    """Pods that hold one copy of the model between them."""
    node_pods: int = 1
    """Pods of one node. They know each other before they ask to join, so domains are made of whole
    nodes. 1: any pods make a domain."""

    reconnect_seconds: float = 0.25
    """A session that closes is mostly a process that died. One that lives is back in this time."""
    silence_seconds: float = 5.0
    """As long as nobody complains or waits, a silent member costs nothing."""
    suspected_seconds: float = 1.5
    """When somebody does. The longest pause by imports and compiling was 0.4 s, a lost packet is
    sent again after 0.2 s: one late beat is not enough."""
    alone_seconds: float = 90.0
    """When nobody is heard who has the run's state: most likely the coordinator is cut off, or
    has moved and is not found yet, and to go on without them would lose ground. Whoever looks after
    the pods knows sooner if they are no more."""
    absent_seconds: float = 90.0
    """After its own restart, for members that nobody misses: they are at work, and have not found
    it yet. Names are remembered for half a minute and longer."""
    comeback_seconds: float = 6.0
    """When they are missed, from the first that came back. Whoever was connected to a machine that
    vanished notices after a beat and 2 s without an answer, and tries again at least once a
    second."""
    lull_seconds: float = 1.5
    """The same, from the last that came back: the others are taken for lost with the coordinator.
    Thousands need seconds to come back, but without a lull."""
    enter_seconds: float = 30.0
    """A trainer that does not come to a generation by then is stuck, whatever its heartbeats say.
    At least: a step may be longer, and the ranks of a sharded domain cannot leave one early."""
    enter_steps: int = 4
    """The same, as a multiple of the median time of its steps."""
    first_step_seconds: float = FIRST_STEP_SECONDS
    """The same, for one that is in its first step."""
    idle_enter_seconds: float = 5.0
    """For one that was waiting to be called, from when it says that it has heard."""

    gather_seconds: float = 10.0
    """For the first generation: from the first pod that is ready, if at least the minimum is."""
    join_seconds: float = 1.0
    """From the first that wants to join: those who come together are admitted together."""
    trouble_seconds: float = 0.5
    """From the first complaint to a new try with the same members, unless a loss becomes known. It
    doubles with each try in a row, up to `longest_trouble_seconds`."""
    longest_trouble_seconds: float = 4.0
    tries: int = 3
    """Tries in a row with the same members before the one most complained of has to go."""
    barred_seconds: float = 30.0
    """How long such a one stays out."""

    look_seconds: float = 0.02
    """From something that has changed to a decision: what comes together is decided together."""
    idle_seconds: float = 0.5
    """Between two looks when nothing has changed."""
    pause_seconds: float = 0.5
    """Asked so much later than it wanted, the coordinator was itself held up. As long again it
    reads what came in meanwhile."""

    def __post_init__(self) -> None:
        assert self.domain_pods % self.node_pods == 0, "a domain is made of whole nodes"
