"""What holds for every object that Headway makes, read from the golden manifests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.yaml"))
ROOT = Path(__file__).parents[3]
PORTS = {53, 7460, 7461, 7462}
"""Name resolution, and Headway's own."""
FROM_OUTSIDE = {"Ingress", "Gateway", "HTTPRoute", "Route"}
OTHER_MACHINES = re.compile(r"\b(ssh|sshd|hostfile)\b", re.IGNORECASE)
OF_TARGET = {"shared-fs", "hub-cache", "bucket", "research-secrets", "pull", "eight-nics"}
"""What the targets of the golden manifests name, and an administrator makes."""


def objects(golden: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(golden.read_text()) if one]


def values(content: Any, *keys: str) -> Iterator[Any]:
    """All values of these keys, however deep."""
    if isinstance(content, dict):
        for key, value in content.items():
            if key in keys:
                yield value
            yield from values(value, *keys)
    elif isinstance(content, list):
        for value in content:
            yield from values(value, *keys)


def test_there_are_some() -> None:
    assert len(GOLDEN) >= 5


@pytest.mark.trap(7)
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_no_machine_logs_in_to_another(golden: Path) -> None:
    assert not OTHER_MACHINES.search(golden.read_text())
    numbers = values(objects(golden), "port", "containerPort", "targetPort")
    ports = {number for number in numbers if isinstance(number, int)}
    assert ports
    assert ports <= PORTS


@pytest.mark.trap(7)
def test_no_source_and_no_image_knows_how_to() -> None:
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docker").glob("*")]
    named = [path for path in files if path.is_file() and OTHER_MACHINES.search(path.read_text())]
    assert len(files) > 100
    assert named == []


@pytest.mark.trap(39)
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_nothing_is_reachable_from_outside_the_cluster(golden: Path) -> None:
    made = objects(golden)
    assert not FROM_OUTSIDE & {one["kind"] for one in made}
    services = [one["spec"] for one in made if one["kind"] == "Service"]
    assert services
    for service in services:
        assert service.get("type", "ClusterIP") == "ClusterIP"
        assert not {"externalIPs", "externalName", "loadBalancerIP"} & service.keys()
    assert list(values(made, "nodePort", "hostPort")) == []


@pytest.mark.trap(1, 4, 27)
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_workers_are_told_the_address_of_the_service_beside_them(golden: Path) -> None:
    made = objects(golden)
    (workers,) = (one for one in made if one["kind"] == "Job")
    (service,) = (one for one in made if one["kind"] == "Service")
    variables = workers["spec"]["template"]["spec"]["containers"][0]["env"]
    (address,) = (one["value"] for one in variables if one["name"] == "HEADWAY_COORDINATOR")
    host, _, port = address.rpartition(":")
    name, namespace, _ = host.split(".")
    assert (name, namespace) == (service["metadata"]["name"], service["metadata"]["namespace"])
    assert int(port) in values(service, "port")
    run = workers["metadata"]["labels"]["app.kubernetes.io/instance"]
    assert {one["metadata"]["labels"]["app.kubernetes.io/instance"] for one in made} == {run}


@pytest.mark.trap(27)
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_what_an_object_names_is_made_or_named_in_the_target(golden: Path) -> None:
    made = objects(golden)
    known = {one["metadata"]["name"] for one in made} | OF_TARGET
    keys = ("secretName", "claimName", "resourceClaimTemplateName")
    named = set(values(made, *keys))
    for key in ("configMap", "secretRef", "secretKeyRef", "configMapKeyRef", "roleRef"):
        named |= {one["name"] for one in values(made, key) if "name" in one}
    assert named
    assert named <= known
