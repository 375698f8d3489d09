"""Images are the same bytes whenever they are made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster_tool import images
from cluster_tool.image_files import Entry

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.long("tests the test cluster itself"),
]


def test_the_same_files_give_the_same_digest(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    files = {
        "/usr/bin/tool": Entry(0o755, tmp_path / "file"),
        "/bin/tool": Entry(0o777, target="/usr/bin/tool"),
        "/tmp": Entry(0o1777),
    }
    turned = dict(reversed(files.items()))
    archive, layer = tmp_path / "archive", tmp_path / "layer"
    made = images.write_archive(archive, "localhost/x:1", {}, files, layer)
    os.utime(tmp_path / "file", (1, 1))
    assert made == images.write_archive(archive, "localhost/x:1", {}, turned, layer)
    (tmp_path / "file").write_text("other content")
    assert made != images.write_archive(archive, "localhost/x:1", {}, files, layer)


def test_headways_image_is_kept_by_content() -> None:
    made = images.headway_image()
    assert made.archive.exists()
    assert made.reference == f"localhost/headway@{made.digest}"
    assert images.headway_image() == made
