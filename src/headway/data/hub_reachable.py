"""Checks whether the Hugging Face hub is reachable: once per process, before the first name that
may be on the hub. Its library would otherwise retry five times per file, for half a minute."""

from __future__ import annotations

from functools import lru_cache

PROBE_SECONDS = 10.0


@lru_cache(maxsize=1)
def why_hub_is_away() -> str | None:
    """None if the hub answers, whatever the status. Otherwise, the reason; its library is then
    switched to offline mode: it uses the local cache and sends no more requests."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=PROBE_SECONDS)
    except Exception as error:  # noqa: BLE001 - from its HTTP library; callers report it
        constants.HF_HUB_OFFLINE = True
        return f"{constants.ENDPOINT}: {error}"
    return None
