"""A replica group of one worker under torchft that divides the batch of each step by
`participating_rank`. Arguments: the number of the group and of all, gloo's timeout, and how often a
quorum is asked for again."""

from __future__ import annotations

import sys

from bench.faults.torchft_parts import Replica

part, _, gloo_seconds, quorum_retries = map(int, sys.argv[1:])
Replica(f"faults_{part}", gloo_seconds, quorum_retries).train_by_rank()
