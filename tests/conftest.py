"""What all tiers share."""

from __future__ import annotations

import os

# No test may ask the hub, and thread counts decide bits.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
