"""The functions of the user's own that a run file names, with where each is in the file."""

from __future__ import annotations

from collections.abc import Iterator

from headway.spec.run_file import RunFile
from headway.spec.run_sources import Key, run_sources


def own_calls(run: RunFile) -> Iterator[tuple[Key, str]]:
    teacher, metrics = run.objective.teacher, run.evaluation.metrics
    calls: dict[Key, str | None] = {
        ("model", "call"): run.model.call if run.model else None,
        ("objective", "call"): run.objective.call,
        ("objective", "teacher", "call"): teacher.call if teacher else None,
        ("evaluation", "metrics", "call"): metrics.call if metrics else None,
        **{(*key, "transform"): one.transform for key, one in run_sources(run)},
    }
    yield from ((key, call) for key, call in calls.items() if call is not None)
