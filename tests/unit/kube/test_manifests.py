"""What holds for the objects of every run, whatever the golden files happen to show."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headway.cli.target_render import rendered
from headway.errors import Exit
from headway.kube.coordinator_set import membership_rules
from headway.kube.manifests import manifests, owned_by, without_key
from headway.member.coordinator.rules import RESTART_ALONE_SECONDS, Rules
from headway.member.protocol.messages import MAX_WORKERS
from headway.spec.load import load_run, load_target
from headway.spec.resolve import Resolved

Object = dict[str, Any]
Render = Callable[..., list[Object]]

KEY = "0123456789abcdef" * 4
WORKERS, COORDINATOR = ("Job", "headway-wiki"), ("ReplicaSet", "headway-wiki-coordinator")


def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def pod(job: Object) -> Object:
    found: Object = job["spec"]["template"]["spec"]
    return found


def container(job: Object) -> Object:
    (found,) = pod(job)["containers"]
    made: Object = found
    return made


def give_own_image(folder: Path) -> None:
    """The workers' image becomes one without Headway."""
    with (folder / "targets.yaml").open("a") as target:
        target.write(f"  coordinator: {{image: registry.example/core@sha256:{'1' * 64}}}\n")


def resolved_of(objects: list[Object]) -> Resolved:
    return Resolved.model_validate_json(spec_of(objects)["data"]["spec.json"])


