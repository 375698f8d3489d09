"""The launcher over workers that are a line of shell: who is blamed, and what a stop comes to.

Real training under it is in tests/local.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from headway.clock import Clock, SystemClock
from headway.errors import Exit, RunFailed, StillRunning
from headway.launch import failure_domains
from headway.launch.local_run import STOP_SECONDS, LocalRun
from headway.memory_limits import Memory
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, Resolved, resolve
from headway.spec.run_file import ModelConfig
from headway.state.checkpoints import FoundCheckpoint
from headway.state.log_lines import encoded
from headway.state.run_directory import RunDirectory
from headway.state.status import read_status
from headway.state.trusted_code import is_trusted
from support import shell_fork_server
from support.clock import Hurried

SECOND = "Traceback (most recent call last):\n  File b\nValueError: second\n"
PROGRESS = "2026-11-15T01:37:52.123Z step 3/10  loss 2.0000  1,234 tokens/s"


SHELL_FORK_SERVER = (sys.executable, str(Path(shell_fork_server.__file__)))


@pytest.fixture
def resolved(tmp_path: Path) -> Resolved:
    file = tmp_path / "run.yaml"
    file.write_text("version: 1\nname: it\nmodel: {type: gpt2}\nbatch: {global: 4}\n")
    return resolve(
        load_run(file, ["data.train=prepared", "resources.accelerators=cpu:2", "elastic=restart"]),
        Hardware(cores=2, cuda_devices=0),
        nodes=1,
        parameters=None,
        train_set=tmp_path,
        validation_sets={},
    )


def make_run(
    resolved: Resolved, script: str, clock: Clock | None = None, memory: Memory | None = None
) -> LocalRun:
    clock = clock or SystemClock()
    directory = RunDirectory.create(resolved.run_directory, clock)
    return LocalRun(
        resolved, directory, clock, fork_server=(*SHELL_FORK_SERVER, script), memory=memory
    )


def state_of(run: LocalRun) -> str:
    return read_status(run.directory, 0.0).state


def events(run: LocalRun) -> list[dict[str, Any]]:
    return run.directory.history()


def look() -> None:
    pass


def printed(run: LocalRun, text: str) -> bool:
    logs = run.directory.logs()
    return len(logs) == 2 and all(text in log.read_text() for log in logs)


def test_a_run_that_finishes(resolved: Resolved) -> None:
    run = make_run(resolved, 'echo "$HEADWAY_RANK of $OMP_NUM_THREADS threads in $0"')
    looks = []
    assert run.run(lambda: looks.append(run.directory.is_running())) == Exit.DONE
    assert looks[-1], "held as long as it goes on"
    assert not run.directory.is_running()
    shown = run.directory.log(0, 1).read_text()
    assert shown == f"1 of 1 threads in {resolved.run_directory}\n"
    assert run.directory.read_spec() == resolved
    assert events(run)[0]["event"] == "launched"
    started = [event for event in events(run) if event["event"] == "worker"]
    assert [event["name"] for event in started] == ["node-0.1/0", "node-0.1/1"]


def test_workers_find_the_packages_of_the_run_first(
    resolved: Resolved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    run = make_run(resolved.model_copy(update={"packages": "/site"}), 'echo "$PYTHONPATH $PATH"')
    assert run.run(look) == Exit.DONE
    assert run.directory.log(0, 0).read_text().startswith("/site:/mine /site/bin:")


def test_workers_of_several_nodes_on_one_machine_take_a_device_each(resolved: Resolved) -> None:
    two = resolved.model_copy(update={"nodes": 2})
    run = make_run(two, 'echo "device $HEADWAY_DEVICE"')
    assert run.run(look) == Exit.DONE
    said = [run.directory.log(node, rank).read_text() for node in (0, 1) for rank in (0, 1)]
    assert said == [f"device {number}\n" for number in range(4)]


def test_the_cause_is_reported_even_if_no_log_can_be_written(resolved: Resolved) -> None:
    """As on a full disk."""
    run = make_run(
        resolved,
        f'if [ "$HEADWAY_RANK" = 0 ]; then echo "{PROGRESS}"; '
        'printf "no room for step 3\\nhint: make room" > $WORDS; exit 1; fi; exec sleep 60',
    )
    with pytest.raises(RunFailed) as caught:
        run.run(look)
    assert caught.value.message == "no room for step 3\nworker 0 ended with exit code 1"
    assert caught.value.hint == "make room"
    shown = read_status(run.directory, 0.0)
    assert (shown.failure, shown.failure_hint) == (caught.value.message, "make room")


@pytest.fixture
def small(tmp_path: Path) -> tuple[Memory, Path]:
    """A machine of 2 GiB, and the file in which its kernel counts."""
    for name, content in {
        "proc/self/cgroup": "0::/\n",
        "proc/meminfo": "MemTotal: 2097152 kB\n",
        "sys/fs/cgroup/memory.events": "oom_kill 5\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return Memory(tmp_path), tmp_path / "sys/fs/cgroup/memory.events"


def test_out_of_memory_before_the_first_step_is_not_retried(
    resolved: Resolved, small: tuple[Memory, Path], tmp_path: Path
) -> None:
    memory, counter = small
    script = (
        f'if [ "$HEADWAY_RANK" = 1 ]; then exec sleep 60; fi; echo >> {tmp_path}/starts; '
        f"echo oom_kill 6 > {counter}; kill -KILL $$"
    )
    run = make_run(resolved, script, memory=memory)
    with pytest.raises(RunFailed) as caught:
        run.run(look)
    assert (tmp_path / "starts").read_text().count("\n") == 1
    assert caught.value.message == (
        "out of memory before the first step: weights, gradients and optimizer state of all 2 "
        "workers need at least 2.9 GiB; 2.0 GiB is available\n"
        "worker 0 was killed by the kernel: out of memory"
    )
    shown = read_status(run.directory, 0.0)
    assert (shown.failure, shown.failure_hint) == (caught.value.message, caught.value.hint)


@pytest.mark.parametrize("before", [[{"step": 60, "generation": 1}], []])
@pytest.mark.parametrize("steps", [1, 0])
def test_the_first_step_is_that_of_this_start(
    resolved: Resolved, small: tuple[Memory, Path], tmp_path: Path, steps: int, before: list[Any]
) -> None:
    """Stopped at step 60 with a checkpoint of step 40, a run resumes from 40. The log on a new
    machine is empty."""
    memory, counter = small
    script = (
        f'if [ "$HEADWAY_RANK" = 1 ]; then exec sleep 60; fi; echo >> {tmp_path}/starts; '
        f'test "$(wc -l < {tmp_path}/starts)" -gt 1 && exit 0; '
        'echo "{\\"rewind\\":40,\\"generation\\":2}" >> "$0/metrics.jsonl"; '
        f"test {steps} = 1 && cat {tmp_path}/line >> $0/metrics.jsonl; "
        f"echo oom_kill 6 > {counter}; kill -KILL $$"
    )
    (tmp_path / "line").write_bytes(encoded({"step": 41, "generation": 2}))
    run = make_run(resolved, script, Hurried(), memory=memory)
    run.directory.metrics.append(*before)
    if steps:
        assert run.run(look) == Exit.DONE
        assert sum(event["event"] == "lost" for event in events(run)) == 1
    else:
        with pytest.raises(RunFailed, match="out of memory before the first step"):
            run.run(look)


def test_killed_by_hand_it_restarts(resolved: Resolved, small: tuple[Memory, Path]) -> None:
    run = make_run(resolved, "kill -KILL $$", memory=small[0])
    with pytest.raises(
        RunFailed, match="was killed by SIGKILL, 3 times in a row without a new step"
    ):
        run.run(look)


def test_the_worker_to_blame_is_not_one_that_lost_a_peer(resolved: Resolved) -> None:
    """The follower ends first; the culprit is still writing its last words."""
    script = (
        'if [ "$HEADWAY_RANK" = 0 ]; then exit 7; fi; '
        "sleep 0.3; echo 'Traceback (most recent call last):'; echo 'ValueError: mine'; exit 1"
    )
    run = make_run(resolved, script)
    with pytest.raises(RunFailed) as caught:
        run.run(look)
    assert "ValueError: mine\nworker 1 ended with exit code 1" in caught.value.message
    assert "node-0.rank-1.log" in str(caught.value.hint)
    assert (events(run)[-1]["event"], events(run)[-1]["local_rank"]) == ("failed", 1)
    assert state_of(run) == "failed"


def test_a_failed_worker_takes_the_others_with_it(resolved: Resolved) -> None:
    run = make_run(resolved, 'if [ "$HEADWAY_RANK" = 0 ]; then exit 1; fi; exec sleep 60')
    with pytest.raises(RunFailed, match="worker 0 ended with exit code 1 and left no message"):
        run.run(look)
    assert all(domain.has_exited for domain in run.workers.domains)


def test_an_old_traceback_is_not_shown_for_a_new_exit(resolved: Resolved) -> None:
    run = make_run(resolved, f"printf '{SECOND}'; exit 1".replace("\n", "\\n"))
    with pytest.raises(RunFailed, match="ValueError: second"):
        run.run(look)
    again = make_run(resolved, "kill -KILL $$")
    with pytest.raises(RunFailed) as caught:
        again.run(look)
    assert caught.value.message.startswith("worker")
    assert "was killed by SIGKILL" in caught.value.message
    assert "3 times in a row without a new step" in caught.value.message
    # Of the first to fail; the other may have been ended before it could say anything.
    logs = [log.read_text() for log in run.directory.logs()]
    assert any("ValueError: second" in log for log in logs), "the log itself goes on"


def test_lost_workers_restart_together(resolved: Resolved, tmp_path: Path) -> None:
    """One is killed, the other waits for it for ever; the second time all is well."""
    script = (
        f'mark={tmp_path}/started-"$HEADWAY_RANK"; test -e "$mark" && exit 0; touch "$mark"; '
        f'if [ "$HEADWAY_RANK" = 1 ]; then exec sleep 60; fi; '
        f"while ! test -e {tmp_path}/started-1; do sleep 0.01; done; kill -KILL $$"
    )
    run = make_run(resolved, script)
    assert run.run(look) == Exit.DONE
    assert [domain.starts for domain in run.workers.domains] == [2]
    (lost,) = [event for event in events(run) if event["event"] == "lost"]
    assert (lost["node"], lost["local_rank"]) == (0, 0)


def test_losses_with_progress_between_them_are_not_a_failure(
    resolved: Resolved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time the leader dies just after it has written from where steps are done again: another
    checkpoint than the last time."""

    def saved(_: object) -> list[FoundCheckpoint]:
        count = len((tmp_path / "starts").read_text())
        return [FoundCheckpoint(10 * count, count)]

    monkeypatch.setattr(failure_domains, "saved_checkpoints", saved)
    run = make_run(
        resolved,
        f'if [ "$HEADWAY_RANK" = 1 ]; then exec sleep 60; fi; echo >> {tmp_path}/starts; '
        f"n=$(wc -l < {tmp_path}/starts); "
        'test "$n" -gt 4 && exit 0; '
        'echo "$((n * 10)) $((n * 10))" > "$HEADWAY_STEPS"; '
        "kill -KILL $$",
        Hurried(),
    )
    assert run.run(look) == Exit.DONE
    assert sum(event["event"] == "lost" for event in events(run)) == 4


