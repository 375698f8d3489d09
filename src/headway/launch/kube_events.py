"""Kubernetes events on the workers' Job, for those who look there: `kubectl describe job`, and
whatever collects events.

They are made of the run's journal by a thread of their own: the keeper never waits for them, and a
failure costs an event. At most one is posted in a second; of several with the same reason that
wait, the newest, with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Event as Flag
from threading import Thread
from typing import Any

from lightkube.resources.batch_v1 import Job

from headway.clock import Clock, seconds_of, stamp
from headway.errors import HeadwayError
from headway.kube.api_errors import ClusterUnreachable, Forbidden
from headway.kube.client import KubeClient
from headway.kube.names import EVENT_SOURCE, Object
from headway.state.rewinds import Record
from headway.state.run_directory import RunDirectory
from headway.state.spent_money import used_budget

LOOK_SECONDS = 5.0
"""Interval between looks at the journal: in a bucket, each costs a request or two."""
PAUSE_SECONDS = 1.0
"""Between two events."""
END_SECONDS = 10.0
"""For those of a run's end, before the keeper's own end."""
MOST_CHARACTERS = 1000
"""Of a message: Kubernetes refuses more than 1,024."""


@dataclass(frozen=True)
class Reason:
    name: str
    words: Callable[[Mapping[str, Any]], str]
    """The message, from a record of the journal."""
    is_warning: bool = False


REASONS = {
    "started": Reason("TrainingStarted", lambda it: _started(it)),
    "lost": Reason("NodeLost", lambda it: f"node {it['node']}: its pod {it['how']}", True),
    "replaced": Reason(
        "NodeReplaced", lambda it: f"node {it['node']}, after {it['seconds']:.0f} s: {it['pod']}"
    ),
    "below_minimum": Reason("BelowMinimum", lambda it: _below_minimum(it), True),
    "gave_back": Reason("GaveBack", lambda it: str(it["shortage"]), True),
    "tries_again": Reason("TriesAgain", lambda it: _tries_again(it)),
    "budget": Reason(
        "BudgetUsedUp", lambda it: f"{used_budget(it)}: the run saves and stops", True
    ),
    "budget_unknown": Reason(
        "BudgetUnknown", lambda it: f"{it['reason']}: the run saves and stops", True
    ),
    "save_failed": Reason("SaveFailed", lambda it: f"step {it['step']}: {it['reason']}", True),
    "finished": Reason("Finished", lambda it: f"all {it['step']} steps are done"),
    "failed": Reason("Failed", lambda it: str(it["message"]), True),
}
"""By event of the journal."""
OF_SCRIPTS = {
    **REASONS,
    "started": Reason("TrainingStarted", lambda it: f"the script runs, workers: {it['workers']}"),
    "finished": Reason("Finished", lambda it: _script_finished(it)),
}
"""The same where the run is a script: it may begin anywhere, and tells its steps or does not."""


def _script_finished(record: Mapping[str, Any]) -> str:
    return f"the script is done{f', at step {step}' if (step := record['step']) else ''}"


def _started(record: Mapping[str, Any]) -> str:
    resumed = record["resumed_from"]
    begin = "from the first step" if resumed is None else f"resumed from step {resumed}"
    return f"{begin}, workers: {record['workers']}"


def _tries_again(record: Mapping[str, Any]) -> str:
    kind = f" with {record['accelerators']}" if "accelerators" in record else ""
    return f"for {record['needed']} nodes{kind}"


def _below_minimum(record: Mapping[str, Any]) -> str:
    return f"{record['nodes']} of at least {record['minimum']} nodes: training waits for the others"


@dataclass(frozen=True)
class RunEvent:
    """One to post."""

    reason: str
    message: str
    is_warning: bool
    time: str
    """As the journal has it."""
    count: int = 1


class EventQueue:
    """Those that wait to be posted: one for each reason."""

    def __init__(self) -> None:
        self._waiting: dict[str, RunEvent] = {}

    def add(self, event: RunEvent) -> None:
        before = self._waiting.get(event.reason)
        count = event.count + (before.count if before else 0)
        self._waiting[event.reason] = replace(event, count=count)

    def put_back(self, event: RunEvent) -> None:
        """One that could not be posted; a newer one with its reason takes its place."""
        newer = self._waiting.get(event.reason)
        self.add(event if newer is None else replace(newer, count=event.count))

    def take(self) -> RunEvent | None:
        """The one that waits longest."""
        for reason in self._waiting:
            return self._waiting.pop(reason)
        return None


def run_event(record: Record, is_script: bool = False) -> RunEvent | None:
    """None: nobody looks for it there."""
    reason = (OF_SCRIPTS if is_script else REASONS).get(record["event"])
    if reason is None or record.get("local_rank", 0) != 0:
        return None  # of a lost node, all workers are noted
    words = reason.words(record)[:MOST_CHARACTERS]
    return RunEvent(reason.name, words, reason.is_warning, record["time"])


class KubeEvents:
    def __init__(
        self,
        kube: KubeClient,
        job: Job,
        directory: RunDirectory,
        clock: Clock,
        say: Callable[[str], None],
        is_script: bool = False,
    ) -> None:
        """`job`: the workers'. What is in the journal already was posted by the keeper before this
        one."""
        assert job.metadata is not None
        self._kube = kube
        self._job: Object = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "namespace": kube.namespace,
            "name": job.metadata.name,
            "uid": job.metadata.uid,
        }
        self._clock = clock
        self._say = say
        self.is_script = is_script
        again = RunDirectory(directory.location)
        self._logs = [again.launcher, again.events]
        self._positions: list[int] | None = None
        """In the logs; None: what is there already was not read past yet."""
        self._queue = EventQueue()
        self._is_refused = False
        self._is_ending = Flag()
        self._thread = Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Posts what is left, within END_SECONDS."""
        self._is_ending.set()
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        while not self._is_refused:
            is_ending = self._is_ending.is_set()
            self.read()
            while not self._is_refused and self.post():
                # Shorter at the end, when there is one of each at most.
                self._is_ending.wait(PAUSE_SECONDS)
            if is_ending:
                return
            self._is_ending.wait(LOOK_SECONDS)

    def read(self) -> None:
        """Takes what is new in the journal. If the store is away: at the next look."""
        with suppress(OSError):
            if self._positions is None:
                self._positions = [log.read()[1] for log in self._logs]
            for index, log in enumerate(self._logs):
                records, self._positions[index] = log.read(self._positions[index])
                self._take(records)

    def _take(self, records: Sequence[Record]) -> None:
        for record in records:
            if (event := run_event(record, self.is_script)) is not None:
                self._queue.add(event)

    def post(self) -> bool:
        """The one that waits longest. False: there is none, or it cannot be posted now."""
        event = self._queue.take()
        if event is None:
            return False
        try:
            self._kube.create(self._manifest(event))
        except ClusterUnreachable:
            self._queue.put_back(event)
            return False
        except Forbidden as error:
            self._is_refused = True
            self._say(f"no events on the Job from now on: {error}")
            return False
        except HeadwayError as error:  # a login that has expired, or something about this one
            self._say(f"an event on the Job is left out ({event.reason}): {error.message}")
        return True

    def _manifest(self, event: RunEvent) -> Object:
        many = f" ({event.count} times)" if event.count > 1 else ""
        name = f"{self._job['name']}.{int(self._clock.now() * 1e9):x}"
        time = stamp(seconds_of(event.time))[:19] + "Z"
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": self._kube.namespace},
            "involvedObject": self._job,
            "type": "Warning" if event.is_warning else "Normal",
            "reason": event.reason,
            "message": f"{event.message}{many}",
            "count": event.count,
            "firstTimestamp": time,
            "lastTimestamp": time,
            "source": {"component": EVENT_SOURCE},
            "reportingComponent": EVENT_SOURCE,
            "reportingInstance": EVENT_SOURCE,
        }
