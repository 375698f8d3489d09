"""The user's own functions, by the names in the run file (`module:function`)."""

from __future__ import annotations

import importlib
import sys
import traceback
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
            raise _not_imported(
                call, error, f"install {error.name}, or name it in {NEEDS}"
            ) from None
        raise BadInput(
            f"{call}: no module {module_name!r}",
            "code: {path: FOLDER} in the run file says where your modules are",
        ) from None
    except SystemExit as error:
        raise BadInput(
            f"{call}: {module_name} exits while it is imported, with {error.code!r}",
            "a script's own work, such as parse_args(), goes below: if __name__ == '__main__':",
        ) from None
    except Exception as error:  # noqa: BLE001 - of the user's module
        raise _not_imported(call, error, "to try your functions: headway check --code") from None
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if not callable(function):
        raise BadInput(f"{call}: {module.__file__} has no function {function_name!r}")
    return function


NEEDS = "code: {path: FOLDER, requirements: FILE}"


def _not_imported(call: str, error: Exception, hint: str) -> BadInput:
    """With the lines of the modules that were being imported; not those of Python's import."""
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        what = f"{type(error).__name__}: {error.msg}: {error.filename}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and frame.filename not in (__file__, IMPORTING)
    ]
    lines = [f"  {one.filename}:{one.lineno} in {one.name}: {one.line}" for one in frames]
    module = call.partition(":")[0]
    return BadInput("\n".join([f"{call}: importing {module} failed: {what}", *lines]), hint)


IMPORTING = importlib.__file__