def test_losses_one_step_later_each_time_are_a_failure_if_nothing_is_saved(
    resolved: Resolved, tmp_path: Path
) -> None:
    run = make_run(
        resolved,
        f'if [ "$HEADWAY_RANK" = 1 ]; then exec sleep 60; fi; echo >> {tmp_path}/starts; '
        f"n=$(wc -l < {tmp_path}/starts); "
        'test "$n" -gt 4 && exit 0; '
        'echo "100 $((n + 140))" > "$HEADWAY_STEPS"; '
        "kill -KILL $$",
        Hurried(),
    )
    with pytest.raises(RunFailed, match="3 times in a row without a new"):
        run.run(look)


def test_asked_to_stop_workers_save_and_stop(resolved: Resolved) -> None:
    run = make_run(resolved, "trap 'exit 6' INT; echo ready; while :; do sleep 0.02; done")

    def stop_when_ready() -> None:
        if run.stop_asked_at is None and printed(run, "ready"):
            run.ask_to_stop()

    assert run.run(stop_when_ready) == Exit.STOPPED


def test_a_stop_before_the_workers_listen_is_not_a_failure(resolved: Resolved) -> None:
    """Ctrl-C in the first moments: the signal ends a worker that has not set its handler yet."""
    script = (
        'if [ "$HEADWAY_RANK" = 0 ]; then exec sleep 60; fi; '
        "trap '' INT; echo ready; while :; do sleep 0.02; done"
    )
    # Hurried: the other one has to be killed, after a wait of seconds.
    run = make_run(resolved, script, Hurried())

    def stop_when_ready() -> None:
        if run.stop_asked_at is None and "ready" in run.directory.log(0, 1).read_text():
            run.ask_to_stop()

    assert run.run(stop_when_ready) == Exit.STOPPED
    assert state_of(run) == "stopped"
    assert all(domain.has_exited for domain in run.workers.domains)


