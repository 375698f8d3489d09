"""The fork server of script workers: `python -m headway.script [RUN_DIRECTORY]`, started by a
launcher. Its protocol is that of `headway.train.fork_server`."""

from __future__ import annotations

import os
import sys
from functools import partial

from headway.script.worker import main as run_worker
from headway.train.fork_server import import_store, serve


def main(arguments: list[str]) -> None:
    serve(run_worker, [partial(import_store, location) for location in arguments[:1]])


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # as in headway.train.fork_server
