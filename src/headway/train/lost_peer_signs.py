"""Words by which errors of torch tell that another worker was lost."""

LOST_PEER_SIGNS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "[enforce fail at",
    "gloo/transport",
    "remote process exited",
    "NCCL communicator was aborted",
    "Store::get",
    "wait timeout",
    "Application timeout caused pair closure",  # other all-reduces, after one timed out
)
FORMING_SIGNS = (
    *("timed out", "timeout"),
    *("connection was likely closed", "connection closed", "closed by remote peer"),
    *("closed by peer", "peer closed", "socket closed", "closed the connection"),
    *("reset by peer", "broken pipe", "connection abort", "connection refused"),
    "no route to host",  # what a dead machine's neighbours say after a while
    *("remote process exit", "communicator was aborted"),
    "connectfullmesh failed",  # gloo, whatever became of a connection to another worker
)
"""The same while a group forms, in lower case: timeouts and closed connections of gloo, NCCL and
torch's stores. A full /dev/shm, a GPU that two workers share, a library or a network interface that
is missing would be so again, with the words that only this worker's error has."""
FRAMES = "\nException raised from "
"""Before the frames of torch's C++ code, which name functions such as throwTimeoutError."""


def is_loss_while_forming(words: str) -> bool:
    """Whether an error of a group that forms says that another worker was lost."""
    words = words.partition(FRAMES)[0].lower()
    return any(sign in words for sign in FORMING_SIGNS)


def why_not_formed(words: str) -> str:
    """The message of a run whose workers cannot form a group, for a reason of this machine."""
    return f"the workers cannot form their group: {words.partition(FRAMES)[0].strip()}"
