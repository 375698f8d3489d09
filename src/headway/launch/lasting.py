"""How long something has been so: what lasts is a problem, what passes is none."""

from __future__ import annotations


class Lasting:
    def __init__(self) -> None:
        self._since: float | None = None

    def seconds(self, is_so: bool, since: float, now: float) -> float:
        """Without a break until now. `since`: when it began, if it was not so the last time."""
        if not is_so:
            self._since = None
            return 0.0
        if self._since is None:
            self._since = since
        return now - self._since
