"""Headway: language-model training from one run file.

What user code needs is imported from here: `from headway import IGNORED, Batch, Loss`. These names
are loaded on first use, so `import headway` stays fast and needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["IGNORED", "Batch", "Loss", "__version__"]

if TYPE_CHECKING:
    from headway.train.batches import IGNORED, Batch, Loss
else:  # unseen by type checkers, for which any name would be one of ours

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        globals()[name] = getattr(import_module("headway.train.batches"), name)
        return globals()[name]

    def __dir__():
        return sorted({*globals(), *__all__})
