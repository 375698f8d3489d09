"""A kubeconfig may name a command that prints a token, as those of clouds and single sign-on do."""

from __future__ import annotations

import json

import msgspec
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import NameValue

GROUP = "client.authentication.k8s.io"
KNOWN = f"{GROUP}/v1beta1"
"""To lightkube. Of what it reads, the token, nothing has changed in v1."""
INFORMATION = "KUBERNETES_EXEC_INFO"


def with_login_command(config: SingleConfig) -> SingleConfig:
    """With what kubectl tells such a command: some ask for it, and answer in the version named."""
    user = config.user
    if user is None or user.exec is None:
        return config
    asked = user.exec.apiVersion
    request = {"apiVersion": asked, "kind": "ExecCredential", "spec": {"interactive": False}}
    told = NameValue(INFORMATION, json.dumps(request))
    command = msgspec.structs.replace(
        user.exec,
        apiVersion=KNOWN if asked == f"{GROUP}/v1" else asked,
        env=[told, *(user.exec.env or ())],
    )
    return config._replace(user=msgspec.structs.replace(user, exec=command))
