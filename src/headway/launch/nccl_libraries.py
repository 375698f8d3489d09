"""Whether the image of this pod has the libraries that NCCL's variables name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from headway.errors import BadInput
from headway.kube.images import BUILD
from headway.kube.nccl_libraries import named_libraries

LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"


def require_nccl_libraries(variables: Mapping[str, str] = os.environ) -> None:
    """Raise before any worker starts. Without a plugin NCCL fails, or uses TCP and says nothing."""
    for variable, libraries in named_libraries(variables).items():
        if all(map(_is_missing, libraries)):
            raise BadInput(
                f"{variable} is {variables[variable]}, and NCCL needs {' or '.join(libraries)} for "
                "it, which this image lacks",
                f"{BUILD}; or another {variable} in pod.env of the target",
            )


def _is_missing(library: str) -> bool:
    """Loaded in a process that ends: a library may change the process it is in. One that is there
    and needs another, which torch brings, is not missing."""
    command = [sys.executable, "-c", LOAD, library]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60).stderr
    return f"OSError: {library}: cannot open shared object file" in said
