"""Words by which errors of torch tell that another worker was lost, where they have no type.
`tests/local/test_lost_peers.py` compares them with errors of real losses, at both ends of the range
of torch that is tested."""

LOST_PEER_SIGNS = (
    "gloo/transport",  # beside a connection that was closed, reset or refused, or a timeout
    "connectFullMesh failed",  # gloo, whatever became of a connection to another worker
    "Application timeout caused pair closure",  # gloo's other all-reduces, after one timed out
    "Wait timeout",  # torch's FileStore
    "Timeout waiting for key",
)
"""gloo and FileStore raise RuntimeError. NCCL and the other stores raise `dist.DistError`."""
FORMING_SIGNS = (
    *("timed out", "timeout"),
    *("connection was likely closed", "connection closed", "closed by remote peer"),
    *("closed by peer", "peer closed", "socket closed", "closed the connection"),
    *("reset by peer", "broken pipe", "connection abort", "connection refused"),
    "no route to host",  # what a dead machine's neighbours say after a while
    *("remote process exit", "communicator was aborted"),
    "connectfullmesh failed",
)
"""The same while a group forms, in lower case. NCCL has one type for timeouts, closed connections
and faults of this machine: a full /dev/shm, a GPU that two workers share, a missing library or
network interface. Those would be so again, with words that only this worker's error has."""
FRAMES = "\nException raised from "
"""Before the frames of torch's C++ code, which name functions such as throwTimeoutError."""


def is_loss_while_forming(words: str) -> bool:
    """Whether the words of an error of a group that forms say that another worker was lost."""
    words = words.partition(FRAMES)[0].lower()
    return any(sign in words for sign in FORMING_SIGNS)


def why_not_formed(words: str) -> str:
    """The message of a run whose workers cannot form a group, for a reason of this machine."""
    return f"the workers cannot form their group: {words.partition(FRAMES)[0].strip()}"
