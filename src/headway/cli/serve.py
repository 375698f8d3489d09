"""headway serve: what the pod runs that serves a claim."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Event


def serve() -> None:
    """Serve a claim's files, in a pod that other commands make when they need one; you need not."""
    from headway.clock import SystemClock
    from headway.kube.names import HTTP_PORT
    from headway.launch.serving import Server
    from headway.member.http import TEXT

    over = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    key = Path(os.environ["HEADWAY_KEY"]).read_text().strip()
    files = (Path(os.environ["HEADWAY_STORAGE"]), key)
    pages = {"/healthz": lambda: (TEXT, b"ok\n")}
    with Server(("", HTTP_PORT), pages, SystemClock(), files) as server:
        server.start()
        over.wait()