def test_asked_to_stop_before_the_workers_have_started(resolved: Resolved) -> None:
    run = make_run(resolved, "exec sleep 60")
    run.ask_to_stop()
    assert run.run(look) == Exit.STOPPED
    assert state_of(run) == "stopped"


def test_asked_twice_it_stops_at_once(resolved: Resolved) -> None:
    run = make_run(resolved, "trap '' INT; echo ready; while :; do sleep 0.02; done")

    def stop_twice() -> None:
        if printed(run, "ready"):
            run.ask_to_stop()

    assert run.run(stop_twice) == Exit.STOPPED
    assert state_of(run) == "stopped"


def test_killed_while_it_saves_is_a_failure(resolved: Resolved) -> None:
    run = make_run(resolved, "trap 'kill -KILL $$' INT; echo ready; while :; do sleep 0.02; done")

    def stop_when_ready() -> None:
        if run.stop_asked_at is None and printed(run, "ready"):
            run.ask_to_stop()

    with pytest.raises(RunFailed, match="was killed by SIGKILL"):
        run.run(stop_when_ready)
    assert state_of(run) == "failed"


def test_workers_that_never_stop_are_ended(resolved: Resolved) -> None:
    script = "trap '' INT; echo ready; while :; do sleep 0.02; done"
    run = make_run(resolved, script, Hurried())

    def stop_when_ready() -> None:
        if run.stop_asked_at is None and printed(run, "ready"):
            run.ask_to_stop()
            assert run.stop_asked_at is not None
            run.stop_asked_at -= STOP_SECONDS

    with pytest.raises(RunFailed, match="did not save and stop within 300 s"):
        run.run(stop_when_ready)
    assert state_of(run) == "failed"
    assert all(domain.has_exited for domain in run.workers.domains)


