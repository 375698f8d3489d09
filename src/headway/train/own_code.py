"""The user's own functions, by the names in the run file (`module:function`)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.errors import BadInput


def make_importable(folder: Path | None) -> None:
    """Puts the run's code folder first on the Python path."""
    if folder is not None and str(folder) not in sys.path:
        if not folder.is_dir():
            raise BadInput(f"code.path: no folder {folder}", "paths start at the run file's folder")
        sys.path.insert(0, str(folder))


def find_function(call: str) -> Callable[..., Any]:
    module_name, _, function_name = call.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.split(".")[0]:
            raise  # the module is there; something it imports is not, and its traceback says what
        raise BadInput(
            f"{call}: no module {module_name!r}",
            "code: {path: FOLDER} in the run file says where your modules are",
        ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise BadInput(f"{call}: {module.__file__} has no function {function_name!r}")
    return function
