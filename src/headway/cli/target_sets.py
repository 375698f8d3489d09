"""Whether a target can read the sets of a run, and prepare them: from the run file and the target
alone, so that `headway check` refuses what a launch would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headway.errors import BadInput, SpecError
from headway.kube.data_job import Preparation, data_objects
from headway.kube.own_image import has_own_image
from headway.spec.data_config import CLAIM, claim_path, is_elsewhere
from headway.spec.run_sources import Key, run_sources

if TYPE_CHECKING:
    from headway.kube.names import Object
    from headway.spec.data_config import SourceConfig
    from headway.spec.load import Loaded, LoadedTarget
    from headway.spec.run_file import RunFile
    from headway.spec.target_file import Target

ANY_KEY = "0" * 12


def require_sets_on(loaded: Loaded, found: LoadedTarget) -> None:
    """Raises if the target cannot read a set or its sources, or cannot prepare what it has to."""
    for key, source in run_sources(loaded.run):
        where = str(loaded.located.mark(key))
        claims = [one for one in [source.path, *(source.sources or ())] if one and _is_claim(one)]
        for claim in claims:
            try:
                path_on_claim(claim, found.target, found.name)
            except BadInput as error:
                problem = f"{_dotted(key)}: {error.message}"
                raise SpecError(problem, where, error.hint) from None
        _refuse_here_only(loaded, found, key, source)


def _refuse_here_only(loaded: Loaded, found: LoadedTarget, key: Key, source: SourceConfig) -> None:
    sources, is_streamed = source.sources or [], bool(source.stream)
    if not is_streamed and not any(map(_is_claim, sources)):
        return  # prepared on this machine, if not there
    reason = why_only_here(sources, source.deduplicate, source.transform)
    if reason is None:
        return
    if is_streamed:
        raise SpecError(
            f"{_dotted(key)}.stream: {reason}, and pods cannot read a set that is still being "
            "prepared here",
            str(loaded.located.mark((*key, "stream"))),
            "remove it: the set is then prepared first; or put the sources into a bucket, or on "
            "the claim",
        )
    raise SpecError(
        f"{_dotted(key)} cannot be prepared on {found.name}: {reason}",
        str(loaded.located.mark(key)),
        "what is on a claim is prepared by pods, which read all of the sources",
    )


def why_only_here(sources: Sequence[str], deduplicate: bool, transform: str | None) -> str | None:
    """Why sources have to be prepared on this machine; None if they need not."""
    if here := next((one for one in sources if not is_elsewhere(one)), None):
        return f"{here} is on this machine, which pods cannot see"
    if deduplicate:
        return "deduplicate needs all sources in one process"
    if transform is not None:
        return "transform is code on this machine"
    return None


def path_on_claim(text: str, target: Target, name: str) -> str:
    """The path of `claim:PATH` on the target of that name."""
    if target.storage is None or target.storage.claim is None:
        raise BadInput(
            f"{text}: the storage of target {name} is no claim",
            "name an address, such as s3://BUCKET/PREFIX; or storage: {claim: NAME} in the target",
        )
    try:
        return claim_path(text)
    except ValueError as error:
        raise BadInput(str(error)) from None


def preparing_objects(run: RunFile, target: Target) -> list[Object]:
    """Objects like those that will prepare the run's data on the target; none if no pod has to."""
    there = [source for _, source in run_sources(run) if _is_prepared_there(source)]
    if has_own_image(target) and target.prepare.image is None:
        # Then only what this machine cannot prepare.
        there = [source for source in there if _needs_pods(source)]
    return data_objects(Preparation(ANY_KEY, 1, 1, "", run.secrets), target) if there else []


def _is_prepared_there(source: SourceConfig) -> bool:
    sources = source.sources or []
    return bool(sources) and why_only_here(sources, source.deduplicate, source.transform) is None


def _needs_pods(source: SourceConfig) -> bool:
    return bool(source.stream) or any(map(_is_claim, source.sources or ()))


def _is_claim(source: str) -> bool:
    return source.startswith(CLAIM)


def _dotted(key: Key) -> str:
    return ".".join(map(str, key))
