"""One node in its pod, over workers that are a line of shell: when it stays, and how it ends."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from headway.clock import Clock, SystemClock
from headway.errors import Exit, RunFailed
from headway.kube.worker_job import OWN_ERRORS
from headway.launch.node_run import NodeRun, NodeSettings
from headway.launch.worker_exit import failed_facts
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, Resolved, resolve
from headway.state.run_directory import RunDirectory
from headway.state.store import Store
from support import shell_fork_server
from support.chains import LAUNCH
from support.clock import Hurried

SHELL_FORK_SERVER = (sys.executable, str(Path(shell_fork_server.__file__)))


@pytest.fixture
def resolved(tmp_path: Path) -> Resolved:
    file = tmp_path / "run.yaml"
    file.write_text("version: 1\nname: it\nmodel: {type: gpt2}\nbatch: {global: 4}\n")
    return resolve(
        load_run(file, ["data.train=prepared", "elastic=live"]),
        Hardware(cores=2, cuda_devices=0),
        nodes=3,
        parameters=None,
        train_set=tmp_path,
        validation_sets={},
    )


class Node:
    """And what its pod prints."""

    def __init__(self, resolved: Resolved, script: str, clock: Clock | None = None) -> None:
        self._resolved, self._script, self._clock = resolved, script, clock or SystemClock()
        self._directory = RunDirectory.create(resolved.run_directory, self._clock)
        self.lines: list[str] = []
        self.act: Callable[[str], None] = lambda line: None
        self.run = self.again()

    def again(self) -> NodeRun:
        """Another one of the same directory."""
        settings = NodeSettings(
            "it-2-x7k2p", 2, LAUNCH, "headway-it.ml.svc:7460", Path("/headway/key/key")
        )
        return NodeRun(
            self._resolved,
            self._directory,
            settings,
            self._clock,
            self._hear,
            fork_server=(*SHELL_FORK_SERVER, self._script),
        )

    def _hear(self, line: str) -> None:
        self.lines.append(line)
        self.act(line)


def test_its_place_and_what_it_prints(resolved: Resolved) -> None:
    variables = (
        "HEADWAY_LAUNCH HEADWAY_RANK HEADWAY_POD HEADWAY_COORDINATOR HEADWAY_KEY HEADWAY_RUN"
    )
    script = f'for name in {variables}; do eval "echo \\$$name"; done'
    node = Node(resolved, script)
    assert node.run.run() == Exit.DONE
    expected = [LAUNCH, "2", "it-2-x7k2p.1/0", "headway-it.ml.svc:7460", "/headway/key/key", "it"]
    assert node.lines == expected
    assert node.run.directory.log(2, 0).read_text().splitlines() == expected


def test_only_what_this_pod_printed(resolved: Resolved) -> None:
    """The log of the node goes on where the pod before has ended."""
    assert Node(resolved, "echo of before").run.run() == Exit.DONE
    node = Node(resolved, "echo now")
    assert node.run.run() == Exit.DONE
    assert node.lines == ["now"]


def test_a_killed_worker_restarts_and_the_pod_stays(resolved: Resolved) -> None:
    script = 'echo "$HEADWAY_POD"; case "$HEADWAY_POD" in *.1/0) kill -KILL $$;; esac'
    node = Node(resolved, script)
    assert node.run.run() == Exit.DONE
    first, said, second = node.lines
    assert (first, second) == ("it-2-x7k2p.1/0", "it-2-x7k2p.2/0")
    assert said.startswith("worker it-2-x7k2p.1/0 was killed by SIGKILL")


def test_a_pod_whose_device_fails_ends_so_that_another_takes_its_place(resolved: Resolved) -> None:
    """With an exit code for which the Job does not fail."""
    node = Node(resolved, "exit 9")
    with pytest.raises(RunFailed, match="device 0 has failed") as caught:
        node.run.run()
    assert caught.value.exit_code == Exit.DEVICE_LOST
    assert caught.value.exit_code not in OWN_ERRORS["worker"]
    (failed,) = [one for one in node.run.directory.history() if one["event"] == "device_failed"]
    assert (failed["node"], failed["local_rank"], failed["device_number"]) == (2, 0, 0)


def test_asked_to_leave_it_leaves(resolved: Resolved) -> None:
    """As Kubernetes asks it, before a machine is taken away."""
    node = Node(resolved, "trap 'echo left; exit 6' TERM; echo here; while :; do sleep 0.02; done")
    node.act = lambda line: node.run.leave() if line == "here" else None
    assert node.run.run() == Exit.STOPPED
    assert node.lines == ["here", "left"]


def test_asked_to_leave_before_its_workers_have_started(resolved: Resolved) -> None:
    node = Node(resolved, "exec sleep 60")
    node.run.leave()
    assert node.run.run() == Exit.STOPPED


def test_a_worker_killed_while_leaving_is_not_replaced(resolved: Resolved) -> None:
    node = Node(resolved, "trap 'kill -KILL $$' TERM; echo here; while :; do sleep 0.02; done")
    node.act = lambda line: node.run.leave() if line == "here" else None
    assert node.run.run() == Exit.STOPPED
    assert node.lines == ["here"]


def test_an_error_of_its_own_ends_the_run(resolved: Resolved) -> None:
    script = "echo 'Traceback (most recent call last):'; echo 'KeyError: mine'; exit 1"
    node = Node(resolved, script)
    with pytest.raises(RunFailed) as caught:
        node.run.run()
    assert "KeyError: mine\nworker it-2-x7k2p.1/0 ended with exit code 1" in caught.value.message
    assert node.lines[-1] == "KeyError: mine"
    facts = failed_facts(2, caught.value.message, "the Job failed", ranks_per_node=1)
    assert (facts["rank"], facts["how"]) == (2, "ended with exit code 1")
    assert facts["words"].endswith("KeyError: mine")


class EachStart(SystemClock):
    """Each start of the worker takes so long, however slow the machine is."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.run: NodeRun | None = None

    def monotonic(self) -> float:
        domains = [] if self.run is None else self.run.workers.domains
        return self.seconds * sum(domain.starts for domain in domains)


