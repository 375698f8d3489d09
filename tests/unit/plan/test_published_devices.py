"""Published specifications: named, and in agreement with the table of devices."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from headway.plan.accelerators import DEVICES, WITHOUT_PATH, find_device
from headway.plan.machines import find_machine
from support.published_rows import FOLDER


def read(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))


SPECIFICATIONS = read("devices")["device"]
MACHINES = read("devices")["machine"]


@pytest.mark.parametrize("row", SPECIFICATIONS, ids=lambda row: f"{row['name']}-{row['form']}")
def test_a_specification_agrees_with_the_table_of_devices(row: dict[str, Any]) -> None:
    assert "https://" in row["source"]
    assert "http" in row["link_source"]
    assert row["memory_gb_per_second"] > 0
    assert row["link_gb_per_second"] > 0
    device = find_device(row["name"])
    if device is None:
        assert row["outside"]
        return
    if "bf16_tflops" in row:
        assert device.bf16_flops == pytest.approx(row["bf16_tflops"] * 1e12, rel=0.01)
    if "fp16_tflops" in row:
        assert device.fp16_flops == pytest.approx(row["fp16_tflops"] * 1e12, rel=0.01)
    if "torch_gib" in row:
        assert device.torch_gib == row["torch_gib"]
        assert 0.95 * device.memory_gib < device.torch_gib <= device.memory_gib
    if row["form"] == "PCIe" and device.name.startswith("A100"):
        return  # one name for boards of two forms: the table has the SXM ones
    assert device.memory_bytes_per_second == row["memory_gb_per_second"] * 1e9
    assert device.link_bytes_per_second == row["link_gb_per_second"] * 1e9
    if "measured_matmul_tflops" in row:
        assert row["measured_matmul_tflops"] < row["bf16_tflops"]


def test_what_torch_sees_of_a_board_without_a_reading_is_the_least_share_of_its_kind() -> None:
    known = {row["name"]: row["torch_gib"] for row in SPECIFICATIONS if "torch_gib" in row}
    rows = {device.name: device for device in DEVICES}
    shares = {name: gib / rows[name].memory_gib for name, gib in known.items()}
    gddr = {"T4", "A10G", "L4", "L40S"}
    assert set(rows) - set(known) == {
        *("A10G", "L4", "H100-PCIe", "H200", "V100-PCIe-16GB", "V100-PCIe-32GB")
    }
    for name in set(rows) - set(known):
        kin = [share for other, share in shares.items() if (other in gddr) == (name in gddr)]
        same = [known[other] for other in known if other == name.replace("-PCIe", "")]
        device = rows[name]
        if name.startswith("V100"):
            assert device.torch_gib == same[0]
        else:
            assert device.torch_gib == pytest.approx(min(kin) * device.memory_gib, abs=0.05)


def test_a_device_without_a_path_is_known_and_never_found() -> None:
    (mi300x,) = WITHOUT_PATH
    (row,) = (row for row in SPECIFICATIONS if "outside" in row)
    assert mi300x.name == row["name"]
    assert find_device(mi300x.name) is None
    assert mi300x.bf16_flops == row["bf16_tflops"] * 1e12
    assert mi300x.memory_bytes_per_second == row["memory_gb_per_second"] * 1e9
    assert mi300x.link_bytes_per_second == row["link_gb_per_second"] * 1e9


def test_every_device_of_the_table_but_one_board_has_a_specification() -> None:
    missing = {device.name for device in DEVICES} - {row["name"] for row in SPECIFICATIONS}
    assert missing == {"V100-PCIe-16GB"}


@pytest.mark.parametrize("row", MACHINES, ids=lambda row: row["name"])
def test_a_machine_has_a_known_device_and_a_network(row: dict[str, Any]) -> None:
    assert find_device(row["device"]) is not None
    assert row["num_gpus"] in (1, 4, 8)
    assert row["source"]
    machine = find_machine(row["name"])
    assert machine is not None
    assert (machine.device, machine.num_devices) == (row["device"], row["num_gpus"])
    assert machine.network_gbit == row["network_gbit_per_second"] > 0
