"""Write the released core image into a copy of a wheel. Nothing else of the wheel changes.

    python -m tools.released_wheel WHEEL NAME@sha256:DIGEST FOLDER

The image is built from the files of the wheel, so its digest is known only afterwards.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from pathlib import Path
from zipfile import ZipFile

IMAGES = "headway/kube/images.json"
BY_DIGEST = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")


def write_released(wheel: Path, core: str, folder: Path) -> Path:
    """Return the copy, in `folder`, under the same name."""
    if not BY_DIGEST.fullmatch(core):
        raise SystemExit(f"error: {core} is not NAME@sha256:DIGEST")
    made = folder / wheel.name
    with ZipFile(wheel) as source, ZipFile(made, "x") as copy:
        images = json.loads(source.read(IMAGES))
        images["core"]["image"] = core
        changed = f"{json.dumps(images, indent=1)}\n".encode()
        for entry in source.infolist():
            content = source.read(entry)
            if entry.filename == IMAGES:
                content = changed
            elif entry.filename.endswith(".dist-info/RECORD"):
                content = _record_with(content.decode(), changed).encode()
            copy.writestr(entry, content)
    return made


def _record_with(record: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    line = f"{IMAGES},sha256={digest},{len(content)}"
    return re.sub(rf"^{re.escape(IMAGES)},.*$", line, record, flags=re.MULTILINE)


if __name__ == "__main__":
    print(write_released(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