def test_lost_repeatedly_it_gives_up_after_minutes(resolved: Resolved) -> None:
    node = Node(resolved, "sleep 0.3; kill -KILL $$", Hurried())
    with pytest.raises(RunFailed, match=r"SIGKILL.* times in a row without a new step"):
        node.run.run()
    assert 2 <= len(node.lines) <= 12


@pytest.fixture
def restarting(resolved: Resolved) -> Resolved:
    run = resolved.run.model_copy(update={"elastic": "restart"})
    return resolved.model_copy(update={"run": run})


FIFTEEN_STARTS = 'n=${HEADWAY_POD#*.}; n=${n%%/*}; test "$n" -ge 15 && exit 0; '


def test_steps_that_never_reached_the_store_are_steps(restarting: Resolved) -> None:
    """Generations of less than a minute: the logs in a bucket do not show that they took steps."""
    script = f'{FIFTEEN_STARTS} echo "20 $((20 + n))" > "$HEADWAY_STEPS"; exit 8'
    node = Node(restarting, script, clock := EachStart(20.0))
    clock.run = node.run
    assert node.run.run() == Exit.DONE
    assert node.run.directory.metrics.last() is None


class AwayStore(Store):
    """It cannot be listed until some time has passed."""

    def __init__(self, root: str, clock: Clock, seconds: float) -> None:
        super().__init__(root)
        self._clock, self._back_at = clock, clock.monotonic() + seconds

    def children(self, folder: str) -> list[str]:
        if self._clock.monotonic() < self._back_at:
            raise OSError("503 Slow Down")
        return super().children(folder)


