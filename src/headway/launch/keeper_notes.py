"""What the keeper of a run says, and notes in the run's journal. An event is noted once, whoever
sees it: `status`, the metrics and the Kubernetes events are made of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

from headway.clock import Clock, stamp
from headway.errors import HeadwayError
from headway.kube.api_errors import ClusterUnreachable
from headway.launch.worker_exit import failed_facts
from headway.spec.price_config import dollars
from headway.spec.resolve import Resolved
from headway.state.chain import Chain
from headway.state.heartbeat import wait_until_alone
from headway.state.run_directory import Journal, RunDirectory

LAUNCHED_SECONDS, LAUNCHED_PAUSE_SECONDS = 60.0, 2.0
"""For the store to take that the run was launched, and between two attempts."""
RECORD_SECONDS = 5.0
"""Longest wait for a store that does not answer, at a look that has to record something."""


def token_of(launch: str) -> str:
    """Return the token with which a launch writes to the run's chain: the id of the Job, which the
    pods know as well."""
    return launch.partition(" ")[0]


class KeeperNotes:
    def __init__(
        self,
        directory: RunDirectory,
        resolved: Resolved,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self.directory = directory
        self.resolved = resolved
        self.say = say
        self._clock = clock
        self.journal = Journal(directory.launcher, clock)
        self._away = ""
        """Why the API server did not answer, once that was said."""
        self._money_problem = ""
        """Of this launch, once it was noted."""
        self._recording: Future[None] | None = None
        """A flush for it that has not returned."""

    def note(self, event: str, **facts: Any) -> None:
        self.journal.note(event, **facts)

    def launched(self, launch: str, cluster: str) -> int:
        """Returns the number of its first generation."""
        resolved, self._money_problem = self.resolved, ""
        token = token_of(launch)
        wait_until_alone(self.directory, self._clock, token, self.say)
        now = stamp(self._clock.now())
        generation = Chain(self.directory, token).start(now).begun + 1
        self.journal.generation = generation
        self.note(
            "launched",
            launch=launch,
            generation=generation,
            nodes=resolved.nodes,
            workers=resolved.num_workers,
            device=resolved.device,
            mode=resolved.mode,
            cluster=cluster,
        )
        self._send_launched()
        return generation

    def _send_launched(self) -> None:
        """Before workers begin: a script whose first worker does not read of this launch takes the
        end of the one before for its own."""
        deadline, said = self._clock.monotonic() + LAUNCHED_SECONDS, False
        while True:
            try:
                return self.directory.launcher.flush()
            except OSError as error:
                if self._clock.monotonic() + LAUNCHED_PAUSE_SECONDS > deadline:
                    return self.say(f"the launch is not in the store yet: {error}")
                if not said:
                    said = True
                    self.say(f"the launch is to be in the store before workers begin: {error}")
            self._clock.sleep(LAUNCHED_PAUSE_SECONDS)

    def lost(self, node: int, pod: str, how: str) -> None:
        for local_rank in range(self.resolved.ranks_per_node):
            self.note("lost", node=node, local_rank=local_rank, how=f"{how} ({pod})")

    def budget(self, spent_seconds: float | None, spent_usd: float | None) -> None:
        """Either is used up."""
        budget = self.resolved.run.budget
        if spent_usd is not None:
            assert budget.usd is not None
            used = f"{dollars(budget.usd)} is used up ({dollars(spent_usd)})"
            self.note("budget", usd=budget.usd, spent_usd=round(spent_usd, 4))
        else:
            assert spent_seconds is not None
            used = f"{budget.hours:g} hours is used up"
            self.note("budget", hours=budget.hours, spent_hours=round(spent_seconds / 3600, 3))
        self.say(f"the budget of {used}: the run saves and stops")

    def money_problem(self, reason: str, hint: str) -> None:
        """A budget that cannot be kept. Raises OSError as long as it cannot be recorded, also while
        the store does not answer."""
        usd = self.resolved.run.budget.usd
        assert usd is not None
        if reason != self._money_problem:
            self._money_problem = reason
            self.note("budget_unknown", usd=usd, reason=reason, hint=hint)
            self.say(
                f"the budget of {dollars(usd)} cannot be kept: {reason}. The run stops: {hint}"
            )
        recording = self._recording or _in_thread(self.directory.launcher.flush)
        wait([recording], RECORD_SECONDS)
        self._recording = None if recording.done() else recording
        if self._recording is not None:
            raise TimeoutError("the run's storage does not answer")
        recording.result()

    def failed(self, node: int, last_words: str | None, why: str) -> None:
        """Once: a keeper before this one, or a worker, may have noted it."""
        events = self.directory.history()
        if not any(event["event"] == "failed" for event in events[-3:]):
            self.note("failed", **failed_facts(node, last_words, why, self.resolved.ranks_per_node))
            self.flush()  # before the run is stopped: whoever sees that looks here for the reason

    def away(self, error: ClusterUnreachable) -> None:
        """Said once, until the API server is `back`."""
        if error.message != self._away:
            self._away = error.message
            self.say(f"{self._away}; training continues unless a worker is lost")

    def back(self) -> None:
        self._away = ""

    @contextmanager
    def saying_what_fails(self) -> Iterator[None]:
        try:
            yield
        except (HeadwayError, OSError) as error:  # also of the run's storage
            self.say(str(error))  # decided again at the next look

    def flush(self) -> None:
        with suppress(OSError):
            self.directory.launcher.flush()


def _in_thread(call: Callable[[], None]) -> Future[None]:
    """The call in a thread that does not keep the process from ending: it may hang for ever."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - raised by whoever asks for the result
            future.set_exception(error)
        else:
            future.set_result(None)

    Thread(target=run, name="record", daemon=True).start()
    return future
