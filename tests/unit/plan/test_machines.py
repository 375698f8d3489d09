"""The table of machines: nothing in it contradicts the other tables, and it refuses what is certain
to find no machine, and nothing else."""

from __future__ import annotations

import pytest

from headway.kube.device_labels import BOARDS
from headway.plan.accelerators import find_device
from headway.plan.machines import (
    EFA,
    MACHINES,
    find_machine,
    machine_on_premises,
    other_machine,
    too_much_for,
)
from headway.plan.unsupported_accelerators import family_of_kind
from headway.spec.run_file import ResourcesConfig, RunFile

GIB = 2**30


def run(accelerators: object) -> RunFile:
    resources = ResourcesConfig.model_validate({"accelerators": accelerators})
    return RunFile.model_construct(resources=resources)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_row_has_a_device_that_the_other_tables_know(machine: object) -> None:
    found = next(one for one in MACHINES if one is machine)
    device = find_device(found.device)
    assert device is not None
    assert device.name == found.device
    assert found.device in BOARDS, "pods could not be placed by its labels"
    assert family_of_kind(found.device) is None, "Headway does not run on it"
    assert other_machine(run(str(found.accelerators)), found.name) is None


def test_names_are_unique() -> None:
    assert len({machine.name for machine in MACHINES}) == len(MACHINES)


@pytest.mark.trap(21)
def test_fabric_devices_come_with_the_variables_that_use_them() -> None:
    """And the other way round; a worker that has the devices and not the variable falls back to
    TCP without a word."""
    p4d, p5 = find_machine("p4d.24xlarge"), find_machine("p5.48xlarge")
    assert p4d is not None
    assert p5 is not None
    assert p4d.pod_amounts() == {"cpu": "90", "memory": "1004Gi", EFA: "4"}
    assert p5.pod_amounts() == {"cpu": "181", "memory": "1798Gi", EFA: "32"}
    for machine in MACHINES:
        if machine.place == "AWS":
            assert bool(machine.fabric) == (machine.variables == {"NCCL_NET": "AWS Libfabric"})
        if machine.place == "GKE":
            assert not machine.fabric
            assert not machine.variables


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_pod_fits_on_its_machine(machine: object) -> None:
    found = next(one for one in MACHINES if one is machine)
    if found.cpu is None or found.memory_mib is None:
        return
    pod = found.pod_amounts()
    assert 1 <= int(pod["cpu"]) <= found.cpu
    assert int(pod["memory"].removesuffix("Gi")) * 1024 <= found.memory_mib


@pytest.mark.trap(18)
@pytest.mark.parametrize(
    ("asked", "machine"),
    [
        ("H100:8", "p4d.24xlarge"),
        ("A100-80GB:8", "p4d.24xlarge"),  # it has those of 40 GB
        ("H100-PCIe:8", "p5.48xlarge"),
        ("H100-NVL:8", "p5.48xlarge"),
        ("H100:16", "p5.48xlarge"),
        ("A10G:4", "g5.xlarge"),
        ("L4", "cpu"),
        (["H100:8", "H200:8"], "dgx-a100"),
        ("MYSTERY:1", "p5.48xlarge"),
    ],
)
def test_another_kind_or_more_is_refused(asked: object, machine: str) -> None:
    refusal = other_machine(run(asked), machine)
    assert refusal is not None
    assert machine in refusal.problem
    assert refusal.hint.startswith("to run it there: --set resources.accelerators=")


@pytest.mark.parametrize(
    ("asked", "machine"),
    [
        ("H100:8", "p5.48xlarge"),
        ("H100:1", "p5.48xlarge"),
        ("h100-sxm:8", "hgx-h100"),
        ("A100:8", "p4de.24xlarge"),  # a name alone means every board of that name
        ("A100:8", "p4d.24xlarge"),
        ("gpu:4", "g5.12xlarge"),
        (["H100:8", "A100-80GB:8"], "dgx-a100"),
        ("cpu:2", "p5.48xlarge"),
        (None, "p5.48xlarge"),
    ],
)
def test_what_the_machine_has_is_not(asked: object, machine: str) -> None:
    assert other_machine(run(asked), machine) is None


def test_the_machines_that_would_do_are_named() -> None:
    refusal = other_machine(run("A100-80GB:8"), "p4d.24xlarge")
    assert refusal is not None
    assert refusal.problem == (
        "resources.accelerators: A100-80GB:8 requested, but a machine of the target "
        "(p4d.24xlarge) has A100-40GB:8"
    )
    assert refusal.hint == (
        "to run it there: --set resources.accelerators=A100-40GB:8; machines that have "
        "A100-80GB:8: p4de.24xlarge, a2-ultragpu-8g, dgx-a100; a target of such: headway target "
        "add NAME --machine p4de.24xlarge"
    )


def test_a_name_that_is_not_in_the_table() -> None:
    refusal = other_machine(run(None), "p5.48xlarg")
    assert refusal is not None
    assert refusal.hint == "did you mean p5.48xlarge?"
    assert other_machine(run("L4:1"), "trn1.32xlarge") is not None


@pytest.mark.parametrize(
    ("machine", "resource", "least"),
    [
        ("p4d.24xlarge", "cpu", 97),
        ("p5.48xlarge", "memory", 2200 * GIB),
        ("p4d.24xlarge", EFA, 5),
        ("g5.xlarge", EFA, 3),
    ],
)
def test_pods_that_no_such_machine_can_hold(machine: str, resource: str, least: float) -> None:
    refusal = too_much_for(machine, {resource: least})
    assert refusal is not None
    assert refusal.problem.startswith(f"pod.resources.{resource}: more than a machine")
    # How much of a machine is kept from pods differs between clusters.
    assert too_much_for(machine, {resource: least * 0.6}) is None
    assert too_much_for("hgx-h100", {resource: least}) is None


def test_machines_on_premises_are_found_by_what_they_have() -> None:
    found = machine_on_premises("H100", 8)
    assert found is not None
    assert found.name == "hgx-h100"
    assert machine_on_premises("L40S", 4) is None