@pytest.mark.parametrize("exit_code", [7, 8])
def test_starts_that_fail_while_the_store_is_away_are_not_held_against_the_run(
    restarting: Resolved, exit_code: int
) -> None:
    """Far more than ten, over more than two minutes of an outage."""
    node = Node(restarting, f"{FIFTEEN_STARTS} exit {exit_code}", clock := EachStart(15.0))
    clock.run = node.run
    node.run.directory.store = AwayStore(restarting.run_directory, clock, 300.0)
    assert node.run.run() == Exit.DONE


@pytest.mark.parametrize(
    "exit_code", [7, pytest.param(8, marks=pytest.mark.long("the same for another exit code"))]
)
def test_a_store_that_stays_away_ends_the_run(restarting: Resolved, exit_code: int) -> None:
    script = f"printf 'the store cannot be reached' > $WORDS; sleep 0.3; exit {exit_code}"
    node = Node(restarting, script, clock := Hurried())
    node.run.directory.store = AwayStore(restarting.run_directory, clock, 1e9)
    expected = "cannot be reached\n.*times in a row while the run's storage could not be reached"
    with pytest.raises(RunFailed, match=expected):
        node.run.run()


class SilentStore(Store):
    """Far away, and gives no answer before it is told to."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.is_local = False
        self.may_answer = Event()

    def children(self, folder: str) -> list[str]:
        assert self.may_answer.wait(20), "nobody went on without an answer"
        return []

    def size(self, name: str) -> int | None:
        return None

    def write(self, name: str, content: bytes) -> None:
        pass


def test_successors_do_not_wait_for_the_store(restarting: Resolved) -> None:
    """Or their pod has no session for so long that it is taken for lost."""
    script = 'echo "$HEADWAY_POD"; case "$HEADWAY_POD" in *.1/0) kill -KILL $$;; esac; sleep 0.3'
    node = Node(restarting, script)
    silent = node.run.directory.store = SilentStore(restarting.run_directory)
    node.run = node.again()
    node.act = lambda line: silent.may_answer.set() if line == "it-2-x7k2p.2/0" else None
    assert node.run.run() == Exit.DONE
    assert silent.may_answer.is_set()


def test_losses_are_counted_when_the_store_answers_and_blame_the_one_that_was_lost(
    restarting: Resolved,
) -> None:
    """Not its successors, which write into the same log."""
    script = 'echo "words of $HEADWAY_POD"; sleep 0.5; kill -KILL $$'
    node = Node(restarting, script, Hurried())
    silent = node.run.directory.store = SilentStore(restarting.run_directory)
    silent.may_answer.set()
    node.run = node.again()
    with pytest.raises(RunFailed) as caught:
        node.run.run()
    said = re.fullmatch(r"words of (\S+)\nworker (\S+) was killed .*", caught.value.message)
    assert said is not None, caught.value.message
    assert said[1] == said[2]


def test_ranks_of_a_node_are_told_apart(resolved: Resolved) -> None:
    two = resolved.model_copy(update={"ranks_per_node": 2})
    node = Node(two, 'echo "rank $HEADWAY_RANK, device $HEADWAY_DEVICE"')
    assert node.run.run() == Exit.DONE
    assert sorted(node.lines) == [
        "node-2.rank-0: rank 4, device 0",
        "node-2.rank-1: rank 5, device 1",
    ]


def test_a_worker_that_hangs_after_the_end_is_killed(resolved: Resolved) -> None:
    two = resolved.model_copy(update={"ranks_per_node": 2})
    script = 'if [ "$HEADWAY_RANK" = 4 ]; then sleep 0.2; exit 0; fi; trap "" INT; exec sleep 60'
    node = Node(two, script, Hurried())
    assert node.run.run() == Exit.DONE
    codes = node.run.workers.exit_codes
    assert sorted(code for code in codes if code is not None) == [-signal.SIGKILL, 0]
