"""Who may reach a run's pods, and what they may reach."""

from __future__ import annotations

from headway.kube.names import HTTP_PORT, SESSION_PORT, Object, labels
from headway.kube.pods import metadata
from headway.spec.target_file import Target

DNS_PORT = 53


def network_policy(run: str, target: Target) -> Object:
    own_pods = {"podSelector": {"matchLabels": labels(run)}}
    spec: Object = {
        "podSelector": {"matchLabels": labels(run)},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [own_pods]},
            # From anywhere: the API server's proxy is no pod, so it has no label, and nobody here
            # knows its address. Only the coordinator listens there, and it is read-only.
            {"ports": [_port("TCP", HTTP_PORT)]},
        ],
    }
    if target.pod.host_network:
        # Workers then have the address of their machine, and no label. They still need the key.
        spec["ingress"].append({"ports": [_port("TCP", SESSION_PORT)]})
    if target.egress:
        spec["policyTypes"] = ["Ingress", "Egress"]
        spec["egress"] = [
            {"to": [own_pods]},
            # At any address: name servers are pods in some clusters and on the machine in others.
            {"ports": [_port("UDP", DNS_PORT), _port("TCP", DNS_PORT)]},
            {"to": [{"ipBlock": {"cidr": cidr}} for cidr in target.egress]},
        ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(run, target.kube.namespace),
        "spec": spec,
    }


def _port(protocol: str, port: int) -> Object:
    return {"protocol": protocol, "port": port}
