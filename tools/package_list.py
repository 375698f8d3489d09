"""Print an SBOM, in CycloneDX.

    python -m tools.package_list FILE ...

The files are lists of pinned packages, as in requirements/.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PIN = re.compile(r"^([\w.-]+)==([\w.!+-]+)", re.MULTILINE)


def package_list(files: Iterable[Path]) -> dict[str, Any]:
    pins = {pin for file in files for pin in PIN.findall(file.read_text())}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "components": [
            {
                "type": "library",
                "bom-ref": (address := f"pkg:pypi/{name}@{version}"),
                "name": name,
                "version": version,
                "purl": address,
            }
            for name, version in sorted(pins)
        ],
    }


if __name__ == "__main__":
    print(json.dumps(package_list(map(Path, sys.argv[1:])), indent=1))
