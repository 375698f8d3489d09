"""Which frames of a traceback are the user's own code."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import headway
from headway.spec.run_file import RunFile

HEADWAY = Path(headway.__file__).parent


@dataclass(frozen=True)
class UserCode:
    folders: tuple[Path, ...]
    """The code folder, the packages of `code.requirements`, and those that the run file's functions
    are in."""

    def frames(self, error: BaseException) -> list[traceback.FrameSummary]:
        found = traceback.extract_tb(error.__traceback__)
        return [frame for frame in found if self._folder_of(frame.filename) is not None]

    def short_name(self, file: str) -> str:
        """A file's name as one would type it in its folder."""
        folder = self._folder_of(file)
        if folder is None:
            return file
        if (folder / "__init__.py").is_file():  # a package: with its name
            folder = folder.parent
        return str(Path(file).resolve().relative_to(folder))

    def _folder_of(self, name: str) -> Path | None:
        file = Path(name).resolve()
        if name.startswith("<") or file.is_relative_to(HEADWAY):  # "<": generated, or frozen
            return None
        for folder in self.folders:
            # Libraries may be installed inside the folder, as in a .venv of the user's.
            if file.is_relative_to(folder) and not LIBRARIES & {*file.relative_to(folder).parts}:
                return folder
        return None


LIBRARIES = {"site-packages", "dist-packages"}


def user_code(run: RunFile, folder: Path, packages: Path | None) -> UserCode:
    """`folder`: the run file's. `packages`: those of `code.requirements`."""
    folders = [folder / run.code.path] if run.code is not None else []
    folders += [packages] if packages is not None else []
    metrics = run.evaluation.metrics
    calls = (run.model and run.model.call, run.objective.call, metrics and metrics.call)
    folders += [place for call in calls if call and (place := _folder_of_module(call))]
    return UserCode(tuple(dict.fromkeys(place.resolve() for place in folders)))


def _folder_of_module(call: str) -> Path | None:
    """Of its whole package, if it has been imported."""
    module = sys.modules.get(call.partition(":")[0].split(".")[0])
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    parent = Path(file).resolve().parent
    return None if parent.name in LIBRARIES else parent
