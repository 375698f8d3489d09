"""What a machine has, read from folders that look like its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.launch.hardware import this_machine

INFORMATION = """\
Model: \t\t {name}
IRQ:   \t\t 10
GPU UUID: \t GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b
Device Minor: \t {minor}
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:       16384000 kB\nMemFree: 1 kB\n")
    return tmp_path


def add_gpus(root: Path, *names: str) -> None:
    (root / "dev/nvidiactl").touch()
    for minor, name in enumerate(names):
        (root / f"dev/nvidia{minor}").touch()
        folder = root / f"proc/driver/nvidia/gpus/0000:{minor:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(INFORMATION.format(name=name, minor=minor))


def test_a_machine_without_accelerators(root: Path) -> None:
    found = this_machine(root)
    assert (found.cuda_devices, found.device_name, found.unsupported_devices) == (0, None, ())
    assert found.memory_bytes == 16384000 * 1024
    assert found.torch_version is not None


def test_gpus_and_their_name(root: Path) -> None:
    add_gpus(root, "Tesla T4", "Tesla T4")
    found = this_machine(root)
    assert (found.cuda_devices, found.device_name) == (2, "Tesla T4")


def test_gpus_of_two_kinds_have_no_common_name(root: Path) -> None:
    add_gpus(root, "Tesla T4", "NVIDIA A100-SXM4-40GB")
    assert this_machine(root).device_name is None


def test_gpus_of_which_the_driver_tells_no_name(root: Path) -> None:
    (root / "dev/nvidia0").touch()
    found = this_machine(root)
    assert (found.cuda_devices, found.device_name) == (1, None)


def test_hidden_gpus_do_not_count(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_gpus(root, "Tesla T4", "Tesla T4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert this_machine(root).cuda_devices == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert (this_machine(root).cuda_devices, this_machine(root).device_name) == (0, None)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("neuron0", "AWS Trainium and Inferentia"),
        ("accel0", "Google TPUs"),
        ("hl0", "Intel Gaudi"),
    ],
)
def test_accelerators_that_headway_cannot_use(root: Path, file: str, name: str) -> None:
    (root / "dev" / file).touch()
    assert this_machine(root).unsupported_devices == (name,)
