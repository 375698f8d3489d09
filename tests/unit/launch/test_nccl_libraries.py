"""A pod whose image lacks a library that NCCL's variables name ends before its workers start."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headway.errors import BadInput
from headway.launch.nccl_libraries import require_nccl_libraries

EFA = {"NCCL_NET": "AWS Libfabric", "NCCL_NET_PLUGIN": "ofi"}


def a_library() -> str:
    """Any that this process has loaded."""
    maps = Path("/proc/self/maps").read_text().split()
    return next(word for word in maps if word.startswith("/") and ".so" in word)


def test_a_library_in_the_path_of_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match="NCCL_NET_PLUGIN is ofi, and NCCL needs ofi or libnccl-net"):
        require_nccl_libraries(EFA)
    shutil.copy(a_library(), tmp_path / "libnccl-net-ofi.so")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    require_nccl_libraries(EFA)


def test_nothing_is_loaded_where_nothing_is_named() -> None:
    require_nccl_libraries({"NCCL_NET": "Socket", "NCCL_DEBUG": "INFO"})
