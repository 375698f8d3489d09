"""The fork server of script workers, with other deadlines than those of users:
`python hurried_script_server.py MODULE.NAME=SECONDS... RUN_DIRECTORY`."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from headway.script.__main__ import main

if __name__ == "__main__":
    *settings, location = sys.argv[1:]
    for setting in settings:
        name, _, seconds = setting.partition("=")
        module, _, constant = name.rpartition(".")
        target = import_module(f"headway.{module}")
        assert isinstance(getattr(target, constant), float)
        setattr(target, constant, float(seconds))
    main([location])
    os._exit(0)
