"""The file by which a prepared set is known to consist of others: also launchers look for it, which
know nothing else of sets."""

from __future__ import annotations

MIXTURE = "mixture.json"
