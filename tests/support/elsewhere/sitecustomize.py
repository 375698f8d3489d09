"""Python of a system that is not Linux, in a simulation: a test puts this folder into PYTHONPATH.

It takes away what macOS lacks, and from Headway's own modules also what Windows lacks: libraries
there have other code, Headway has not.
"""

from __future__ import annotations

import builtins
import errno
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

LACKING = {
    os: "sched_getaffinity sched_setaffinity posix_fallocate posix_fadvise memfd_create pidfd_open "
    "eventfd copy_file_range splice setns unshare getrandom getxattr setxattr listxattr waitid "
    "fdatasync pipe2 O_TMPFILE O_PATH O_DIRECT",
    select: "epoll",
    signal: "sigtimedwait sigwaitinfo pidfd_send_signal SIGPWR SIGRTMIN SIGRTMAX",
    socket: "AF_NETLINK AF_PACKET SO_BINDTODEVICE SO_PEERCRED SOCK_CLOEXEC SOCK_NONBLOCK "
    "TCP_KEEPIDLE TCP_USER_TIMEOUT",
    time: "CLOCK_BOOTTIME CLOCK_TAI",
}
FOLDERS = ("/proc/", "/sys/", "/dev/shm")
MODULES = {"fcntl", "grp", "pwd", "resource", "syslog", "termios", "tty"}

for module, names in LACKING.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

_import = builtins.__import__


def without(
    name: str,
    globals: Mapping[str, Any] | None = None,
    locals: Mapping[str, Any] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    if name in MODULES and (globals or {}).get("__name__", "").startswith("headway"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return _import(name, globals, locals, fromlist, level)


def no_such_file(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(FOLDERS):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])


builtins.__import__ = without
sys.addaudithook(no_such_file)