def spec_of(objects: list[Object]) -> Object:
    (found,) = (one for one in objects if "spec.json" in one.get("data", {}))
    return found


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every plain value with its place; what is in spec.json is looked into."""
    if path[-1:] == ("spec.json",):
        value = json.loads(value)
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))
    else:
        yield path, value


def test_the_objects_and_their_order(render: Render) -> None:
    found = [(one["kind"], one["metadata"]["name"]) for one in render()]
    assert [(kind, re.sub("[0-9a-f]{12}", "DIGEST", name)) for kind, name in found] == [
        WORKERS,
        ("ConfigMap", "headway-wiki-spec-DIGEST"),
        ("ConfigMap", "headway-wiki-record"),
        ("Secret", "headway-wiki"),
        ("Service", "headway-wiki"),
        ("ServiceAccount", "headway-wiki"),
        ("Role", "headway-wiki"),
        ("RoleBinding", "headway-wiki"),
        ("NetworkPolicy", "headway-wiki"),
        COORDINATOR,
    ]


def test_every_object_is_labelled_and_in_the_namespace(render: Render) -> None:
    for one in render():
        assert one["metadata"]["namespace"] == "ml"
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "wiki"
        assert one["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "headway"


def test_only_what_json_knows(render: Render) -> None:
    """An enumeration, say, would become something else on its way."""
    for path, value in leaves(render()):
        assert type(value) in (str, int, bool) or "spec.json" in path, (path, value)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nodes=st.integers(3, 5000))
@example(nodes=5000)
def test_only_the_number_of_nodes_depends_on_the_number_of_nodes(folder: Path, nodes: int) -> None:
    target = load_target("lab", folder).target
    few = resolved_of(rendered(load_run(), "lab", None, KEY))
    assert few.nodes == 2
    many = few.model_copy(update={"nodes": nodes})
    before, after = (dict(leaves(manifests(one, target, KEY))) for one in (few, many))
    assert before.keys() == after.keys()
    changed = {path: after[path] for path in after if before[path] != after[path]}
    named = {path for path, value in changed.items() if value == after[1, "metadata", "name"]}
    assert len(named) == 3, "the spec, whose name has its digest, and the two that mount it"
    assert {path: changed[path] for path in changed.keys() - named} == {
        (0, "spec", "completions"): nodes,
        (0, "spec", "parallelism"): nodes,
        (1, "data", "spec.json", "nodes"): nodes,
    }


def test_the_spec_cannot_be_changed_and_another_one_has_another_name(render: Render) -> None:
    """A kubelet shows an immutable ConfigMap as it first saw it, while a pod has that name."""
    before, after = render(), render("batch.global=32")
    assert [spec_of(objects)["immutable"] for objects in (before, after)] == [True, True]
    names = [spec_of(objects)["metadata"]["name"] for objects in (before, after)]
    assert names[0] != names[1]
    assert spec_of(render()) == spec_of(before), "the same run has the same"
    for objects, name in zip((before, after), names, strict=True):
        for job in (WORKERS, COORDINATOR):
            assert {"name": "headway-spec", "configMap": {"name": name}} in (
                pod(by_name(objects)[job])["volumes"]
            )


def test_the_owner_owns_all_others(render: Render) -> None:
    before = render()
    owner, *others = owned_by(before, "some-uid")
    assert "ownerReferences" not in owner["metadata"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "headway-wiki", "uid": "some-uid"}
    for one in others:
        assert one["metadata"]["ownerReferences"] == [job | {"controller": True}]
    assert before == render(), "what was given stays as it was"


def test_the_key_is_in_the_secret_and_nowhere_else(folder: Path) -> None:
    objects = rendered(load_run(), "lab", None, KEY)
    encoded = base64.b64encode(KEY.encode()).decode()
    assert by_name(objects)["Secret", "headway-wiki"]["data"] == {"key": encoded}
    shown = json.dumps(without_key(objects))
    assert KEY not in shown
    assert encoded not in shown


def test_the_placeholder_of_the_key_cannot_be_applied(render: Render) -> None:
    key = by_name(render())["Secret", "headway-wiki"]["data"]["key"]
    with pytest.raises(ValueError, match=r"base64|padding"):
        base64.b64decode(key, validate=True)


def test_the_record_has_nothing_that_would_overwrite_it(render: Render) -> None:
    record = by_name(render())["ConfigMap", "headway-wiki-record"]
    assert record.keys() == {"apiVersion", "kind", "metadata"}


def test_the_spec_can_be_read_back(render: Render) -> None:
    resolved = resolved_of(render())
    assert (resolved.name, resolved.nodes, resolved.threads) == ("wiki", 2, 4)
    assert resolved.run_directory == "/headway/storage/runs/wiki"


def test_a_pod_that_fails_by_its_own_error_fails_the_job_and_no_other_does(render: Render) -> None:
    ignore, fail, rest = by_name(render())[WORKERS]["spec"]["podFailurePolicy"]["rules"]
    assert ignore["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    codes = fail["onExitCodes"]["values"]
    assert (fail["action"], codes) == ("FailJob", sorted(set(codes)))
    assert Exit.RUN_FAILED in codes
    for code in (Exit.DONE, Exit.STOPPED, Exit.PEER_LOST):
        assert code not in codes
    assert (rest["action"], rest["onExitCodes"]["operator"]) == ("Ignore", "NotIn")


def test_only_what_an_image_lacks_fails_the_job_before_headway_is_there(
    render: Render, folder: Path
) -> None:
    """A machine with a full disk, or with a fault, is not the run's own error."""
    give_own_image(folder)
    rules = by_name(render())[WORKERS]["spec"]["podFailurePolicy"]["rules"]
    codes = [one["onExitCodes"] for one in rules if one["action"] == "FailJob"]
    found = {one["containerName"]: one["values"] for one in codes}
    assert found == {"worker": [1, 2, 3, 4, 5], "wheels": [2]}


