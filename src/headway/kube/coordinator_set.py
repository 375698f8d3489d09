"""The coordinator's ReplicaSet: one small pod off spot machines, the only pod with a token.

Not a Job. A Job counts each pod that it lost, and waits longer before it makes the next. And Kueue
suspends a Job whose owner it evicts from a queue, and never resumes it; a ReplicaSet, whose pods
have an owner that is in a queue, it leaves alone."""

from __future__ import annotations

from headway.kube.kinds import kinds_text
from headway.kube.names import (
    HTTP_PORT,
    KEY,
    SESSION_PORT,
    SPEC,
    Object,
    coordinator_object,
    labels,
)
from headway.kube.node_prices import node_prices
from headway.kube.pod_overrides import with_overrides
from headway.kube.pods import (
    affinity,
    container,
    metadata,
    off_suspects,
    short_node_tolerations,
    spec_mount,
    spec_volume,
    template,
    variable,
)
from headway.kube.rbac import coordinator_account
from headway.kube.worker_devices import later_choices
from headway.member.coordinator.rules import ALONE_SECONDS, RESTART_ALONE_SECONDS, Rules
from headway.member.protocol.messages import MAX_WORKERS
from headway.spec.resolve import Resolved
from headway.spec.target_file import Target

NEWCOMER_SECONDS = 20.0
"""Wait for more pods before the processes of a script are started again with new ones: its imports
take as long, and what it has not saved is lost to it."""


def coordinator_set(resolved: Resolved, target: Target) -> Object:
    run = resolved.name
    pod = with_overrides(_template(resolved, target), target, "coordinator")
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": metadata(
            run, target.kube.namespace, coordinator_object(run), component="coordinator"
        ),
        "spec": {
            # Another is made as soon as this one is deleted, even if its machine does not respond:
            # of two coordinators, the one with the higher incarnation counts.
            "replicas": 1,
            "selector": {"matchLabels": labels(run, "coordinator")},
            "template": pod,
        },
    }


def membership_rules(resolved: Resolved) -> Rules:
    """What the coordinator in this pod is told."""
    ranks = resolved.domain_ranks
    return Rules(
        min_domains=fewest_domains(resolved),
        # `scale` may ask for more; the Job has as many pods as it was told.
        max_domains=MAX_WORKERS // ranks,
        first_domains=_first_domains(resolved),
        domain_workers=ranks,
        node_workers=resolved.node_ranks,
        restarts=not resolved.is_live,
        newcomer_seconds=NEWCOMER_SECONDS if resolved.is_script else Rules.newcomer_seconds,
        alone_seconds=alone_seconds(resolved),
    )


def alone_seconds(resolved: Resolved) -> float:
    """Silence of all workers at once after which they are lost. Shorter where a wrong guess costs
    only what was trained since a checkpoint of ours, and where there is one node: nobody else can
    be heard of. What it costs a script, nobody knows."""
    is_patient = resolved.is_live or (resolved.is_script and resolved.nodes > 1)
    return ALONE_SECONDS if is_patient else RESTART_ALONE_SECONDS


def fewest_nodes(resolved: Resolved) -> int:
    """With fewer nodes, the run does not train."""
    return -(-fewest_domains(resolved) * resolved.domain_ranks // resolved.ranks_per_node)


def _first_domains(resolved: Resolved) -> int:
    """A run with a range starts with the minimum; other domains join later."""
    wanted = resolved.run.resources.nodes
    is_range = wanted.minimum < wanted.maximum
    return fewest_domains(resolved) if is_range else resolved.num_workers // resolved.domain_ranks


def fewest_domains(resolved: Resolved) -> int:
    """With fewer domains, the run saves and waits. Only a range sets a minimum: with a plain
    number, the run would stop whenever a machine is replaced. The least of a range may be fewer
    nodes than one copy of the model is on."""
    wanted = resolved.run.resources.nodes
    if wanted.minimum == wanted.maximum:
        return 1
    ranks = min(wanted.minimum, resolved.nodes) * resolved.ranks_per_node
    return max(1, ranks // resolved.domain_ranks)


def _template(resolved: Resolved, target: Target) -> Object:
    run = resolved.name
    environment = [
        variable("HEADWAY_RUN_DIRECTORY", resolved.run_directory),
        variable("HEADWAY_SPEC", SPEC),
        variable("HEADWAY_KEY", KEY),
    ]
    if resolved.run.resources.spot == "above_min":
        # The coordinator keeps the pods with an index below the minimum off spot machines.
        ((key, value),) = target.spot_label.items()
        environment.append(variable("HEADWAY_SPOT_LABEL", f"{key}={value}"))
    if (rules := target.scarcity_seconds) is not None:
        environment.append(variable("HEADWAY_SCARCITY", " ".join(f"{one:g}" for one in rules)))
    if kinds := later_choices(resolved, target):
        environment.append(variable("HEADWAY_KINDS", kinds_text(kinds)))
    if (rates := node_prices(resolved, target)) is not None:
        environment.append(variable("HEADWAY_PRICES", rates.text()))
    coordinator = container(
        "coordinator",
        target,
        ["headway", "keep"],
        environment,
        [spec_mount()],
        target.coordinator.resources,
    )
    coordinator["ports"] = [
        {"name": "session", "containerPort": SESSION_PORT, "protocol": "TCP"},
        {"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"},
    ]
    coordinator["readinessProbe"] = {
        "httpGet": {"path": "/healthz", "port": "http"},
        "periodSeconds": 5,
    }
    spec: Object = {
        "restartPolicy": "Always",
        "serviceAccountName": coordinator_account(run, target),
        "automountServiceAccountToken": True,
        "tolerations": short_node_tolerations(),
        "affinity": {**affinity(target, is_off_spot=True), "podAntiAffinity": _apart(run)},
    }
    made = template(run, "coordinator", target, coordinator, [spec_volume(resolved)], spec)
    if target.metrics == "annotations":
        made["metadata"]["annotations"] = _scraped()
    return made


def _scraped() -> dict[str, str]:
    """What Prometheus' usual configuration for pods looks for."""
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(HTTP_PORT),
        "prometheus.io/path": "/metrics",
    }


def _apart(run: str) -> Object:
    """Prefers a node without workers: if a worker is lost together with the coordinator, it is
    removed only once there is a new coordinator. Set here, it also keeps the workers' pods away,
    and the scheduler has only one such pod to consider.

    And one that lost no pod a moment ago. Not required: nobody but a coordinator ends a suspicion,
    so a new one must not wait for that."""
    from_workers = {
        "labelSelector": {"matchLabels": labels(run, "worker")},
        "topologyKey": "kubernetes.io/hostname",
    }
    terms = [from_workers, off_suspects()]
    preferred = [{"weight": 100, "podAffinityTerm": term} for term in terms]
    return {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
