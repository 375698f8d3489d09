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
