"""Lines of a check about pods and what they see: image, machines, devices, network, clocks.
Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from headway.kube.check_lines import (
    CLOCKS,
    COORDINATOR,
    DEVICES,
    FABRIC,
    IMAGE,
    MACHINES,
    NAMES,
    REACH,
    WORKERS,
    CheckLine,
    failed,
    not_checked,
    passed,
    warned,
)
from headway.kube.images import BUILD, target_images
from headway.kube.names import HTTP_PORT, SESSION_PORT
from headway.kube.node_fit import devices_of, fits
from headway.kube.probe_protocol import PortAnswer
from headway.launch.api_findings import line_of
from headway.launch.probe_questions import Pair
from headway.launch.target_evidence import (
    NO_IMAGE,
    TargetEvidence,
    asked_devices,
    is_policy,
    is_volume,
    no_coordinator,
    no_workers,
    worker_pod,
)

SLOW_GIGABITS = 1.0
SLOW_NAME_MILLISECONDS = 1000.0
SKEW_WARNED_SECONDS, SKEW_FAILED_SECONDS = 2.0, 60.0
WITHOUT_PLUGIN = ("IB", "Socket")
"""Values of NCCL_NET that NCCL has by itself."""
FABRIC_NAME = re.compile(r"(^|[^a-z])(efa|rdma|infiniband|hca)([^a-z]|$)")
PLUGINS = {
    "nvidia.com/gpu": "NVIDIA's device plugin, or its GPU operator",
    "amd.com/gpu": "AMD's device plugin, or its GPU operator",
}


def image(seen: TargetEvidence) -> CheckLine:
    """Also of Secrets and volumes that pods name: without them no container is made."""
    for key in ("pod", "secret"):
        named = seen.named(key)
        if named is not None and (named.is_fatal or not seen.start.workers):
            return line_of(IMAGE, named)
    for component, words in seen.all_waits.items():
        if words.startswith(NO_IMAGE):
            images = target_images(seen.target)
            pulled = images.worker if component == "worker" else images.coordinator
            return failed(
                IMAGE,
                f"{component}: {words}",
                f"docker buildx imagetools inspect {pulled}; if it is there: pod: "
                "{image_pull_secrets: [NAME]} in the target",
            )
        if "exec format error" in words:
            return failed(
                IMAGE,
                f"{component}: {words}",
                "its machine has another architecture than the image: pod: {architecture: amd64} "
                "in the target, or an image of both",
            )
        if words.startswith("the container cannot be created"):
            return failed(IMAGE, f"{component}: {words}", _secrets_fix(seen))
        if words.startswith(("its pod", "it keeps crashing")):
            return failed(
                IMAGE,
                f"{component}: {words}",
                "the image needs python3 3.11 to 3.14 in its PATH; that of the coordinator needs "
                "the same version of Headway as yours",
            )
    facts = [
        seen.answers.facts[one.title]
        for one in seen.start.workers
        if one.title in seen.answers.facts
    ]
    lacking = sorted({words for one in facts for words in one.lacking})
    if lacking:
        return failed(
            IMAGE,
            f"Headway cannot be brought into the workers' image: {'; '.join(lacking)}",
            BUILD.replace("TARGET", seen.name),
        )
    if not facts:
        return not_checked(IMAGE, no_workers(seen))
    one = facts[0]
    seconds = max(probe.seconds for probe in seen.start.probes)
    torch = f"torch {one.torch}" if one.torch else "no torch found by its name"
    evidence = f"Python {one.python}, {torch}, {one.machine}; all pods up after {seconds:.0f} s"
    if one.torch is None:
        return warned(IMAGE, evidence, "runs need torch 2.14 or later in the workers' image")
    return passed(IMAGE, evidence)


def machines(seen: TargetEvidence) -> CheckLine:
    workers = seen.start.workers
    nodes, pod = seen.look.nodes, worker_pod(seen)
    fitting = None if nodes is None else [node for node in nodes if fits(node, pod["spec"])]
    resource, wanted = asked_devices(seen)
    if len(workers) < 2 and fitting is not None and nodes is not None:
        if not fitting:
            return failed(
                MACHINES,
                f"none of {len(nodes)} machines has the labels, or tolerates the taints, that "
                f"workers need{_after(seen)}",
                "kubectl get nodes --show-labels; then accelerators:, pod.node_selector or "
                "pod.tolerations of the target",
            )
        if resource and not any(devices_of(node, resource) for node in fitting):
            plugin = PLUGINS.get(resource, f"the device plugin that offers {resource}")
            return failed(
                MACHINES,
                f"{len(fitting)} of {len(nodes)} machines have the labels, and none offers "
                f"{resource}",
                f"an administrator installs {plugin}; or pod: {{device: NAME}} if it has another "
                "name here: kubectl describe node",
            )
        most = max((devices_of(node, resource) for node in fitting), default=0) if resource else 0
        if resource and most < wanted:
            return failed(
                MACHINES,
                f"workers ask for {wanted} {resource}, and no machine has more than {most}",
                f"resources: {{accelerators: KIND:{most}}} in the target",
            )
    if not workers:
        if seen.waits("worker") is None:
            return not_checked(MACHINES, no_workers(seen))
        if _is_of_another_line(seen.waits("worker") or ""):
            return not_checked(MACHINES, no_workers(seen))
        return failed(MACHINES, f"no worker started: {seen.waits('worker')}", _capacity_fix(seen))
    on = sorted({one.machine for one in workers})
    number = "" if fitting is None else f"; {len(fitting)} machines fit"
    if seen.look.are_nodes_too_many:
        number = "; there are too many machines to be looked at one by one"
    if len(workers) == 1:
        return warned(
            MACHINES,
            f"one worker runs, on {on[0]}; the other waits: {seen.waits('worker')}{number}",
            _capacity_fix(seen),
        )
    if len(on) == 1:
        return warned(
            MACHINES,
            f"both workers are on {on[0]}{number}: nothing between machines was tried",
            "none, if there is one machine; else see what kubectl describe node says of the others",
        )
    return passed(MACHINES, f"workers on {' and '.join(on)}{number}")


def devices(seen: TargetEvidence) -> CheckLine:
    resource, wanted = asked_devices(seen)
    if not wanted:
        return passed(DEVICES, "the target asks for none")
    if not seen.answers.facts or not seen.start.workers:
        return not_checked(DEVICES, no_workers(seen))
    for title, facts in seen.answers.facts.items():
        if not title.startswith("worker"):
            continue
        found = max(facts.nvidia, facts.amd)
        if found < wanted:
            return failed(
                DEVICES,
                f"{title} asked for {wanted} {resource} and sees {found} in /dev "
                f"({facts.nvidia_driver} by the NVIDIA driver)",
                "pod: {runtime_class: nvidia} in the target, if kubectl get runtimeclass has it; "
                f"else {PLUGINS.get(resource, 'the device plugin')} gives out what is not there",
            )
    return passed(DEVICES, f"each worker sees the {wanted} {resource} that it asked for")


def fabric(seen: TargetEvidence) -> CheckLine:
    """The network of collectives. If it is not there, NCCL uses TCP, and nothing fails."""
    network = seen.target.pod.env.get("NCCL_NET")
    needs_plugin = network not in (None, *WITHOUT_PLUGIN)
    limits = _limits(seen)
    asked = {name: int(limits[name]) for name in limits if FABRIC_NAME.search(name)}
    if not asked and not needs_plugin:
        return passed(FABRIC, "the target asks for none")
    workers = {
        one.title: seen.answers.facts[one.title]
        for one in seen.start.workers
        if one.title in seen.answers.facts
    }
    if not workers:
        return not_checked(FABRIC, no_workers(seen))
    for title, facts in workers.items():
        if facts.fabric < sum(asked.values()):
            listed = " and ".join(f"{number} {name}" for name, number in asked.items())
            return failed(
                FABRIC,
                f"{title} asked for {listed} and sees {facts.fabric} in /dev/infiniband",
                "the device plugin of the network gives out what is not there: kubectl get "
                "daemonsets -A",
            )
    title, facts = next(iter(workers.items()))
    if facts.nccl_plugin_error is None:
        return passed(FABRIC, f"{facts.fabric} devices in each worker; NCCL's plugin loads")
    words = f"{title} cannot load NCCL's plugin{f' for NCCL_NET={network}' if network else ''}"
    evidence = f"{words}: {facts.nccl_plugin_error}"
    if needs_plugin:
        return failed(
            FABRIC,
            evidence,
            "an image with libnccl-net.so, of aws-ofi-nccl for EFA, in LD_LIBRARY_PATH",
        )
    if "efa" in " ".join(asked):
        return warned(
            FABRIC,
            f"{evidence}: NCCL would use TCP, and say nothing",
            "an image with aws-ofi-nccl; and pod: {env: {NCCL_NET: AWS Libfabric}} in the target, "
            "with which a run fails rather than crawls",
        )
    return passed(FABRIC, f"{facts.fabric} devices in each worker; NCCL uses them without a plugin")


def reach(seen: TargetEvidence) -> CheckLine:
    lost = seen.answers.unreachable
    if not seen.start.probes:
        return not_checked(REACH, "no pod runs")
    if lost:
        title, why = next(iter(lost.items()))
        return failed(
            REACH,
            f"{len(lost)} of {len(seen.start.probes)} pods cannot be reached from here; {title}: "
            f"{why}",
            "the administrator lets you use pods/portforward (get, create), or lets the API server "
            f"reach port {HTTP_PORT} of pods",
        )
    by = f", by {seen.answers.way}" if seen.answers.way else ""
    return passed(REACH, f"all {len(seen.start.probes)} answer{by}")


def names(seen: TargetEvidence) -> CheckLine:
    found = seen.answers.names
    if not found:
        return not_checked(NAMES, no_workers(seen))
    for title, answer in found.items():
        asked = f"asked {' and '.join(answer.servers) or 'no server'}"
        if answer.error is not None:
            return failed(
                NAMES,
                f"{title} cannot resolve the coordinator's name: {answer.error}; it {asked}",
                "kubectl get pods -n kube-system -l k8s-app=kube-dns; is port 53 open for pods?",
            )
    slowest = max(max(one.milliseconds, default=0.0) for one in found.values())
    some = next(iter(found.values()))
    num_times = sum(len(one.milliseconds) for one in found.values())
    evidence = f"{num_times} times, at most {slowest:.0f} ms, by {' and '.join(some.servers)}"
    if slowest > SLOW_NAME_MILLISECONDS:
        return warned(
            NAMES,
            evidence,
            "kubectl top pods -n kube-system -l k8s-app=kube-dns; 5 s is the time after which "
            "another server is asked: one of several may not answer",
        )
    return passed(NAMES, evidence)


def workers(seen: TargetEvidence) -> CheckLine:
    pairs = {
        pair: answers for pair, answers in seen.answers.ports.items() if pair[1] != "coordinator"
    }
    if not pairs:
        if len(seen.start.workers) == 1:
            return not_checked(WORKERS, f"only one worker runs: {seen.waits('worker')}")
        return not_checked(WORKERS, no_workers(seen))
    if problems := [*_blocked(pairs)]:
        return failed(WORKERS, "; ".join(problems), _network_fix(seen, "all TCP ports"))
    rates = {pair: sent.gigabits for pair, sent in seen.answers.sends.items() if sent.error is None}
    by_rate = ", ".join(f"{one} to {other} {rate:.1f}" for (one, other), rate in rates.items())
    same = len({probe.machine for probe in seen.start.workers}) == 1
    where = " within one machine" if same else ""
    evidence = f"3 ports each way{where}; Gbit/s of one connection: {by_rate or 'not measured'}"
    for (one, other), sent in seen.answers.sends.items():
        if sent.error is not None:
            return failed(
                WORKERS,
                f"{one} reaches {other}, and sending fails: {sent.error}",
                "is the MTU of pods larger than the network's?",
            )
    if rates and min(rates.values()) < SLOW_GIGABITS:
        return warned(WORKERS, evidence, "fine for runs on CPUs; slow for gradients of GPUs")
    return passed(WORKERS, evidence)


def coordinator(seen: TargetEvidence) -> CheckLine:
    pairs = {
        pair: answers for pair, answers in seen.answers.ports.items() if pair[1] == "coordinator"
    }
    if not pairs:
        return not_checked(
            COORDINATOR, no_coordinator(seen) if seen.start.workers else no_workers(seen)
        )
    if problems := [*_blocked(pairs)]:
        ports = f"TCP ports {SESSION_PORT} and {HTTP_PORT}"
        return failed(COORDINATOR, "; ".join(problems), _network_fix(seen, ports))
    slowest = max(one.milliseconds or 0.0 for answers in pairs.values() for one in answers)
    listed = ", ".join(str(one.port) for one in next(iter(pairs.values())))
    return passed(
        COORDINATOR, f"ports {listed} from {len(pairs)} workers, at most {slowest:.0f} ms"
    )


def _blocked(pairs: Mapping[Pair, Sequence[PortAnswer]]) -> Iterable[str]:
    for (one, other), answers in pairs.items():
        bad = [answer for answer in answers if answer.error is not None]
        if bad:
            listed = ", ".join(str(answer.port) for answer in bad)
            yield f"{one} does not reach {other} on port {listed}: {bad[0].error}"


def _network_fix(seen: TargetEvidence, ports: str) -> str:
    if seen.target.pod.host_network:
        return (
            f"open {ports} between the machines: security group, firewall (workers have the "
            "machine's own network)"
        )
    return (
        f"kubectl get networkpolicies -n {seen.namespace}; and open {ports} between pods on "
        "different machines, in both directions: security group, firewall"
    )


def clocks(seen: TargetEvidence) -> CheckLine:
    offsets = dict(seen.answers.offsets)
    if not offsets:
        return not_checked(CLOCKS, "no pod could be asked")
    machine_of = {one.title: one.machine for one in seen.start.probes}
    if seen.server_offset is not None:
        offsets["the API server"] = seen.server_offset
    middle = sorted(offsets.values())[len(offsets) // 2]
    title, worst = max(offsets.items(), key=lambda pair: abs(pair[1] - middle))
    skew = worst - middle
    where = f" on {machine_of[title]}" if title in machine_of else ""
    way = "ahead of" if skew > 0 else "behind"
    evidence = f"{title}{where} is {abs(skew):.1f} s {way} the others"
    fix = f"chrony on that machine{where}: chronyc tracking"
    if abs(skew) >= SKEW_FAILED_SECONDS:
        return failed(CLOCKS, evidence, fix)
    if abs(skew) >= SKEW_WARNED_SECONDS:
        return warned(CLOCKS, evidence, fix)
    others = " and the API server" if seen.server_offset is not None else ""
    return passed(
        CLOCKS, f"{len(seen.answers.offsets)} pods{others} agree within {abs(skew):.1f} s"
    )


def _limits(seen: TargetEvidence) -> dict[str, str]:
    (worker,) = [one for one in worker_pod(seen)["spec"]["containers"] if one["name"] == "worker"]
    limits: dict[str, str] = worker["resources"]["limits"]
    return limits


def _after(seen: TargetEvidence) -> str:
    words = seen.waits("worker")
    return f" ({words})" if words else ""


def _is_of_another_line(words: str) -> bool:
    """A reason to wait that is not the machines'."""
    return (
        words.startswith((*NO_IMAGE, "in queue", "its pod", "it keeps", "the container cannot"))
        or "quota" in words
        or "service account" in words
        or is_policy(words)
        or (words.startswith("its machine cannot start it") and is_volume(words))
    )


def _capacity_fix(seen: TargetEvidence) -> str:
    return (
        f"kubectl get pods -n {seen.namespace} -o wide; with an autoscaler: headway target check "
        f"{seen.name} --wait 15min; else smaller pod.resources"
    )


def _secrets_fix(seen: TargetEvidence) -> str:
    storage = seen.target.storage
    named = [storage.secret] if storage is not None and storage.secret is not None else []
    listed = ", ".join(named) or "a Secret that the target names"
    return f"kubectl get secret -n {seen.namespace}; is {listed} there, with all its keys?"
