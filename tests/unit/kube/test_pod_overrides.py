"""What a target adds to a pod is there, beside what was there; what clashes is refused by name."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from headway.kube.pod_overrides import (
    RESTRICTED_VOLUMES,
    TargetMismatch,
    require_restricted,
    with_overrides,
)
from headway.spec.target_file import PodConfig

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
        volumes=[CLAIM],
        mounts=[MOUNT],
        env={"REGION": "north"},
        labels={"team": "nlp"},
        annotations={"why": "because"},
        image_pull_secrets=["pull"],
    )
    assert with_overrides(TEMPLATE, pod, {"pool": "gpu"}) == {
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
    assert with_overrides(TEMPLATE, PodConfig(), {}) == TEMPLATE


def test_the_cache_is_the_users_to_set() -> None:
    made = with_overrides(
        TEMPLATE, PodConfig(env={"HEADWAY_CACHE_BYTES": "1", "HEADWAY_CACHE": "/c"}), {}
    )
    added = made["spec"]["containers"][0]["env"][1:]
    assert added == [
        {"name": "HEADWAY_CACHE_BYTES", "value": "1"},
        {"name": "HEADWAY_CACHE", "value": "/c"},
    ]


def test_the_template_itself_stays_as_it_is() -> None:
    before = deepcopy(TEMPLATE)
    made = with_overrides(
        TEMPLATE, PodConfig(env={"A": "b"}, labels={"c": "d"}, volumes=[CLAIM]), {}
    )
    made["spec"]["containers"][0]["env"].clear()
    assert before == TEMPLATE


@pytest.mark.parametrize(
    ("pod", "path", "says"),
    [
        ({"labels": {"ours": "2"}}, ("pod", "labels", "ours"), "ours is set by Headway"),
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
    ],
)
def test_clashes_are_refused_with_their_place(
    pod: dict[str, Any], path: tuple[str | int, ...], says: str
) -> None:
    with pytest.raises(TargetMismatch) as caught:
        with_overrides(TEMPLATE, PodConfig(**pod), {})
    assert (caught.value.message, caught.value.path) == (says, path)


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
