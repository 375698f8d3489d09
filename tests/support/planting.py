"""Defects put into the keeper and what it decides with, one at a time: a test must find each."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

from support.kept_run import Code

MODULES = (
    *("pod_decisions", "job_decisions", "pod_watch", "pod_calls", "forgotten_markers"),
    *("keeper_notes", "pod_keeper", "job_keeper", "keeper"),
)
"""Of headway.launch. Each imports only those before it."""


@dataclass(frozen=True)
class Defect:
    name: str
    module: str
    old: str
    new: str

    def planted(self) -> Code:
        """The code with this defect, beside the one that is imported."""
        with patch.dict(sys.modules):
            made = {name: self._loaded(name) for name in MODULES}
        return Code(keeper=made["keeper"], pod_watch=made["pod_watch"])

    def _loaded(self, name: str) -> ModuleType:
        whole = f"headway.launch.{name}"
        file = import_module(whole).__file__
        assert file is not None
        source = Path(file).read_text()
        if name == self.module:
            assert source.count(self.old) == 1, f"{self.name}: the code it changes is not there"
            source = source.replace(self.old, self.new)
        sys.modules[whole] = module = ModuleType(whole)
        exec(compile(source, file, "exec"), module.__dict__)
        return module
