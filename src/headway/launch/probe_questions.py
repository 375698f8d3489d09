"""What probes are asked, and in which order: first what each sees alone, then of each other, then
of the storage. What one does not answer is noted, and the others are asked all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from headway.clock import Clock
from headway.errors import HeadwayError
from headway.kube.names import HTTP_PORT, SESSION_PORT, STORAGE, run_object
from headway.kube.probe_objects import claim_folder
from headway.kube.probe_protocol import (
    CreateAnswer,
    NameAnswer,
    PortAnswer,
    ProbeFacts,
    ReadAnswer,
    RegionAnswer,
    RightsAnswer,
    SendAnswer,
    WriteAnswer,
    parsed,
    port_answers,
)
from headway.kube.rbac import coordinator_rules
from headway.kube.reviews import Right, access_review
from headway.launch.probe_pods import ProbePods, ProbeStart, StartedProbe
from headway.spec.target_file import Target

NUM_PORTS = 3
CONNECT_SECONDS, SEND_SECONDS = 3.0, 2.0
CLAIM_MEGABYTES, BUCKET_MEGABYTES = 64, 16
WRITE_SECONDS, SEEN_SECONDS = 3.0, 10.0
NUM_LOOKUPS = 5
Pair = tuple[str, str]
"""Titles of two probes: from, to."""


@dataclass
class ProbeAnswers:
    """By the title of a probe. What is not here was not answered."""

    way: str | None = None
    """By which the first was reached."""
    unreachable: dict[str, str] = field(default_factory=dict)
    facts: dict[str, ProbeFacts] = field(default_factory=dict)
    offsets: dict[str, float] = field(default_factory=dict)
    """Seconds that a clock is ahead of the client's."""
    names: dict[str, NameAnswer] = field(default_factory=dict)
    ports: dict[Pair, list[PortAnswer]] = field(default_factory=dict)
    sends: dict[Pair, SendAnswer] = field(default_factory=dict)
    missing_rights: list[str] | None = None
    """Of the coordinator's account."""
    rights_error: str | None = None
    region: RegionAnswer | None = None
    writer: str = ""
    written: WriteAnswer | None = None
    reads: dict[str, ReadAnswer] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    """Why a probe did not even try."""
    creates: dict[str, CreateAnswer] = field(default_factory=dict)
    is_removed: bool = True
    problems: list[str] = field(default_factory=list)
    """Answers that did not come."""


