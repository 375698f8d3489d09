"""Names of prepared sets that also launchers look for, which know nothing else of sets."""

from __future__ import annotations

MIXTURE = "mixture.json"
"""The file by which a set is known to consist of others."""
PREPARED = "prepared"
"""Folder of the sets that runs prepare, beside the run file."""
MANIFEST = "manifest.json"
"""The file that completes a set."""
FAILED = "failed.txt"
"""Why a preparation failed, in a set that has no manifest."""
PROGRESS = "progress"
"""Folder of what is known of an unfinished preparation."""
ATTEMPTS = f"{PROGRESS}/attempts"
"""Folder that counts the attempts of each part since it last finished a shard."""
