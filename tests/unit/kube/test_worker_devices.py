"""What a worker's pod asks of its machine, as users read it in `--dry-run`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.errors import HeadwayError

Render = Callable[..., list[dict[str, Any]]]
CLAIMS = "    device_claims: [{name: gpus, template: eight-h100}]\n"


@pytest.fixture
def add(folder: Path) -> Callable[[str], None]:
    """Adds keys to the target's `pod`, which is the last in the file."""

    def write(text: str) -> None:
        with (folder / "targets.yaml").open("a") as targets:
            targets.write(text)

    return write


def worker_pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = objects[0]["spec"]["template"]["spec"]
    return found


def disk(objects: list[dict[str, Any]]) -> tuple[str | None, str | None]:
    resources = worker_pod(objects)["containers"][0]["resources"]
    key = "ephemeral-storage"
    return resources["requests"].get(key), resources["limits"].get(key)


def test_disk_that_nobody_asked_for_is_not_requested(render: Render) -> None:
    """Machines with little of it train small sets."""
    assert disk(render()) == (None, None)


@pytest.mark.parametrize(
    ("added", "found"),
    [
        ("    env: {HEADWAY_CACHE_BYTES: '1000000'}\n", ("1000000", None)),
        (
            "    env: {HEADWAY_CACHE_BYTES: '1000', HEADWAY_CACHE: /scratch/cache}\n",
            ("1000", None),
        ),
        (
            "    env: {HEADWAY_CACHE_BYTES: '1000', HEADWAY_CACHE: /scratch/cache}\n"
            "    volumes: [{name: s, persistentVolumeClaim: {claimName: s}}]\n"
            "    mounts: [{name: s, mountPath: /scratch}]\n",
            (None, None),
        ),
    ],
)
def test_a_cache_of_a_written_size_is_requested_and_not_a_limit(
    render: Render, add: Callable[[str], None], added: str, found: tuple[str | None, str | None]
) -> None:
    add(added)
    assert disk(render()) == found


def test_a_written_size_is_request_and_limit(render: Render, folder: Path) -> None:
    targets = folder / "targets.yaml"
    targets.write_text(
        targets.read_text().replace("memory: 8Gi", "memory: 8Gi, ephemeral-storage: 9Gi")
    )
    assert disk(render()) == ("9Gi", "9Gi")


def test_data_on_a_claim_needs_no_cache(render: Render, add: Callable[[str], None]) -> None:
    add("    env: {HEADWAY_CACHE_BYTES: '1000'}\n")
    assert disk(render("data.train={sources: [a.txt], tokenizer: gpt2}")) == (None, None)


def test_claims_in_place_of_counted_devices(render: Render, add: Callable[[str], None]) -> None:
    """The claim finds its machine: it knows more of the device than a label says."""
    add(CLAIMS + "    device: null\n")
    pod = worker_pod(render("resources.accelerators=H100:8"))
    assert pod["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": "eight-h100"}]
    resources = pod["containers"][0]["resources"]
    assert resources["claims"] == [{"name": "gpus"}]
    assert "nvidia.com/gpu" not in resources["requests"] | resources["limits"]
    affinity = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert len(affinity["nodeSelectorTerms"]) == 1


def test_claims_beside_counted_devices(render: Render, add: Callable[[str], None]) -> None:
    add(CLAIMS)
    pod = worker_pod(render("resources.accelerators=H100:8"))
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert len(pod["resourceClaims"]) == 1


def test_something_has_to_request_the_devices(render: Render, add: Callable[[str], None]) -> None:
    add("    device: null\n")
    with pytest.raises(HeadwayError) as caught:
        render("resources.accelerators=H100:8")
    assert str(caught.value) == (
        "targets.yaml:7:5: lab.pod.device: it is null, and there are no device_claims: nothing "
        "requests the accelerators\nhint: device: nvidia.com/gpu, or device_claims: [{name: gpus, "
        "template: NAME}]"
    )


def test_workers_close_together(render: Render, add: Callable[[str], None]) -> None:
    add("    topology: example.com/rack\n")
    affinity = worker_pod(render())["affinity"]["podAffinity"]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in affinity
    (preferred,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["podAffinityTerm"]["topologyKey"] == "example.com/rack"
    selected = preferred["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert selected["app.kubernetes.io/instance"] == "wiki"


def test_workers_on_the_network_of_the_machine_reach_the_coordinator(
    render: Render, add: Callable[[str], None]
) -> None:
    add("    host_network: true\n  security: baseline\n")
    objects = render()
    pod = worker_pod(objects)
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    policy = next(one for one in objects if one["kind"] == "NetworkPolicy")
    open_ports = [rule["ports"] for rule in policy["spec"]["ingress"] if "from" not in rule]
    assert [{"protocol": "TCP", "port": 7460}] in open_ports
    coordinator = objects[-1]["spec"]["template"]["spec"]
    assert "hostNetwork" not in coordinator