@pytest.mark.parametrize("job", [WORKERS, COORDINATOR])
def test_restricted_pod_security(render: Render, job: tuple[str, str]) -> None:
    """Field by field what Kubernetes' own level asks for."""
    made = by_name(render())[job]
    assert pod(made)["securityContext"]["runAsNonRoot"] is True
    assert pod(made)["securityContext"]["runAsUser"] != 0
    assert pod(made)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(made)["securityContext"]["allowPrivilegeEscalation"] is False
    assert container(made)["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    kinds = {key for volume in pod(made)["volumes"] for key in volume} - {"name"}
    assert kinds <= {"emptyDir", "secret", "configMap", "persistentVolumeClaim"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod(made).keys()


@pytest.mark.parametrize("job", [WORKERS, COORDINATOR])
def test_nothing_but_mounts_can_be_written(render: Render, job: tuple[str, str]) -> None:
    made = container(by_name(render())[job])
    assert made["securityContext"]["readOnlyRootFilesystem"] is True
    paths = {mount["mountPath"] for mount in made["volumeMounts"]}
    assert {"/tmp", "/headway/storage"} <= paths
    assert {"name": "HOME", "value": "/tmp"} in made["env"]


@pytest.mark.trap(27, 32)
@pytest.mark.parametrize("job", [WORKERS, COORDINATOR])
def test_requests_are_limits_and_every_mount_has_a_volume(
    render: Render, job: tuple[str, str]
) -> None:
    made = by_name(render())[job]
    resources = container(made)["resources"]
    # Disk is only requested; it does not count for who is evicted first.
    requests = {key: resources["requests"][key] for key in resources["limits"]}
    assert requests == resources["limits"]
    assert set(resources["requests"]) - set(requests) <= {"ephemeral-storage"}
    assert {"cpu", "memory"} <= resources["limits"].keys()
    names = [volume["name"] for volume in pod(made)["volumes"]]
    assert sorted(mount["name"] for mount in container(made)["volumeMounts"]) == sorted(names)


def test_only_the_coordinator_has_a_token(render: Render) -> None:
    objects = by_name(render())
    assert pod(objects[COORDINATOR])["automountServiceAccountToken"] is True
    assert pod(objects[WORKERS])["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod(objects[WORKERS])
    assert objects["ServiceAccount", "headway-wiki"]["automountServiceAccountToken"] is False


def test_what_copies_wheels_has_nothing_of_the_run(render: Render, folder: Path) -> None:
    """It has the target's variables and mounts, as its image has in the coordinator's pod."""
    with (folder / "targets.yaml").open("a") as target:
        target.write(
            "    volumes: [{name: drivers, emptyDir: {}}]\n"
            "    mounts: [{name: drivers, mountPath: /drivers}]\n"
            "    env: {LD_LIBRARY_PATH: /drivers}\n"
            "  secret: mine\n"
        )
    give_own_image(folder)
    made = pod(by_name(render("secrets=[HF_TOKEN]"))[WORKERS])
    (copying,) = made["initContainers"]
    (worker,) = made["containers"]
    (coordinator,) = pod(by_name(render())[COORDINATOR])["containers"]
    assert copying["image"] == coordinator["image"] != worker["image"]
    mounted = [one["name"] for one in copying["volumeMounts"]]
    assert mounted == ["headway-home", "drivers", "headway-packages"]
    variables = {one["name"] for one in copying["env"]}
    assert {"HOME", "HEADWAY_VERSION", "LD_LIBRARY_PATH"} <= variables
    assert not {"HEADWAY_KEY", "HF_TOKEN"} & variables
    assert "envFrom" not in copying
    assert copying["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def test_the_role_allows_this_and_no_more(render: Render) -> None:
    rules = by_name(render())["Role", "headway-wiki"]["rules"]
    allowed = {
        (resource, verb, *rule.get("resourceNames", []))
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert allowed == {
        *(("pods", verb) for verb in ("list", "watch", "patch", "delete")),
        *(("jobs", verb, "headway-wiki") for verb in ("get", "patch")),
        ("replicasets/scale", "patch", "headway-wiki-coordinator"),
        *(("configmaps", verb, "headway-wiki-record") for verb in ("get", "update")),
        ("events", "create"),
    }


def test_workers_are_in_the_queue_and_the_coordinator_is_not(render: Render, folder: Path) -> None:
    """Kueue would suspend it with the workers, or wait for room for it."""
    with (folder / "targets.yaml").open("a") as targets:
        targets.write("  queue: research\n  priority: urgent\n")

    def of_kueue(metadata: Object) -> Object:
        both = {**metadata["labels"], **metadata.get("annotations", {})}
        return {key: value for key, value in both.items() if key.startswith("kueue.x-k8s.io/")}

    objects = by_name(render())
    assert of_kueue(objects[WORKERS]["metadata"]) == {
        "kueue.x-k8s.io/queue-name": "research",
        "kueue.x-k8s.io/priority-class": "urgent",
        "kueue.x-k8s.io/elastic-job": "true",
    }
    for owner in (WORKERS, COORDINATOR):
        assert of_kueue(objects[owner]["spec"]["template"]["metadata"]) == {}
    assert of_kueue(objects[COORDINATOR]["metadata"]) == {}


def test_prometheus_is_told_where_the_metrics_are(render: Render, folder: Path) -> None:
    def annotations(job: tuple[str, str]) -> Object:
        metadata: Object = by_name(render())[job]["spec"]["template"]["metadata"]
        found = metadata.get("annotations", {})
        return {key: value for key, value in found.items() if key.startswith("prometheus.io/")}

    assert annotations(COORDINATOR) == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "7461",
        "prometheus.io/path": "/metrics",
    }
    assert annotations(WORKERS) == {}, "it serves nothing"
    with (folder / "targets.yaml").open("a") as targets:
        targets.write("  metrics: off\n")
    assert annotations(COORDINATOR) == {}


@pytest.mark.trap(4)
def test_the_services_selector_finds_the_coordinator_and_no_worker(render: Render) -> None:
    objects = by_name(render())
    wanted = objects["Service", "headway-wiki"]["spec"]["selector"].items()
    assert wanted <= objects[COORDINATOR]["spec"]["template"]["metadata"]["labels"].items()
    assert not wanted <= objects[WORKERS]["spec"]["template"]["metadata"]["labels"].items()


def test_the_network_policy_holds_for_all_pods_of_the_run(render: Render) -> None:
    objects = by_name(render())
    wanted = objects["NetworkPolicy", "headway-wiki"]["spec"]["podSelector"]["matchLabels"].items()
    for job in (WORKERS, COORDINATOR):
        assert wanted <= objects[job]["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.trap(2)
@pytest.mark.parametrize(
    ("nodes", "asked", "fewest", "first"),
    [
        ("4", None, 1, 8),  # it goes on with three while the fourth is replaced
        ("2..16", None, 4, 4),
        ("2..16", 8, 4, 4),
        ("1..16", 8, 2, 2),
    ],
)
def test_how_many_workers_make_a_run(
    render: Render, nodes: str, asked: int | None, fewest: int, first: int
) -> None:
    run = (f"resources.nodes={nodes}", "resources.accelerators=cpu:2")
    assert rules_of(render(*run, nodes=asked)) == Rules(
        min_domains=fewest, max_domains=MAX_WORKERS, first_domains=first
    )


def test_how_many_make_one_that_is_sharded_over_nodes(render: Render) -> None:
    run = ("resources={accelerators: cpu:4, nodes: 2..8}", "shard=node")
    assert rules_of(render(*run, nodes=3)) == Rules(
        min_domains=2,
        max_domains=MAX_WORKERS // 4,
        first_domains=2,
        domain_workers=4,
        node_workers=4,
    )


def test_a_copy_on_more_nodes_than_the_fewest_is_waited_for(render: Render) -> None:
    run = ("resources={accelerators: cpu:4, nodes: 2..8}", "shard=4 nodes")
    rules = rules_of(render(*run, nodes=8))
    assert (rules.min_domains, rules.first_domains, rules.domain_workers) == (1, 1, 16)
    assert rules.restarts
    assert rules.alone_seconds == RESTART_ALONE_SECONDS


def rules_of(objects: list[Object]) -> Rules:
    return membership_rules(resolved_of(objects))


def test_where_spot_machines_are_avoided(render: Render, folder: Path) -> None:
    with (folder / "targets.yaml").open("a") as targets:
        targets.write("  spot_label: {spot: 'true'}\n")
    avoided = {"key": "spot", "operator": "NotIn", "values": ["true"]}
    for spot, off in (("none", True), ("all", False), ("above_min", False)):
        objects = by_name(render(f"resources.spot={spot}"))
        assert (avoided in placement(objects[WORKERS])) is off, spot
        assert avoided in placement(objects[COORDINATOR]), spot
        label = {"name": "HEADWAY_SPOT_LABEL", "value": "spot=true"}
        assert (label in container(objects[COORDINATOR])["env"]) is (spot == "above_min")


def test_there_is_always_a_term_for_the_coordinator_to_add_to(render: Render) -> None:
    assert placement(by_name(render())[WORKERS])


def placement(job: Object) -> list[Object]:
    wanted = pod(job)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = wanted["nodeSelectorTerms"]
    expressions: list[Object] = term["matchExpressions"]
    return expressions


def test_the_device_has_the_name_that_the_target_gives(render: Render, folder: Path) -> None:
    with (folder / "targets.yaml").open("a") as targets:
        targets.write("    device: nvidia.com/mig-3g.40gb\n")
    made = render("resources={accelerators: A100:4, nodes: 1}")
    limits = container(by_name(made)[WORKERS])["resources"]["limits"]
    assert limits == {"cpu": "4", "memory": "8Gi", "nvidia.com/mig-3g.40gb": "4"}


def test_secrets_come_by_reference_and_only_to_workers(render: Render, folder: Path) -> None:
    with (folder / "targets.yaml").open("a") as targets:
        targets.write("  secret: mine\n")
    objects = by_name(render("secrets=[HF_TOKEN]"))
    reference = {
        "name": "HF_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "mine", "key": "HF_TOKEN"}},
    }
    assert reference in container(objects[WORKERS])["env"]
    assert reference not in container(objects[COORDINATOR])["env"]


def test_pods_of_a_script_have_an_address_and_a_folder(folder: Path, render: Render) -> None:
    assert "HEADWAY_ADDRESS" not in json.dumps(render())
    assert "HEADWAY_ADDRESS" in json.dumps(render("resources={accelerators: A100:4, nodes: 2}"))
    (folder / "run.yaml").write_text(
        "version: 1\nname: wiki\ncommand: [python, train.py]\nresources: {nodes: 2..4}\n"
    )
    (folder / "train.py").write_text("pass")
    objects = by_name(render())
    worker = container(objects[WORKERS])
    (address,) = (one for one in worker["env"] if one["name"] == "HEADWAY_ADDRESS")
    assert address["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    (mount,) = (one for one in worker["volumeMounts"] if one["name"] == "headway-node")
    (volume,) = (one for one in pod(objects[WORKERS])["volumes"] if one["name"] == "headway-node")
    assert (mount["mountPath"], volume["emptyDir"]) == ("/headway/node", {})


@pytest.mark.parametrize(("nodes", "seconds"), [("2..4", 90.0), ("1", 15.0)])
def test_a_script_is_not_ended_by_a_coordinator_that_is_cut_off_for_a_moment(
    folder: Path, render: Render, nodes: str, seconds: float
) -> None:
    """It may have saved nothing for half an hour. Of one node nobody else can be heard."""
    (folder / "run.yaml").write_text(
        f"version: 1\nname: wiki\ncommand: [python, train.py]\nresources: {{nodes: {nodes}}}\n"
    )
    (folder / "train.py").write_text("pass")
    rules = rules_of(render())
    assert (rules.alone_seconds, rules.newcomer_seconds, rules.restarts) == (seconds, 20.0, True)
