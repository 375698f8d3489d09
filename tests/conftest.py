"""What all tiers share."""

from __future__ import annotations

import os

from hypothesis import settings

# No test may ask the hub, and thread counts decide bits.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A single example may be slow on a busy machine; whole tests have their own timeout.
settings.register_profile("headway", deadline=None)
settings.load_profile("headway")
