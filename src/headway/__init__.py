"""Headway: language-model training from one run file.

From Python: `headway.load("run.yaml").run()`, `headway.open("NAME").metrics()`, `headway.runs()`.
What your own code needs is imported from here as well: `from headway import IGNORED, Batch, Loss`.
All names are loaded on first use, so `import headway` stays fast and needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = [
    "IGNORED",
    "BadInput",
    "Batch",
    "CheckFailed",
    "CheckedRun",
    "HeadwayError",
    "Loss",
    "NotFound",
    "Rows",
    "Run",
    "RunConfig",
    "RunFailed",
    "StillRunning",
    "Stopped",
    "__version__",
    "load",
    "open",
    "runs",
]

if TYPE_CHECKING:
    from headway.api.config import CheckedRun, RunConfig, load
    from headway.api.run import Run, runs
    from headway.api.run import open_run as open
    from headway.api.tables import Rows
    from headway.errors import (
        BadInput,
        CheckFailed,
        HeadwayError,
        NotFound,
        RunFailed,
        StillRunning,
        Stopped,
    )
    from headway.train.batches import IGNORED, Batch, Loss
else:  # unseen by type checkers, for which any name would be one of ours
    _MODULES = {
        "headway.train.batches": ("IGNORED", "Batch", "Loss"),
        "headway.api.config": ("CheckedRun", "RunConfig", "load"),
        "headway.api.run": ("Run", "open", "runs"),
        "headway.api.tables": ("Rows",),
    }

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        places = (module for module, names in _MODULES.items() if name in names)
        found = import_module(next(places, "headway.errors"))
        globals()[name] = getattr(found, "open_run" if name == "open" else name)
        return globals()[name]

    def __dir__():
        return sorted({*globals(), *__all__})
