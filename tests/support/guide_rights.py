"""Users of a namespace, each with the rights that a guide gives them and no others."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from cluster_tool.api import Object
from cluster_tool.cluster import GivenCluster
from support.lab import Lab

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "first-cluster-run.md"
USER = "user"
RBAC = "rbac.authorization.k8s.io"
SERVICE_ACCOUNTS = {"coordinator": "headway-coordinator", "name": "headway-worker"}


def users_kubeconfig(cluster: GivenCluster, namespace: str, folder: Path) -> Path:
    """With the Role of the first guide: runs make their own accounts."""
    (written,) = re.findall(r"```yaml\n(apiVersion: rbac.*?)```", GUIDE.read_text(), re.DOTALL)
    role = yaml.safe_load(written)
    role["metadata"]["namespace"] = namespace
    cluster.api.create(_path("Role", namespace), role)
    given = {"kind": "Role", "name": role["metadata"]["name"]}
    return _kubeconfig(cluster, namespace, folder, given)


def editors_kubeconfig(lab: Lab) -> Path:
    """With the ClusterRole `edit`, after an administrator has applied the target's accounts."""
    lab.change_target(service_account=SERVICE_ACCOUNTS)
    for one in yaml.safe_load_all(lab.headway("target", "rbac", "lab").stdout):
        lab.cluster.api.create(_path(one["kind"], lab.namespace), one)
    given = {"kind": "ClusterRole", "name": "edit"}
    return _kubeconfig(lab.cluster, lab.namespace, lab.folder, given)


def _kubeconfig(cluster: GivenCluster, namespace: str, folder: Path, given: Object) -> Path:
    """Of a user to whom that role is bound, and nothing else."""
    accounts = _path("ServiceAccount", namespace)
    cluster.api.create(accounts, {"metadata": {"name": USER}})
    subject = {"kind": "ServiceAccount", "name": USER, "namespace": namespace}
    binding = {"metadata": {"name": USER}, "roleRef": {"apiGroup": RBAC, **given}}
    cluster.api.create(_path("RoleBinding", namespace), {**binding, "subjects": [subject]})
    asked = {"spec": {"expirationSeconds": 3600}}
    token = cluster.api.create(f"{accounts}/{USER}/token", asked)["status"]["token"]
    content = yaml.safe_load(cluster.kubeconfig.read_text())
    content["users"][0]["user"] = {"token": token}
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return path


def _path(kind: str, namespace: str) -> str:
    group = "/api/v1" if kind == "ServiceAccount" else f"/apis/{RBAC}/v1"
    return f"{group}/namespaces/{namespace}/{kind.lower()}s"
