"""The sets of a run that are on its target: prepared there, or named by a path on its claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from headway.cli.output import say
from headway.kube.names import STORAGE
from headway.kube.own_image import has_own_image
from headway.spec.data_config import CLAIM

if TYPE_CHECKING:
    from lightkube.resources.batch_v1 import Job

    from headway.cli.data_on_target import TargetSet
    from headway.cli.target_run import TargetRun
    from headway.data.prepare.job import PrepareJob
    from headway.kube.storage_layout import Key
    from headway.spec.load import LoadedTarget


class SetsOnTarget:
    def __init__(self, run: TargetRun, found: LoadedTarget, secrets: Sequence[str]) -> None:
        self._run = run
        self._found = found
        self._secrets = secrets
        """Variables of the run, which its pods get: a token of the hub, say."""
        self._made: dict[str, TargetSet] = {}
        """By location from this machine."""

    def takes(self, job: PrepareJob) -> bool:
        from headway.cli.data_on_target import why_not_there

        target = self._run.target
        if has_own_image(target) and target.prepare.image is None:
            # No pod could, unless one has to.
            return any(one.startswith(CLAIM) for one in job.sources)
        return why_not_there(job) is None

    def prepared(self, job: PrepareJob, name: str, is_streamed: bool) -> str:
        from headway.cli.data_on_target import prepare_on

        made = prepare_on(
            job,
            name,
            None,
            self._run,
            self._found,
            None,
            self._secrets,
            until_planned=is_streamed,
        )
        self._made[made.here] = made
        if is_streamed and not made.is_done:
            say(f"{name} is being prepared: workers start, and wait for its first samples")
        return made.here

    def located(self, path: str) -> str:
        from headway.cli.target_sets import path_on_claim

        return f"{self._run.storage}/{path_on_claim(path, self._run.target, self._run.on)}"

    def in_pods(self, location: str) -> str:
        """An address from this machine, as pods see it."""
        storage = self._run.target.storage
        if storage is not None and storage.claim is not None:
            return location.replace(f"{self._run.storage}/", f"{STORAGE}/", 1)
        return location

    def folders(self, sets: Mapping[Key, str]) -> dict[Key, str]:
        """Of the run's sets, the folder of each that was prepared on the target."""
        return {
            key: PurePosixPath(location).name
            for key, location in sets.items()
            if location in self._made
        }

    def let_go(self) -> None:
        """Before an earlier launch of the run is deleted: what it prepares would go with it."""
        self.belong_to(None)

    def belong_to(self, job: Job | None) -> None:
        """What is still being prepared is deleted with the run."""
        for made in self._made.values():
            if not made.is_done:
                made.run.belong_to(job)
