"""Errors of an accelerator that has failed: the machine's fault, not the run's."""

from __future__ import annotations

BROKEN_SIGNS = (
    "uncorrectable ecc error",
    "uncorrectable nvlink error",
    "unspecified launch failure",
    "hardware stack error",
    "or a hardware error",  # CUDA's "contained" errors
    "fallen off the bus",
    "gpu is lost",
    "no cuda-capable device is detected",
    "cuda error: unknown error",
    "cuda failure 'unknown error'",
    "system not yet initialized",  # its fabric manager is down
    "xid",
)
"""Words of the driver, in lower case, by torch or NCCL. Memory that is accessed in a wrong place is
not among them: that is mostly a kernel's mistake."""
OWN_SIGNS = ("device-side assert", "out of memory")
"""What a run does to a device that works."""


def broken_device(error: BaseException) -> str | None:
    """The line that says that this process's device has failed; None if `error` means anything
    else. torch raises these errors as RuntimeErrors of several types, from any call."""
    if not isinstance(error, RuntimeError):
        return None
    text = str(error).lower()
    if any(sign in text for sign in OWN_SIGNS):
        return None
    for line in str(error).splitlines():
        if any(sign in line.lower() for sign in BROKEN_SIGNS):
            return line.strip()
    return None
