"""A run completed for a target: what its nodes have, how many there are, and what cannot run there.

An error in the target raises `TargetMismatch` with its key, an error in the run `SpecError` with
its line in the run file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from headway.errors import BadInput, SpecError
from headway.kube.images import require_images
from headway.kube.pod_overrides import TargetMismatch
from headway.kube.storage_layout import Key, LocalFolder, StorageLayout, in_pods, set_locations
from headway.member.protocol.messages import MAX_WORKERS
from headway.plan.checkpoint_every import with_checkpoint_interval
from headway.plan.fit import auto_layout
from headway.plan.machines import find_machine
from headway.plan.workload import Workload
from headway.spec.load import Loaded
from headway.spec.resolve import Hardware, Resolved, require_whole_copies, resolve
from headway.spec.run_file import ResourcesConfig, RunFile
from headway.spec.target_file import Target, with_defaults

NEEDED = {"cpu": "8", "memory": "32Gi"}
"""With an example. Without them pods get what is left over, and are the first to be evicted."""

EXPONENTS = {"m": -1, "": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
"""Powers of 1000, or of 1024 with `i`, that Kubernetes' units stand for."""


def resolve_on_target(
    loaded: Loaded,
    target: Target,
    *,
    nodes: int | None,
    parameters: int | None,
    layout: StorageLayout,
    folders: Sequence[LocalFolder],
    digests: Mapping[Key, str],
    workload: Workload | None = None,
) -> Resolved:
    """The run as it is on the target. `nodes` as the user asked for; None: as the run
    file says. `workload`: what it computes, if that is known."""
    loaded = replace(loaded, run=with_defaults(loaded.run, target))
    run = loaded.run
    nodes = _nodes(loaded, nodes, is_queued=target.queue is not None)
    require_target(run, target)
    _require_credentials(loaded, target)
    is_script = run.command is not None
    train, validation = ("", {}) if is_script else set_locations(run, layout, digests)
    node = target_hardware(run.resources, target)
    resolved = resolve(
        loaded,
        node,
        nodes=1,  # on each machine
        parameters=parameters,
        train_set=train,
        validation_sets=validation,
        auto=auto_layout(run, workload, node, nodes),
    ).model_copy(update={"nodes": nodes})
    require_whole_copies(loaded, nodes)
    is_auto = run.elastic == "auto" and not is_script
    if resolved.device == "cpu" and is_auto and not run.shard.is_wide:
        # There is a coordinator in any case, and with it even one node can be scaled.
        live = run.model_copy(update={"elastic": "live"})
        resolved = resolved.model_copy(update={"run": live})
    resolved = with_checkpoint_interval(resolved, parameters, target.interruptions)
    if resolved.num_workers > MAX_WORKERS:
        raise BadInput(
            f"{nodes} nodes of {resolved.ranks_per_node} are {resolved.num_workers} workers; a run "
            f"can have {MAX_WORKERS}"
        )
    return in_pods(resolved, layout, folders, digests)


def target_hardware(resources: ResourcesConfig, target: Target) -> Hardware:
    """What a pod of the workers has."""
    pod, wanted = target.pod, resources.accelerators
    devices = 0 if wanted is None or wanted.is_cpu else wanted.count
    written = pod.resources.get(pod.device) if pod.device is not None else None
    if pod.device is not None and written is not None and written != str(devices):
        raise TargetMismatch(
            f"it is {written}, and resources.accelerators is {wanted or 'not given'}",
            ("pod", "resources", pod.device),
            "leave it out: devices are added as resources.accelerators says",
        )
    return Hardware(
        cores=whole_cores(pod.resources["cpu"]),
        cuda_devices=devices,
        memory_bytes=amount_in_bytes(pod.resources["memory"]),
    )


def whole_cores(amount: str) -> int:
    """Of `8` or `7500m`. Threads that share a core gain nothing."""
    return max(1, math.floor(cores_of(amount)))


def cores_of(amount: str) -> Fraction:
    number = amount.removesuffix("m")
    if not number.replace(".", "").isdigit():
        raise TargetMismatch(
            f"{amount} is not a number of cores", ("pod", "resources", "cpu"), "cpu: 8, or 7500m"
        )
    return Fraction(number) / (1000 if amount.endswith("m") else 1)


def amount_in_bytes(amount: str) -> int:
    """Of `32Gi`, `500M` or a plain number."""
    number = amount.rstrip("".join(EXPONENTS) + "i")
    unit = amount.removeprefix(number)
    base = Fraction(1024 if unit.endswith("i") else 1000)
    return math.floor(Fraction(number) * base ** EXPONENTS[unit[:1]])


def require_target(run: RunFile, target: Target) -> None:
    require_images(run, target)
    if missing := [name for name in NEEDED if name not in target.pod.resources]:
        verb = "is" if len(missing) == 1 else "are"
        raise TargetMismatch(
            f"{' and '.join(missing)} {verb} missing: nothing says how much a worker's pod gets",
            ("pod", "resources"),
            _amounts_hint(target, missing),
        )
    if run.resources.spot == "above_min" and not target.spot_label:
        raise TargetMismatch(
            "it is missing: `spot: above_min` has to tell spot machines from others",
            ("spot_label",),
            "spot_label: {karpenter.sh/capacity-type: spot}, or what such machines carry here",
        )


def _amounts_hint(target: Target, missing: Sequence[str]) -> str:
    machine = find_machine(target.machine) if target.machine is not None else None
    amounts = machine.pod_amounts() if machine is not None else {}
    if amounts:
        wanted = amounts | target.pod.resources
        whose = f", nearly all of a {target.machine}"
    else:
        wanted, whose = {name: NEEDED[name] for name in missing}, ""
    listed = ", ".join(f"{name}: {amount}" for name, amount in wanted.items())
    return f"pod: {{resources: {{{listed}}}}}{whose}"


def _require_credentials(loaded: Loaded, target: Target) -> None:
    """For a bucket that the run file names. The coordinator writes there, too, and gets no
    `secrets` of the run."""
    bucket = loaded.run.storage
    has_claim = target.storage is not None and target.storage.claim is not None
    accounts = target.service_account
    has_identity = bool(accounts.annotations) or accounts.name is not None
    if "://" in bucket and has_claim and not has_identity:
        raise SpecError(
            f"storage: {bucket} is a bucket, and nothing gives the pods of a target whose storage "
            "is a claim credentials for it",
            str(loaded.located.mark(("storage",))),
            "leave it out: run directories go to the claim; or write it in the target: "
            f"storage: {{url: {bucket}, secret: NAME}}",
        )


def _nodes(loaded: Loaded, asked: int | None, is_queued: bool) -> int:
    """Of a range the most: it begins with the fewest, and takes what the cluster has for it. In a
    queue the fewest, for all that are asked for are waited for there."""
    wanted = loaded.run.resources.nodes
    if asked is None:
        return wanted.minimum if is_queued else wanted.maximum
    is_range = wanted.minimum < wanted.maximum
    if is_range and not wanted.minimum <= asked <= wanted.maximum:
        raise BadInput(
            f"--nodes {asked} is not within resources.nodes, {wanted}",
            f"--set resources.nodes={min(asked, wanted.minimum)}..{max(asked, wanted.maximum)}",
        )
    return asked