@pytest.mark.parametrize(("wanted", "left"), [(1, 1), (5, None), (None, None)])
def test_what_scale_asked_for_is_kept_until_a_start_takes_another_number(
    resolved: Resolved, wanted: int | None, left: int | None
) -> None:
    assert resolved.nodes == 1
    run = make_run(resolved, "exit 0")
    if wanted is not None:
        run.directory.want_nodes(wanted)
    assert run.run(look) == Exit.DONE
    assert run.directory.wanted_nodes() == left


def test_a_run_cannot_be_resumed_twice_at_once(resolved: Resolved) -> None:
    first = make_run(resolved, "echo")
    second = make_run(resolved, "echo")
    with first.directory.held(), pytest.raises(StillRunning):
        second.run(look)
    assert events(second) == []


def test_a_worker_whose_generation_is_over_is_restarted_and_not_counted(
    resolved: Resolved, tmp_path: Path
) -> None:
    """However often: the members of the run have changed."""
    script = f"echo >> {tmp_path}/starts; [ $(wc -l < {tmp_path}/starts) -gt 12 ] || exit 8"
    run = make_run(resolved.model_copy(update={"nodes": 2}), script)
    assert run.run(look) == Exit.DONE
    assert not [event for event in events(run) if event["event"] == "lost"]


def test_generations_that_always_end_before_a_step_end_the_run(resolved: Resolved) -> None:
    """Nobody is lost here; the coordinator says why."""
    words = "printf 'restarting: node-1.1/0 is lost: no heartbeat' > $WORDS"
    run = make_run(resolved, f"{words}; exit 8", Hurried())
    with pytest.raises(RunFailed, match=r"no heartbeat\nworker . ended .* times in a row without"):
        run.run(look)


def stop_when_ready(run: LocalRun) -> None:
    if run.stop_asked_at is None and printed(run, "ready"):
        run.ask_to_stop()


def test_a_stop_in_the_moment_of_a_planned_change_is_a_stop(resolved: Resolved) -> None:
    """All have saved and exited, and their successors are not started yet."""
    run = make_run(resolved, "trap 'exit 8' INT; echo ready; while :; do sleep 0.02; done")
    assert run.run(lambda: stop_when_ready(run)) == Exit.STOPPED


