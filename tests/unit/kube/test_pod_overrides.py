"""What a target adds to a pod is there, beside what was there; what clashes is refused by name."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from headway.kube.names import Component
from headway.kube.pod_overrides import (
    RESTRICTED_VOLUMES,
    UNPRIVILEGED,
    TargetMismatch,
    require_restricted,
    with_overrides,
)
from headway.spec.pod_config import CoordinatorConfig, PodConfig
from headway.spec.target_file import Target

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"ours": "1"}},
    "spec": {
        "containers": [
            {
                "name": "worker",
                "env": [{"name": "HOME", "value": "/tmp"}],
                "volumeMounts": [{"name": "headway-home", "mountPath": "/tmp"}],
            }
        ],
        "volumes": [{"name": "headway-home", "emptyDir": {}}],
        "tolerations": [{"key": "ours"}],
    },
}
CLAIM = {"name": "models", "persistentVolumeClaim": {"claimName": "models"}}
MOUNT = {"name": "models", "mountPath": "/models", "readOnly": True}


def test_everything_is_added() -> None:
    pod = PodConfig(
        tolerations=[{"operator": "Exists"}],
        node_selector={"pool": "gpu"},
        do_not_disrupt=False,
        volumes=[CLAIM],
        mounts=[MOUNT],
        env={"REGION": "north"},
        labels={"team": "nlp"},
        annotations={"why": "because"},
        image_pull_secrets=["pull"],
    )
    assert with_overrides(TEMPLATE, Target(pod=pod), "worker") == {
        "metadata": {"labels": {"ours": "1", "team": "nlp"}, "annotations": {"why": "because"}},
        "spec": {
            "containers": [
                {
                    "name": "worker",
                    "env": [
                        {"name": "HOME", "value": "/tmp"},
                        {"name": "REGION", "value": "north"},
                    ],
                    "volumeMounts": [{"name": "headway-home", "mountPath": "/tmp"}, MOUNT],
                }
            ],
            "volumes": [{"name": "headway-home", "emptyDir": {}}, CLAIM],
            "tolerations": [{"key": "ours"}, {"operator": "Exists"}],
            "nodeSelector": {"pool": "gpu"},
            "imagePullSecrets": [{"name": "pull"}],
        },
    }


def test_a_target_that_adds_nothing_changes_nothing() -> None:
    pod = PodConfig(do_not_disrupt=False)
    assert with_overrides(TEMPLATE, Target(pod=pod), "worker") == TEMPLATE


def test_the_cache_is_the_users_to_set() -> None:
    pod = PodConfig(env={"HEADWAY_CACHE_BYTES": "1", "HEADWAY_CACHE": "/c"})
    made = with_overrides(TEMPLATE, Target(pod=pod), "worker")
    added = made["spec"]["containers"][0]["env"][1:]
    assert added == [
        {"name": "HEADWAY_CACHE_BYTES", "value": "1"},
        {"name": "HEADWAY_CACHE", "value": "/c"},
    ]


def test_the_template_itself_stays_as_it_is() -> None:
    before = deepcopy(TEMPLATE)
    pod = PodConfig(env={"A": "b"}, labels={"c": "d"}, volumes=[CLAIM])
    made = with_overrides(TEMPLATE, Target(pod=pod), "worker")
    made["spec"]["containers"][0]["env"].clear()
    assert before == TEMPLATE


@pytest.mark.trap(14)
@pytest.mark.parametrize(
    ("pod", "path", "says"),
    [
        ({"labels": {"ours": "2"}}, ("pod", "labels", "ours"), "ours is set by Headway"),
        (
            {"labels": {"headway/suspect": ""}},
            ("pod", "labels", "headway/suspect"),
            "headway/suspect is set by Headway",
        ),
        ({"env": {"HOME": "/root"}}, ("pod", "env", "HOME"), "HOME is set by Headway"),
        (
            {"env": {"HEADWAY_KEY": "x"}},
            ("pod", "env", "HEADWAY_KEY"),
            "HEADWAY_KEY is set by Headway",
        ),
        (
            {"env": {"JOB_COMPLETION_INDEX": "0"}},
            ("pod", "env", "JOB_COMPLETION_INDEX"),
            "JOB_COMPLETION_INDEX is set by Headway",
        ),
        (
            {"volumes": [CLAIM, {"name": "headway-home", "emptyDir": {}}]},
            ("pod", "volumes", 1),
            "volume headway-home exists already",
        ),
        ({"volumes": [CLAIM, CLAIM]}, ("pod", "volumes", 1), "volume models exists already"),
        (
            {"mounts": [MOUNT]},
            ("pod", "mounts", 0),
            "pod.volumes has no volume models",
        ),
        (
            {"volumes": [CLAIM], "mounts": [{"name": "headway-home", "mountPath": "/x"}]},
            ("pod", "mounts", 0),
            "pod.volumes has no volume headway-home",
        ),
        (
            {"volumes": [CLAIM], "mounts": [MOUNT, MOUNT | {"mountPath": "/tmp/"}]},
            ("pod", "mounts", 1),
            "something is mounted at /tmp/ already",
        ),
        (
            {"volumes": [CLAIM], "mounts": [MOUNT, MOUNT]},
            ("pod", "mounts", 1),
            "something is mounted at /models already",
        ),
        *(
            (
                {"volumes": [CLAIM], "mounts": [MOUNT | {"mountPath": path}]},
                ("pod", "mounts", 0),
                f"a volume at {path} would hide programs of the image",
            )
            for path in ("/", "/usr", "/usr/", "/opt/../usr/lib", "/etc", "/lib64", "/usr/local/")
        ),
    ],
)
def test_clashes_are_refused_with_their_place(
    pod: dict[str, Any], path: tuple[str | int, ...], says: str
) -> None:
    with pytest.raises(TargetMismatch) as caught:
        with_overrides(TEMPLATE, Target(pod=PodConfig(**pod)), "worker")
    assert (caught.value.message, caught.value.path) == (says, path)


PLACED = {
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "node_selector": {"pool": "gpu"},
    "architecture": "arm64",
    "priority_class": "high",
    "scheduler": "volcano",
    "runtime_class": "nvidia",
    "do_not_disrupt": False,
}
AS_PLACED = {
    "tolerations": [{"key": "ours"}, {"key": "gpu", "operator": "Exists"}],
    "nodeSelector": {"pool": "gpu", "kubernetes.io/arch": "arm64"},
    "priorityClassName": "high",
    "schedulerName": "volcano",
    "runtimeClassName": "nvidia",
}


@pytest.mark.trap(9)
def test_workers_and_coordinator_are_placed_by_their_own_keys() -> None:
    of_workers = Target(pod=PodConfig(**PLACED))
    of_coordinator = Target(coordinator=CoordinatorConfig(**PLACED))
    plain = TEMPLATE["spec"]
    assert with_overrides(TEMPLATE, of_workers, "worker")["spec"] == plain | AS_PLACED
    # Else workers of a higher priority evict their own coordinator.
    same_priority = plain | {"priorityClassName": "high"}
    assert with_overrides(TEMPLATE, of_workers, "coordinator")["spec"] == same_priority
    assert with_overrides(TEMPLATE, of_workers, "storage")["spec"] == same_priority
    assert with_overrides(TEMPLATE, of_coordinator, "worker")["spec"] == plain
    assert with_overrides(TEMPLATE, of_coordinator, "coordinator")["spec"] == plain | AS_PLACED
    assert with_overrides(TEMPLATE, of_coordinator, "storage")["spec"] == plain | AS_PLACED


@pytest.mark.trap(33)
def test_autoscalers_leave_the_coordinator_alone_and_workers_get_their_notice() -> None:
    """Karpenter does not even evict such pods when a spot machine is about to be taken."""

    def annotations(target: Target, component: Component) -> dict[str, str]:
        made = with_overrides(TEMPLATE, target, component)["metadata"]
        return dict(made.get("annotations", {}))

    kept = {
        "karpenter.sh/do-not-disrupt": "true",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    }
    assert annotations(Target(), "worker") == {}
    assert annotations(Target(), "coordinator") == kept
    movable = Target(coordinator=CoordinatorConfig(do_not_disrupt=False))
    assert annotations(movable, "coordinator") == {}
    annotation = {"karpenter.sh/do-not-disrupt": "1h"}
    own = Target(pod=PodConfig(annotations=annotation, do_not_disrupt=True))
    assert annotations(own, "worker") == kept | annotation


def test_containers_before_and_beside_ours() -> None:
    user = {"runAsUser": 5}
    pod = PodConfig(
        init_containers=[{"name": "warm-up", "image": "a", "securityContext": user}],
        sidecars=[{"name": "proxy", "image": "b"}],
    )
    spec = with_overrides(TEMPLATE, Target(pod=pod), "worker")["spec"]
    proxy, warm_up = spec["initContainers"]
    assert proxy == {
        "name": "proxy",
        "image": "b",
        "restartPolicy": "Always",
        "securityContext": UNPRIVILEGED,
    }
    assert warm_up == {"name": "warm-up", "image": "a", "securityContext": UNPRIVILEGED | user}
    assert spec["containers"] == TEMPLATE["spec"]["containers"]


@pytest.mark.parametrize("name", ["worker", "proxy"])
def test_containers_of_the_same_name(name: str) -> None:
    pod = PodConfig(
        init_containers=[{"name": "proxy", "image": "a"}], sidecars=[{"name": name, "image": "b"}]
    )
    with pytest.raises(TargetMismatch) as caught:
        with_overrides(TEMPLATE, Target(pod=pod), "worker")
    assert caught.value.message == f"container {name} exists already"
    assert caught.value.path == ("pod", "sidecars", 0)


def test_restricted_security_forbids_the_machines_network() -> None:
    with pytest.raises(TargetMismatch, match="the machine's network is not what"):
        require_restricted(PodConfig(host_network=True))


@pytest.mark.parametrize("kind", ["hostPath", "nfs", "iscsi"])
def test_volumes_that_restricted_security_forbids(kind: str) -> None:
    pod = PodConfig(volumes=[CLAIM, {"name": "scratch", kind: {"path": "/x"}}])
    with pytest.raises(TargetMismatch) as caught:
        require_restricted(pod)
    assert caught.value.path == ("pod", "volumes", 1)
    assert caught.value.message == (
        f"scratch is a {kind} volume, which `security: restricted` does not allow"
    )
    assert "PersistentVolumeClaim" in str(caught.value.hint)


@pytest.mark.parametrize("kind", sorted(RESTRICTED_VOLUMES))
def test_volumes_that_it_allows(kind: str) -> None:
    require_restricted(PodConfig(volumes=[{"name": "a", kind: {}}]))
