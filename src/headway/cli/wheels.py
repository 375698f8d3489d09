"""headway wheels: what serves Headway itself to pods whose image has none."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from tempfile import TemporaryDirectory

from headway.cli.output import say


def wheels() -> None:
    """Serve the wheels of this image (used in the coordinator's pod of headway run --on)."""
    from headway.clock import SystemClock
    from headway.errors import Exit
    from headway.kube.names import WHEELS_PORT
    from headway.kube.versions import require_launchers_version
    from headway.kube.wheels import own_files, shipped, wheels_folder
    from headway.launch.wheel_server import WheelServer, served_files
    from headway.member.protocol.sockets import bound_to

    signal.signal(signal.SIGTERM, lambda *_: os._exit(Exit.DONE))
    require_launchers_version()
    os.nice(10)
    with TemporaryDirectory(prefix="headway-") as scratch:
        own = Path(scratch, "headway.zip")
        own.write_bytes(own_files())
        listed = shipped()["wheels"]
        files = served_files(wheels_folder(), own, listed)
        lacking = len(listed) + 1 - len(files)
        say(f"serving {len(files)} files" + (f"; {lacking} are lacking" if lacking else ""))
        with WheelServer(bound_to("", WHEELS_PORT), files, SystemClock()) as server:
            server.serve_forever()
