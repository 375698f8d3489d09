"""The commit that a name on the Hugging Face hub stands for at this moment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from headway.data.hub_reachable import PROBE_SECONDS, why_hub_is_away
from headway.errors import BadInput
from headway.spec.hub_names import SOURCE, at_commit, source_reference, without_revision


class HubNotAsked(Exception):
    """The hub cannot be reached, or does not tell us: those who read from it may know more."""


def hub_commit(kind: Literal["models", "datasets"], name: str, revision: str | None) -> str:
    """Asks once. Raises HubNotAsked, or BadInput if there is no such revision."""
    if (away := why_hub_is_away()) is not None:
        raise HubNotAsked(away)
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RevisionNotFoundError

    api = HfApi()
    ask = api.model_info if kind == "models" else api.dataset_info
    try:
        found = ask(name, revision=revision, timeout=PROBE_SECONDS).sha
    except RevisionNotFoundError:
        raise BadInput(
            f"{name} on the hub has no revision {revision}",
            "give a commit, a tag or a branch of it",
        ) from None
    except Exception as error:  # noqa: BLE001 - also from its HTTP library
        # Private, gated or unknown: pods may have a token that this machine does not have.
        said = str(error).strip() or type(error).__name__
        raise HubNotAsked(said.splitlines()[0]) from None
    if found is None:
        raise HubNotAsked("it names no commit")
    return str(found)


def fixed_source(source: str, begun: Iterable[str]) -> str:
    """A source of a preparation, with its commit: the one of `begun`, which an earlier attempt has
    read from, else the newest. Unchanged if the hub cannot be asked, or it is not on the hub."""
    if not source.startswith(SOURCE):
        return source
    named = source_reference(source)
    names = list(begun)
    if named.is_fixed or source in names:
        return source
    for name in names:
        if without_revision(name) == without_revision(source):
            return name
    try:
        return at_commit(source, {named.id: hub_commit("datasets", named.name, named.revision)})
    except HubNotAsked:
        return source