@pytest.mark.parametrize(
    "newcomer", ["exec sleep 60", "trap 'exit 8' INT; while :; do sleep 0.02; done"]
)
def test_members_save_although_a_newcomer_has_stopped(resolved: Resolved, newcomer: str) -> None:
    """The signal may end it before it listens."""
    two = resolved.model_copy(update={"nodes": 2, "ranks_per_node": 1})
    script = (
        f'if [ "$HEADWAY_RANK" = 1 ]; then echo ready; {newcomer}; fi; '
        "trap 'sleep 0.5; echo saved; exit 6' INT; echo ready; while :; do sleep 0.02; done"
    )
    run = make_run(two, script, Hurried())
    assert run.run(lambda: stop_when_ready(run)) == Exit.STOPPED
    assert "saved" in run.directory.log(0, 0).read_text()
    assert not [event for event in events(run) if event["event"] == "stopped"]


def test_the_first_lost_rank_is_blamed_not_those_killed_after_it(resolved: Resolved) -> None:
    script = (
        'if [ "$HEADWAY_RANK" = 0 ]; then exec sleep 60; fi; '
        "printf 'assertion in the kernel' > $WORDS; kill -ABRT $$"
    )
    run = make_run(resolved, script)
    with pytest.raises(RunFailed, match="assertion in the kernel\nworker 1 was killed by SIGABRT"):
        run.run(look)
    assert {event["local_rank"] for event in events(run) if event["event"] == "lost"} == {1}


def test_a_rank_killed_after_the_end_of_its_generation_is_no_loss(
    resolved: Resolved, tmp_path: Path
) -> None:
    """It was suspended, or closes its tracker slowly."""
    script = (
        f"mine={tmp_path}/started-$HEADWAY_RANK; [ -e $mine ] && exit 0; touch $mine; "
        'if [ "$HEADWAY_RANK" = 0 ]; then exit 8; fi; exec sleep 60'
    )
    run = make_run(resolved, script, Hurried())
    assert run.run(look) == Exit.DONE
    assert not [event for event in events(run) if event["event"] == "lost"]


def test_workers_that_die_of_the_same_loss_count_once(resolved: Resolved, tmp_path: Path) -> None:
    """As by torch's own watchdog, a moment later."""
    two = resolved.model_copy(update={"nodes": 2, "ranks_per_node": 1})
    script = (
        f"mine={tmp_path}/started-$HEADWAY_RANK; "
        "if [ -e $mine ]; then exec sleep $((2 - HEADWAY_RANK)); fi; touch $mine; "
        'if [ "$HEADWAY_RANK" = 0 ]; then kill -KILL $$; fi; sleep 0.5; kill -ABRT $$'
    )
    # Node 0 would end the run when it exits with 0, so it outlasts node 1.
    run = make_run(two, script)
    assert run.run(look) == Exit.DONE
    assert [event["node"] for event in events(run) if event["event"] == "lost"] == [0]
    assert len([event for event in events(run) if event["event"] == "worker"]) == 4


@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [
        ("cuda", {}, "expandable_segments:True"),
        ("cpu", {}, ""),
        ("cuda", {"PYTORCH_ALLOC_CONF": "mine"}, "mine"),
        ("cuda", {"PYTORCH_CUDA_ALLOC_CONF": "mine"}, ""),
    ],
)
def test_segments_of_device_memory_expand_unless_the_user_has_said_how(
    resolved: Resolved,
    device: str,
    given: dict[str, str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    script = f'test "$PYTORCH_ALLOC_CONF" = "{expected}"'
    run = make_run(resolved.model_copy(update={"device": device}), script)
    assert run.run(lambda: None) is Exit.DONE


def test_workers_get_the_run_from_their_launcher_and_not_from_the_storage(
    resolved: Resolved,
) -> None:
    """Whoever can write to the storage must not decide what a restarted worker runs."""
    planted = f'echo "{{}}" > {resolved.run_directory}/spec.json'
    run = make_run(resolved, f'{planted}; cat "$HEADWAY_SPEC"')
    assert run.run(look) == Exit.DONE
    given = run.directory.log(0, 1).read_text()
    assert Resolved.model_validate_json(given) == resolved


def test_a_start_keeps_what_later_commands_may_run(
    resolved: Resolved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    own = ModelConfig(call="mine:build")
    resolved = resolved.model_copy(update={"run": resolved.run.model_copy(update={"model": own})})
    assert not is_trusted(resolved)
    assert make_run(resolved, "exit 0").run(look) == Exit.DONE
    assert is_trusted(resolved)
