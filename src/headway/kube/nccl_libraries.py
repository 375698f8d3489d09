"""Libraries that NCCL loads because a variable names them, and that an image may lack."""

from __future__ import annotations

from collections.abc import Mapping

VERBS = ("libibverbs.so", "libibverbs.so.1")
PLUGINS = {"NCCL_NET_PLUGIN": "libnccl-net", "NCCL_TUNER_PLUGIN": "libnccl-tuner"}


def named_libraries(variables: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return, by variable, the libraries of which NCCL needs one."""
    found: dict[str, tuple[str, ...]] = {}
    for variable, prefix in PLUGINS.items():
        for name in filter(None, variables.get(variable, "").split(",")):
            if name.lower() != "none":
                found.setdefault(variable, (name, f"{prefix}-{name}.so"))
    network = variables.get("NCCL_NET", "").lower()
    if network == "ib":
        found["NCCL_NET"] = VERBS
    elif network not in ("", "socket") and "NCCL_NET_PLUGIN" not in found:
        found["NCCL_NET"] = ("libnccl-net.so",)
    return found
