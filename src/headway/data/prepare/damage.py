"""How much of the sources was lost to damaged files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.data.formats.chunks import Problem
from headway.data.prepare.recipe import Recipe


@dataclass(frozen=True)
class SourceLoss:
    """The loss to all damaged files of a set."""

    num_files: int
    num_rows: int
    """Rows lost in the files whose format counts rows."""
    num_bytes: int
    """Bytes lost in the other files, as stored."""
    share: float
    """Share lost of the bytes of all sources."""
    is_complete: bool
    """Whether the loss of each damaged file is known."""

    def __str__(self) -> str:
        """`1 file is damaged; lost: about 17% of the sources (500 rows)`."""
        files = "1 file is" if self.num_files == 1 else f"{self.num_files} files are"
        return f"{files} damaged; lost: {self._loss()}"

    def _loss(self) -> str:
        if not self.share:
            return "an unknown amount"
        counts = [f"{self.num_rows} row{'' if self.num_rows == 1 else 's'}"] * bool(self.num_rows)
        if self.num_bytes >= 1e6:
            counts.append(f"{self.num_bytes / 1e6:.3g} MB")
        elif self.num_bytes:
            counts.append(f"{self.num_bytes} bytes")
        share = f"{self.share:.0%}" if self.share >= 0.01 else f"{self.share:.2%}"
        how = "about" if self.is_complete else "at least"
        return f"{how} {share} of the sources ({', '.join(counts)})"


def damage_to(recipe: Recipe, problems: Sequence[Problem]) -> SourceLoss | None:
    """Return what damage has cost; None if no file is damaged."""
    found = [problem for problem in problems if problem.is_damage]
    if not found:
        return None
    sizes = {file.name: file.size for file in recipe.files}
    total, lost = float(sum(sizes.values())), 0.0
    for problem in found:
        size, share = sizes.get(problem.file, 0), problem.share or 0.0
        lost += share * size if problem.num_bytes is None else problem.num_bytes
        if problem.num_bytes and share:
            # A file that was cut off should be larger than it is.
            total += max(0.0, problem.num_bytes / share - size)
    return SourceLoss(
        num_files=len({problem.file for problem in found}),
        num_rows=sum(problem.num_rows or 0 for problem in found),
        num_bytes=sum(problem.num_bytes or 0 for problem in found if problem.num_rows is None),
        share=min(1.0, lost / total) if total else 0.0,
        is_complete=all(problem.share and sizes.get(problem.file) for problem in found),
    )
