"""Whether the Hugging Face hub can be reached: asked once in a process, before the first name that
may be there. Its library would try five times for each file, for half a minute."""

from __future__ import annotations

from functools import lru_cache

PROBE_SECONDS = 10.0


@lru_cache(maxsize=1)
def why_hub_is_away() -> str | None:
    """None if it answers, whatever it says. Otherwise its library is offline from now on: it finds
    what this machine has of it, and asks nobody."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=PROBE_SECONDS)
    except Exception as error:  # noqa: BLE001 - of its HTTP library; said by whoever needs the hub
        constants.HF_HUB_OFFLINE = True
        return f"{constants.ENDPOINT}: {error}"
    return None
