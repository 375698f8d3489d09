"""What a new target says, from what was seen of its cluster and what the user asked for. Pure.

Nothing is guessed that would cost a run: what cannot be decided is an error with the whole command
for each candidate.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from headway.errors import BadInput
from headway.kube.cluster_facts import ClusterFacts
from headway.kube.images import stock_images
from headway.kube.machine_choice import choose_machine
from headway.kube.rbac import SHARED_ROLE
from headway.kube.undecided import Choice, Undecided, Wishes, listed
from headway.spec.pod_config import IMAGE_PATTERN
from headway.spec.target_file import Target

WORKER_ACCOUNT = "headway-worker"
ADDRESS = "ADDRESS@sha256:DIGEST"


def target_choice(facts: ClusterFacts, wishes: Wishes, others: Mapping[str, Target]) -> Choice:
    """`others`: targets of the same context. Raises with a command for each candidate."""
    choice = Choice()
    if wishes.context is not None:
        choice.add(("kube", "context"), wishes.context, "of your kubeconfig")
    is_given = "--namespace" in wishes.typed
    choice.add(
        ("kube", "namespace"), wishes.namespace, "--namespace" if is_given else "of the context"
    )
    found = [
        _image(facts, wishes, others, choice),
        _storage(facts, wishes, choice),
        choose_machine(facts, wishes, choice),
        _queue(facts, wishes, choice),
    ]
    if undecided := [one for one in found if one is not None]:
        raise _error(undecided, wishes)
    if facts.too_old is not None:
        choice.notes.append(facts.too_old)
    _spot(facts, choice)
    _accounts(facts, wishes, choice)
    _security(facts, choice)
    if facts.pull_secrets:
        comment = "of the namespace's default account"
        choice.add(("pod", "image_pull_secrets"), list(facts.pull_secrets), comment)
    return choice


def _error(undecided: Sequence[Undecided], wishes: Wishes) -> BadInput:
    """All at once, each with its commands. A command is whole: of what else is open it has the
    first candidate."""
    said: set[str] = set()
    parts = []
    for one in undecided:
        rest = dict(other.candidates[0] for other in undecided if other is not one)
        commands = [wishes.command({**rest, **dict([flag])}) for flag in one.candidates]
        hints = [command for command in commands if command not in said] + list(one.more)
        said |= {*commands}
        parts.append("\nhint: ".join([one.problem, *hints]))
    message, _, hints_and_more = "\nerror: ".join(parts).partition("\nhint: ")
    return BadInput(message, hints_and_more)


# Image


def _image(
    facts: ClusterFacts, wishes: Wishes, others: Mapping[str, Target], choice: Choice
) -> Undecided | None:
    if wishes.image is not None:
        return _given_image(facts, wishes.image, choice)
    stock = stock_images()
    ran = {one.by_digest for one in facts.images if one.component == "worker" and one.by_digest}
    if stock.core:
        ran.discard(stock.pytorch)  # a target names it by naming no image
    of_coordinators = {
        one.by_digest for one in facts.images if one.component == "coordinator" and one.by_digest
    }
    found: dict[str, tuple[str | None, str]] = {}
    for image in sorted(ran):
        other = min(of_coordinators, default=None) if image not in of_coordinators else None
        found[image] = (other, "of Headway's pods in the namespace")
    if not found:
        for name, target in others.items():
            if target.image is not None:
                found.setdefault(target.image, (target.coordinator.image, f"as target {name} has"))
    if len(found) == 1:
        [(image, (coordinator, comment))] = found.items()
        choice.add(("image",), image, comment)
        if coordinator is not None:
            choice.add(("coordinator", "image"), coordinator, comment)
        return None
    if found:
        return Undecided(
            f"{len(found)} images were used here, and one has to be chosen",
            tuple(("--image", image) for image in found),
        )
    if stock.core:
        return None
    seen = [one.by_digest for one in facts.images if one.by_digest is not None]
    return Undecided(
        "no image is known: nothing of Headway has run in the namespace",
        (("--image", ADDRESS),),
        (
            "headway image build --push REGISTRY/NAME builds one; or one with torch, and --set "
            "coordinator.image=...: docs/guides/first-cluster-run.md#the-image",
            *(f"pods of the namespace run {image}" for image in seen[:3]),
        ),
    )


def _given_image(facts: ClusterFacts, image: str, choice: Choice) -> Undecided | None:
    if re.search(IMAGE_PATTERN, image):
        choice.add(("image",), image, "--image")
        return None
    pulled = next(
        (one.by_digest for one in facts.images if one.reference == image and one.by_digest), None
    )
    if pulled is not None:
        choice.add(("image",), pulled, f"{image}, as a pod of the namespace has it")
        return None
    address = image.split("@")[0]
    return Undecided(
        f"--image {image} has no digest, and a tag can change during a run",
        (("--image", f"{_without_tag(address)}@sha256:DIGEST"),),
        (f"its digest: docker buildx imagetools inspect {image}, or crane digest {image}",),
    )


def _without_tag(address: str) -> str:
    folder, slash, name = address.rpartition("/")
    return f"{folder}{slash}{name.partition(':')[0]}"


# Storage


def _storage(facts: ClusterFacts, wishes: Wishes, choice: Choice) -> Undecided | None:
    given = wishes.storage
    if given is not None and "://" in given:
        choice.add(
            ("storage", "url"),
            given,
            "--storage; pods reach it as themselves, or by storage.secret",
        )
        return None
    claims = {claim.name: claim for claim in facts.claims}
    if given is not None:
        name = given.removeprefix("claim:")
        claim = claims.get(name)
        if claim is None and claims:
            known = tuple(("--storage", f"claim:{one}") for one in claims)
            return Undecided(f"the namespace has no claim {name}", known)
        choice.add(("storage", "claim"), name, "--storage")
        if claim is not None and not claim.is_shared:
            modes = " and ".join(claim.modes)
            choice.notes.append(f"claim {name} is {modes}: pods on a second machine would wait")
        return None
    shared = [claim for claim in facts.claims if claim.is_shared and claim.is_bound]
    if len(shared) == 1:
        comment = f"the one claim with ReadWriteMany{_of_class(shared[0].storage_class)}"
        choice.add(("storage", "claim"), shared[0].name, comment)
        return None
    if shared:
        return Undecided(
            "several claims can be written by many machines: "
            + listed(claim.name for claim in shared),
            tuple(("--storage", f"claim:{claim.name}") for claim in shared),
        )
    return _no_claim(facts, wishes)


def _no_claim(facts: ClusterFacts, wishes: Wishes) -> Undecided:
    hints: tuple[str, ...] = ()
    if facts.shared_classes:
        made = (
            "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: headway}, spec: "
            "{accessModes: [ReadWriteMany], resources: {requests: {storage: 1Ti}}, "
            f"storageClassName: {facts.shared_classes[0]}}}}}"
        )
        namespace = shlex.quote(wishes.namespace)
        hints = (
            f"or make a claim of class {facts.shared_classes[0]}, and leave --storage out: "
            f"echo '{made}' | kubectl apply -n {namespace} -f -",
        )
    return Undecided(
        "no claim of the namespace is bound and can be written by many machines (ReadWriteMany)",
        (("--storage", f"{'gs' if '-gke' in (facts.version or '') else 's3'}://BUCKET/PREFIX"),),
        hints,
    )


def _of_class(name: str) -> str:
    return f", class {name}" if name else ""


# The rest


def _queue(facts: ClusterFacts, wishes: Wishes, choice: Choice) -> Undecided | None:
    if wishes.queue is not None:
        if facts.queues and wishes.queue not in facts.queues:
            known = tuple(("--queue", name) for name in facts.queues)
            return Undecided(f"the namespace has no active queue {wishes.queue}", known)
        choice.add(("queue",), wishes.queue, "--queue")
    elif len(facts.queues) == 1:
        choice.add(("queue",), facts.queues[0], "the one LocalQueue of the namespace (Kueue)")
    elif facts.queues:
        return Undecided(
            f"the namespace has {len(facts.queues)} queues: {listed(facts.queues)}",
            tuple(("--queue", name) for name in facts.queues),
        )
    return None


def _spot(facts: ClusterFacts, choice: Choice) -> None:
    if facts.spot is not None:
        choice.add(("spot_label",), dict([facts.spot]), "some machines have it")


def _accounts(facts: ClusterFacts, wishes: Wishes, choice: Choice) -> None:
    """Without the right to make Roles, runs need an account that an administrator makes. One that
    is there is used in any case: it may be known to a cloud, for the bucket."""
    needed = ("create roles", "create rolebindings", "create serviceaccounts")
    is_there = SHARED_ROLE in facts.accounts
    if not is_there and all(facts.rights.get(right, True) for right in needed):
        return
    comment = "made by an administrator" if is_there else "you may not create Roles; not there yet"
    choice.add(("service_account", "coordinator"), SHARED_ROLE, comment)
    if WORKER_ACCOUNT in facts.accounts:
        choice.add(("service_account", "name"), WORKER_ACCOUNT, "made by an administrator")
    if not is_there:
        choice.notes.append(
            f"once, by an administrator: headway target rbac {wishes.name} | kubectl apply -f -"
        )


def _security(facts: ClusterFacts, choice: Choice) -> None:
    if choice.has("security"):
        return
    comment = "what the namespace enforces" if facts.level == "restricted" else "fits anywhere"
    if facts.level not in (None, "restricted"):
        comment = f"the namespace enforces {facts.level}, which takes it as well"
    choice.add(("security",), "restricted", comment)
