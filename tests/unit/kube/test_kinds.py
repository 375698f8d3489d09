"""A list of accelerators: one kind for the whole run, the best that there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.errors import SpecError
from headway.kube.device_labels import PRODUCT
from headway.kube.kinds import KindTerms, parse_kinds
from headway.kube.names import ACCELERATORS

Object = dict[str, Any]
Render = Callable[..., list[Object]]
LIST = "resources.accelerators=[H100:8, A100-80:8]"


@pytest.fixture
def add(folder: Path) -> Callable[[str], None]:
    """Adds keys to the target."""

    def write(keys: str) -> None:
        with (folder / "targets.yaml").open("a") as targets:
            targets.write(keys)

    return write


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [one for one in objects if one["kind"] == kind]


def terms_of(job: Object) -> list[Object]:
    affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    found: list[Object] = affinity["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    return found


def kinds_of(objects: list[Object]) -> list[KindTerms]:
    """As the coordinator is told."""
    pod = of_kind(objects, "ReplicaSet")[0]["spec"]["template"]["spec"]
    environment = pod["containers"][0]["env"]
    return parse_kinds(
        next((one["value"] for one in environment if one["name"] == "HEADWAY_KINDS"), None)
    )


def products(terms: list[Object]) -> set[str]:
    return {
        value
        for term in terms
        for one in term["matchExpressions"]
        if one["key"] == PRODUCT
        for value in one["values"]
    }


def test_a_run_starts_with_the_first_kind_and_its_coordinator_knows_all(render: Render) -> None:
    objects = render(LIST)
    workers = of_kind(objects, "Job")[0]
    assert workers["metadata"]["annotations"][ACCELERATORS] == "H100:8"
    resources = workers["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == "8"
    h100, a100 = kinds_of(objects)
    assert (h100.name, a100.name) == ("H100:8", "A100-80:8")
    assert terms_of(workers) == h100.terms
    assert "NVIDIA-H100-80GB-HBM3" in products([*h100.terms])
    assert products([*a100.terms]) == {"NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"}


def test_the_coordinator_may_change_the_kind_of_its_run_and_of_no_other(render: Render) -> None:
    (role,) = of_kind(render(LIST), "Role")
    (rule,) = [one for one in role["rules"] if "jobs/status" in one["resources"]]
    assert (rule["verbs"], rule["resourceNames"]) == (["patch"], ["headway-wiki"])


def test_one_kind_changes_nothing(render: Render) -> None:
    objects = render("resources.accelerators=H100:8")
    assert objects == render("resources.accelerators=[H100:8]")
    assert kinds_of(objects) == []
    assert ACCELERATORS not in of_kind(objects, "Job")[0]["metadata"]["annotations"]
    (role,) = of_kind(objects, "Role")
    assert not any("jobs/status" in rule["resources"] for rule in role["rules"])


def test_a_queue_chooses_one_of_all_kinds(render: Render, add: Callable[[str], None]) -> None:
    add("  queue: research\n")
    objects = render(LIST)
    assert kinds_of(objects) == []
    found = products(terms_of(of_kind(objects, "Job")[0]))
    assert {"NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB"} <= found


@pytest.mark.parametrize(
    ("keys", "override", "says"),
    [
        (
            "  scarcity: off\n",
            LIST,
            "lab.scarcity: it is off, and resources.accelerators is a list",
        ),
        (
            "",
            "resources.accelerators=[H100:8, RTX4090:8]",
            "nothing says how machines with RTX4090 are labelled",
        ),
        (
            "  service_account: {coordinator: headway-coordinator}\n",
            LIST,
            "lab.resources.accelerators: it is not a list, and that of the run is",
        ),
        (
            "",
            "resources.accelerators=[H100:8, MI300X:8]",
            "MI300X:8 requested, but Headway does not",
        ),
    ],
)
def test_lists_that_cannot_work_are_refused(
    render: Render, add: Callable[[str], None], keys: str, override: str, says: str
) -> None:
    add(keys)
    with pytest.raises(SpecError) as caught:
        render(override)
    assert says in caught.value.message


def test_claims_have_no_kinds(render: Render, folder: Path) -> None:
    path = folder / "targets.yaml"
    claims = "device: null\n    device_claims: [{name: gpus, template: eight}]\n    resources:"
    path.write_text(path.read_text().replace("resources:", claims))
    with pytest.raises(SpecError, match="claims get the devices of their template"):
        render(LIST)


def test_the_model_has_to_fit_on_each_kind(render: Render) -> None:
    model = "model={type: gpt2, config: {n_layer: 48, n_embd: 4096, n_head: 32, vocab_size: 512}}"
    render(model, "resources.accelerators=[B200:1]", "resources.nodes=1")
    with pytest.raises(SpecError, match="on each L4, which has at most 24 GiB"):
        render(model, "resources.accelerators=[B200:1, L4:1]", "resources.nodes=1")


def test_an_administrator_is_asked_for_the_right_if_the_target_has_the_list(
    headway: Callable[..., Any], add: Callable[[str], None]
) -> None:
    add("  service_account: {coordinator: keeps}\n")
    assert "jobs/status" not in headway("target", "rbac", "lab").out
    add("  resources: {accelerators: [H100:8, A100-80:8]}\n")
    said = headway("target", "rbac", "lab").out
    assert "jobs/status" in said
    assert "headway-coordinator-kinds" in said