class Questions:
    def __init__(
        self,
        pods: ProbePods,
        run: str,
        target: Target,
        start: ProbeStart,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self._pods = pods
        self._run = run
        self._target = target
        self._start = start
        self._clock = clock
        self._say = say
        self._service = f"{run_object(run)}.{target.kube.namespace}.svc"
        self.answers = ProbeAnswers()

    def ask_all(self) -> ProbeAnswers:
        self._at_once(self._facts, self._start.probes)
        reached = [one for one in self._start.probes if one.title in self.answers.facts]
        workers = [one for one in reached if one.component == "worker"]
        coordinator = next((one for one in reached if one.component == "coordinator"), None)
        self._say(f"{len(reached)} of {len(self._start.probes)} probes answer; asking for names")
        self._at_once(self._name, workers)
        self._say("trying the network, 2 s each way")
        self._network(workers)
        self._say("trying the storage")
        if coordinator is not None:
            self._coordinators_rights(coordinator)
        self._storage(workers, coordinator)
        return self.answers

    def _at_once(
        self, asked: Callable[[StartedProbe], None], probes: Iterable[StartedProbe]
    ) -> None:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(asked, probes))

    def _ask(self, probe: StartedProbe, task: str, **content: Any) -> dict[str, Any] | None:
        try:
            return self._pods.ask(probe, task, content)
        except HeadwayError as error:
            self.answers.problems.append(f"{probe.title} did not answer {task}: {error.message}")
            return None

    def _facts(self, probe: StartedProbe) -> None:
        before = self._clock.now()
        try:
            answer = self._pods.ask(probe, "facts")
        except HeadwayError as error:
            self.answers.unreachable[probe.title] = error.message
            alone = self._pods.found_alone(probe)
            if "resolve" in alone:
                self.answers.names[probe.title] = parsed(NameAnswer, alone["resolve"])
            return
        facts = parsed(ProbeFacts, answer)
        # A connection by port-forward may have been set up before the answer.
        after = self._clock.now()
        again, before_again = self._ask(probe, "facts"), after
        if again is not None:
            facts = parsed(ProbeFacts, again)
            before, after = before_again, self._clock.now()
        self.answers.facts[probe.title] = facts
        self.answers.offsets[probe.title] = facts.time - (before + after) / 2
        self.answers.way = self._pods.way

    def _name(self, worker: StartedProbe) -> None:
        answer = self._ask(worker, "resolve", name=self._service, times=NUM_LOOKUPS)
        if answer is not None:
            self.answers.names[worker.title] = parsed(NameAnswer, answer)

    def _network(self, workers: list[StartedProbe]) -> None:
        pairs = [(one, other) for one in workers for other in workers if one is not other]
        listening = {one.title: self._ask(one, "listen", num_ports=NUM_PORTS) for one in workers}

        def to_worker(pair: tuple[StartedProbe, StartedProbe]) -> None:
            one, other = pair
            listens = listening[other.title]
            if listens is not None:
                self._connect(one, other.title, other.address, listens["ports"])

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(to_worker, pairs))
        if self._start.coordinator is not None:
            self._at_once(self._to_coordinator, workers)
        for one, other in pairs:
            ports = self.answers.ports.get((one.title, other.title), [])
            good = next((found.port for found in ports if found.error is None), None)
            if good is not None:
                sent = self._ask(one, "send", host=other.address, port=good, seconds=SEND_SECONDS)
                if sent is not None:
                    self.answers.sends[one.title, other.title] = parsed(SendAnswer, sent)

    def _to_coordinator(self, worker: StartedProbe) -> None:
        """The session's port by its name, as workers do; if the name does not resolve, which is a
        line of its own, by its address."""
        assert self._start.coordinator is not None
        name = self.answers.names.get(worker.title)
        is_found = name is not None and name.error is None and bool(name.addresses)
        host = self._service if is_found else self._start.coordinator.address
        # The session greets.
        self._connect(worker, "coordinator", host, [SESSION_PORT, HTTP_PORT], silent=[HTTP_PORT])

    def _connect(
        self, one: StartedProbe, to: str, host: str, ports: list[int], silent: Sequence[int] = ()
    ) -> None:
        asked = {"host": host, "ports": ports, "silent": list(silent)}
        answer = self._ask(one, "connect", **asked, seconds=CONNECT_SECONDS)
        if answer is not None:
            self.answers.ports[one.title, to] = port_answers(answer)

    def _coordinators_rights(self, coordinator: StartedProbe) -> None:
        wanted = coordinators_rights(self._run, self._target)
        reviews = []
        for right, name in wanted:
            review = access_review(right, self._target.kube.namespace)
            if name is not None:
                review["spec"]["resourceAttributes"]["name"] = name
            reviews.append(review)
        answer = self._ask(coordinator, "rights", reviews=reviews)
        if answer is None:
            return
        found = parsed(RightsAnswer, answer)
        self.answers.rights_error = found.error
        self.answers.missing_rights = [str(wanted[index][0]) for index in found.missing]

    # Storage

    def _storage(self, workers: list[StartedProbe], coordinator: StartedProbe | None) -> None:
        storage = self._target.storage
        assert storage is not None
        if storage.claim is not None:
            probes = [*workers, *([coordinator] if coordinator is not None else [])]
            if probes:
                self._claim(probes)
        elif coordinator is not None:
            self._bucket(storage.url or "", workers, coordinator)

    def _claim(self, probes: list[StartedProbe]) -> None:
        where = {"root": STORAGE, "folder": claim_folder(self._run)}
        writer, *readers = probes
        self.answers.writer = writer.title
        size = {"megabytes": CLAIM_MEGABYTES, "seconds": WRITE_SECONDS}
        answer = self._ask(writer, "claim-write", **where, **size)
        if answer is None:
            return
        written = self.answers.written = parsed(WriteAnswer, answer)
        if written.problem is None:

            def read(probe: StartedProbe) -> None:
                asked = {"sha256": written.sha256, "seconds": SEEN_SECONDS}
                found = self._ask(probe, "claim-read", **where, **asked)
                if found is not None:
                    self.answers.reads[probe.title] = parsed(ReadAnswer, found)

            def create(probe: StartedProbe) -> None:
                found = self._ask(probe, "claim-create", **where, who=probe.name)
                if found is not None:
                    self.answers.creates[probe.title] = parsed(CreateAnswer, found)

            self._at_once(read, readers)
            self._at_once(create, probes)
        gone = self._ask(writer, "claim-remove", **where)
        self.answers.is_removed = gone is not None and bool(gone["is_gone"])

    def _bucket(self, root: str, workers: list[StartedProbe], coordinator: StartedProbe) -> None:
        where = {"root": root, "folder": claim_folder(self._run)}
        self.answers.writer = coordinator.title
        answer = self._ask(coordinator, "bucket-write", **where, megabytes=BUCKET_MEGABYTES)
        if answer is None:
            return
        written = self.answers.written = parsed(WriteAnswer, answer)
        if written.problem is None:

            def read(worker: StartedProbe) -> None:
                asked = {**where, "sha256": written.sha256}
                found = self._ask(worker, "with-headway", run="bucket-read", content=asked)
                if found is None or found["answer"] is None:
                    why = found["error"] if found is not None else "no answer"
                    self.answers.unread[worker.title] = why
                    return
                self.answers.reads[worker.title] = parsed(ReadAnswer, found["answer"])

            self._at_once(read, workers)
            found = self._ask(coordinator, "bucket-read", **where, sha256=written.sha256)
            if found is not None:
                self.answers.reads[coordinator.title] = parsed(ReadAnswer, found)
            created = self._ask(coordinator, "bucket-create", **where)
            if created is not None:
                self.answers.creates[coordinator.title] = parsed(CreateAnswer, created)
            gone = self._ask(coordinator, "bucket-remove", **where)
            self.answers.is_removed = gone is not None and bool(gone["is_gone"])
        if root.startswith("s3://"):
            region = self._ask(coordinator, "bucket-region", root=root)
            if region is not None:
                self.answers.region = parsed(RegionAnswer, region)


def coordinators_rights(run: str, target: Target) -> list[tuple[Right, str | None]]:
    """Of its account, each with the one object that it is for, if it is for one."""
    return [
        (Right(verb, resource, rule["apiGroups"][0]), name)
        for rule in coordinator_rules(run, target)
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [None])
    ]
