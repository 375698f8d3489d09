"""For every Python that a script's worker starts: its stacks go to the log when it is sent the
signal below. Then the user's own sitecustomize runs, as it would without this one.

Python imports it at start from PYTHONPATH, unless it runs with -S, -E or -I. It works in any
version that torch supports, and imports nothing of Headway.
"""

import faulthandler
import os
import signal
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

# Not SIGUSR1 or SIGUSR2: scripts have handlers for those, to save when a scheduler asks for it.
STACKS_SIGNAL = signal.SIGRTMIN + 12


def run_users_own() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    # Nothing else is to be found there, and the script need not see it.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    spec = PathFinder.find_spec(__name__, sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules[__name__] = module_from_spec(spec)
        spec.loader.exec_module(module)


if hasattr(faulthandler, "register"):
    faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True)
run_users_own()
