"""headway serve: what the pod that serves a claim runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Event


def serve() -> None:
    """Serve the files of a claim (used in pods that other commands create)."""
    from headway.clock import SystemClock
    from headway.http_server import TEXT, HttpServer
    from headway.kube.names import HTTP_PORT
    from headway.kube.versions import require_launchers_version
    from headway.launch.claim_server import ServedClaim
    from headway.member.protocol.sockets import bound_to

    require_launchers_version()
    over = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    key = Path(os.environ["HEADWAY_KEY"]).read_text().strip()
    clock = SystemClock()
    claim = ServedClaim(Path(os.environ["HEADWAY_STORAGE"]), key, clock)
    pages = {"/healthz": lambda: (TEXT, b"ok\n")}
    with HttpServer(bound_to("", HTTP_PORT), pages, clock, claim.resources):
        over.wait()
