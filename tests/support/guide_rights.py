"""A user who has the rights that the guide lists, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from cluster_tool.cluster import GivenCluster

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "first-cluster-run.md"
USER = "user"
RBAC = "rbac.authorization.k8s.io"


def users_kubeconfig(cluster: GivenCluster, namespace: str, folder: Path) -> Path:
    api, core = cluster.api, f"/api/v1/namespaces/{namespace}"
    rights = f"/apis/{RBAC}/v1/namespaces/{namespace}"
    (written,) = re.findall(r"```yaml\n(apiVersion: rbac.*?)```", GUIDE.read_text(), re.DOTALL)
    role = yaml.safe_load(written)
    role["metadata"]["namespace"] = namespace
    api.create(f"{core}/serviceaccounts", {"metadata": {"name": USER}})
    api.create(f"{rights}/roles", role)
    subject = {"kind": "ServiceAccount", "name": USER, "namespace": namespace}
    given = {"apiGroup": RBAC, "kind": "Role", "name": role["metadata"]["name"]}
    binding = {"metadata": {"name": USER}, "roleRef": given, "subjects": [subject]}
    api.create(f"{rights}/rolebindings", binding)
    asked = {"spec": {"expirationSeconds": 3600}}
    token = api.create(f"{core}/serviceaccounts/{USER}/token", asked)["status"]["token"]
    content = yaml.safe_load(cluster.kubeconfig.read_text())
    content["users"][0]["user"] = {"token": token}
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return path
