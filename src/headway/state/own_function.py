"""Whether a function of the user's own code can be called the way Headway calls it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection
from inspect import Parameter, Signature
from typing import Any

from headway.errors import BadInput
from headway.state.user_code import find_function

LOSS = METRICS = ("model", "batch")
TRANSFORM = ("record",)
"""Arguments of the calls."""


def own_function(call: str, *arguments: str) -> Callable[..., Any]:
    """The function, which takes these positional arguments. Raises if it does not."""
    return _fitting(call, lambda signature: misfit(call, signature, arguments))


def own_builder(call: str, config: Collection[str]) -> Callable[..., Any]:
    """The function, which takes the keys of `model.config` as keyword arguments."""
    return _fitting(call, lambda signature: config_misfit(call, signature, config))


Misfit = tuple[str, str]
"""What is wrong, and a hint."""


def _fitting(call: str, misfit_of: Callable[[Signature], Misfit | None]) -> Callable[..., Any]:
    function = find_function(call)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # not known, as of functions in C
        return function
    found = misfit_of(signature)
    if found is not None:
        raise BadInput(*found)
    return function


def misfit(call: str, signature: Signature, arguments: Collection[str]) -> Misfit | None:
    """Why the call with these positional arguments would fail."""
    name, given = call.partition(":")[2], f"({', '.join(arguments)})"
    try:
        signature.bind(*arguments)
    except TypeError:
        there = f"{name}{_without_annotations(signature)}"
        return f"{call} is {there}, and is called as {name}{given}", f"def {name}{given}: ..."
    return None


def config_misfit(call: str, signature: Signature, config: Collection[str]) -> Misfit | None:
    """Why the call with `model.config` as keyword arguments would fail."""
    parameters = signature.parameters
    takes = [name for name, one in parameters.items() if one.kind in BY_NAME]
    takes_all = any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values())
    for key in config:
        if key not in takes and not takes_all:
            near = difflib.get_close_matches(key, takes, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(takes) or 'none'}"
            return f"model.config: {call} has no argument {key!r}", hint
    for name in takes:
        if parameters[name].default is Parameter.empty and name not in config:
            return f"model.config: {call} needs an argument {name!r}", f"config: {{{name}: ...}}"
    return None


BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def _without_annotations(signature: Signature) -> Signature:
    bare = [one.replace(annotation=Parameter.empty) for one in signature.parameters.values()]
    return Signature(bare)
