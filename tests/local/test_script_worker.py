"""Script workers with a real coordinator: what the command is given, and each way it can end."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from headway.errors import Exit
from headway.state.status import read_status
from support.script_run import ScriptRun

LATE = pytest.mark.long("half a minute together; the gate has each loss and each stop by itself")
pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

VARIABLES = """
import json
keys = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
        "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
note(f"variables-{restarts}-{rank}", json.dumps({key: os.environ[key] for key in keys}))
"""


def test_each_rank_has_torchruns_variables_and_ranks_are_numbered_anew_after_a_loss(
    tmp_path: Path,
) -> None:
    script = VARIABLES + "until((out / 'end').exists)\n"
    with ScriptRun(tmp_path, script, nodes=3, ranks=2) as run:
        run.wait_for(*(f"variables-0-{rank}" for rank in range(6)))
        found = [json.loads(run.read(f"variables-0-{rank}")) for rank in range(6)]
        assert [one["LOCAL_RANK"] for one in found] == ["0", "1"] * 3
        assert [one["GROUP_RANK"] for one in found] == ["0", "0", "1", "1", "2", "2"]
        assert {(one["WORLD_SIZE"], one["LOCAL_WORLD_SIZE"]) for one in found} == {("6", "2")}
        assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in found}) == 1
        run.signal(signal.SIGKILL, 0)
        for node in (1, 2):
            for rank in range(2):
                run.wait("an end", lambda n=node, r=rank: run.workers[n, r].code is not None)
                assert run.workers[node, rank].code == Exit.GENERATION_OVER
            run.start(node)
        run.wait_for(*(f"variables-1-{rank}" for rank in range(4)))
        again = [json.loads(run.read(f"variables-1-{rank}")) for rank in range(4)]
        assert {one["WORLD_SIZE"] for one in again} == {"4"}
        assert again[0]["MASTER_PORT"] != found[0]["MASTER_PORT"]
        del run.workers[0, 0], run.workers[0, 1]
        (run.output / "end").touch()
        assert run.codes() == [Exit.DONE] * 4
        assert [one["workers"] for one in run.events("started")] == [6, 4]
        assert len(run.events("finished")) == 1


def test_a_mistake_in_the_script_fails_the_run_with_its_traceback_and_once(tmp_path: Path) -> None:
    with ScriptRun(tmp_path, "import no_such_module\n", nodes=2) as run:
        first = run.wait(
            "an exit", lambda: [one for one in run.workers.values() if one.code is not None]
        )
        run.wait("the others", lambda: run.poll() or all(w.code for w in run.workers.values()))
        assert sorted(run.codes()) == [Exit.RUN_FAILED, Exit.GENERATION_OVER]
        assert first[0].code == Exit.RUN_FAILED
        assert "No module named 'no_such_module'" in first[0].words.splitlines()[-1]
        assert "Traceback" in first[0].words


def test_the_rank_that_failed_by_itself_is_blamed_and_not_those_that_lost_it(
    tmp_path: Path,
) -> None:
    script = """
if (out / "once").exists():
    sys.exit()
note(f"runs-{rank}")
until((out / "fail").exists)
if rank == "2":
    note("once")
    raise ValueError("a bad sample")
until((out / "once").exists)
raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1")
"""
    with ScriptRun(tmp_path, script, nodes=3) as run:
        run.wait_for("runs-0", "runs-1", "runs-2")
        (run.output / "fail").touch()
        lost = run.wait("an exit", lambda: [w for w in run.workers.values() if w.code is not None])
        assert "a bad sample" in lost[0].words
        assert lost[0].code in (Exit.PEER_LOST, Exit.RUN_FAILED)
        assert lost[0].node == 2


def test_a_failure_of_a_later_start_is_a_loss_and_counted_once(tmp_path: Path) -> None:
    script = """
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
note(f"runs-{restarts}-{rank}")
until((out / f"end-{restarts}").exists)
if restarts == 1:
    raise ValueError("ECC")
"""
    with ScriptRun(tmp_path, script, nodes=2) as run:
        run.wait_for("runs-0-0", "runs-0-1")
        run.signal(signal.SIGKILL, 1)
        (run.output / "end-1").touch()
        (run.output / "end-2").touch()
        assert run.finish() == [Exit.DONE] * 2
        assert sorted(run.losses) == [-signal.SIGKILL, Exit.PEER_LOST]
        assert run.read("runs-2-1") == ""


def joined(tmp_path: Path, before: str) -> int:
    """Exit code of the worker whose script has a mistake that shows when a second node has joined.
    `before`: what the script does meanwhile."""
    script = f"""
if world == "1":
    {before}
    note("runs")
    time.sleep(1000)
raise ValueError("a mistake")
"""
    with ScriptRun(tmp_path, script, nodes=1) as run:
        run.wait_for("runs")
        run.start(1)
        run.wait("the change", lambda: run.workers[0, 0].code == Exit.GENERATION_OVER)
        run.start(0)
        is_over = (Exit.RUN_FAILED, Exit.PEER_LOST)
        ended = run.wait(
            "an exit", lambda: [one for one in run.workers.values() if one.code in is_over]
        )
        assert "ValueError: a mistake" in ended[0].words
        assert ended[0].code is not None
        return int(ended[0].code)


def test_a_mistake_that_shows_after_nodes_have_joined_is_still_one(tmp_path: Path) -> None:
    """Pods come up one by one, and each that comes has the script started again."""
    assert joined(tmp_path, "pass") == Exit.RUN_FAILED


@LATE
def test_an_error_after_the_script_has_told_a_step_is_none(tmp_path: Path) -> None:
    """Of the machine that has joined, perhaps."""
    step = 'open(os.environ["HEADWAY_HEARTBEAT"], "w").write("1"); time.sleep(3)'
    assert joined(tmp_path, step) == Exit.PEER_LOST


def test_a_rank_that_saves_long_after_the_others_is_waited_for(tmp_path: Path) -> None:
    script = """
if rank == "0":
    until((out / "saved").exists)
else:
    note(f"done-{rank}")
"""
    with ScriptRun(tmp_path, script, nodes=3) as run:
        run.wait_for("done-1", "done-2")
        for _ in range(40):
            run.poll()
            assert all(worker.code is None for worker in run.workers.values()), run.words()
            run.wait("a while", lambda: True)
        (run.output / "saved").touch()
        assert run.codes() == [Exit.DONE] * 3


def test_a_request_to_stop_lets_every_rank_save(tmp_path: Path) -> None:
    script = """
def save(*_):
    time.sleep(1.0 if rank == "0" else 0.0)
    note(f"saved-{rank}")
    sys.exit(3)
signal.signal(signal.SIGTERM, save)
note(f"runs-{rank}")
time.sleep(1000)
"""
    with ScriptRun(tmp_path, script, nodes=2) as run:
        run.wait_for("runs-0", "runs-1")
        run.signal(signal.SIGINT)
        assert run.codes() == [Exit.STOPPED] * 2
        run.wait_for("saved-0", "saved-1")
        assert len(run.events("stopped")) == 1


def test_when_a_node_leaves_all_ranks_save_and_the_others_go_on(tmp_path: Path) -> None:
    script = """
def save(*_):
    note(f"saved-{world}-{rank}")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
note(f"runs-{world}-{rank}")
until((out / "end").exists)
"""
    with ScriptRun(tmp_path, script, nodes=2) as run:
        run.wait_for("runs-2-0", "runs-2-1")
        run.signal(signal.SIGTERM, 1)
        assert run.codes() == [Exit.GENERATION_OVER, Exit.STOPPED]
        run.wait_for("saved-2-0", "saved-2-1")
        del run.workers[1, 0]
        run.start(0)
        run.wait_for("runs-1-0")
        (run.output / "end").touch()
        assert run.codes() == [Exit.DONE]


@LATE
def test_a_node_that_joins_at_the_end_neither_disturbs_the_last_save_nor_begins_again(
    tmp_path: Path,
) -> None:
    """The script does not listen for SIGTERM, which would end it."""
    script = """
if rank == "0":
    note("saves")
    until((out / "saved").exists)
    note("result", world)
else:
    note(f"done-{rank}")
"""
    with ScriptRun(tmp_path, script, nodes=2, ranks=2) as run:
        run.wait_for("saves", "done-1", "done-2", "done-3")
        wait_until_done = run.workers[1, 0]
        run.start(2)
        run.wait("the change", lambda: "generation 2" in run.coordinator.log.read_text())
        for _ in range(50):
            run.poll()
            time.sleep(0.05)
            assert wait_until_done.code is None, run.words()
        (run.output / "saved").touch()
        assert run.codes() == [Exit.DONE] * 6
        assert run.read("result") == "4"
        assert [one["event"] for one in run.events("started", "finished")] == [
            "started",
            "finished",
        ]
        assert read_status(run.directory, time.time()).state == "finished"
        assert "nothing is left to do" in run.workers[2, 1].log.read_text()


def test_a_node_that_leaves_in_the_last_save_is_not_waited_for(tmp_path: Path) -> None:
    """Nor does it matter that another rank was done: it begins again with the others."""
    script = """
if rank == "0":
    note("saves")
    time.sleep(1000)
else:
    note("done")
"""
    with ScriptRun(tmp_path, script, nodes=2) as run:
        run.wait_for("saves", "done")
        run.wait("the others", lambda: "exited with 0" in run.workers[1, 0].log.read_text())
        run.signal(signal.SIGTERM, 0)
        assert run.codes() == [Exit.STOPPED, Exit.GENERATION_OVER]


def test_a_node_that_is_done_and_is_to_leave_waits_for_the_others(tmp_path: Path) -> None:
    script = """
if rank == "0":
    note("done")
else:
    note("works")
    until((out / "end").exists)
"""
    with ScriptRun(tmp_path, script, nodes=2) as run:
        run.wait_for("done", "works")
        run.wait("its end", lambda: "exited with 0" in run.workers[0, 0].log.read_text())
        run.signal(signal.SIGTERM, 0)
        run.wait("the change", lambda: "generation 2" in run.coordinator.log.read_text())
        (run.output / "end").touch()
        assert run.codes() == [Exit.DONE] * 2
        assert read_status(run.directory, time.time()).state == "finished"


def test_a_machine_that_dies_before_it_has_noted_the_end_leaves_a_run_that_has_finished(
    tmp_path: Path,
) -> None:
    with ScriptRun(tmp_path, "until((out / 'end').exists)\n", nodes=3) as run:
        events = Path(run.directory.location, "events.jsonl")
        run.wait("its start", lambda: run.events("started"))
        events.rename(tmp_path / "kept")
        events.mkdir()  # nothing can be written
        (run.output / "end").touch()
        logs = [worker.log for worker in run.workers.values()]
        done = "exited with 0 on all ranks"
        run.wait("the others", lambda: all(done in log.read_text() for log in logs))
        leader = next(one for one in run.workers.values() if "rank 0 of 3" in one.log.read_text())
        leader.signal(signal.SIGSTOP)
        events.rmdir()
        (tmp_path / "kept").rename(events)
        leader.signal(signal.SIGKILL)
        assert sorted(run.codes()) == [-signal.SIGKILL, Exit.DONE, Exit.DONE]
        assert len(run.events("finished")) == 1
        assert read_status(run.directory, time.time()).state == "finished"


@LATE
def test_ranks_of_a_node_that_leaves_exit_when_the_slowest_has_saved(tmp_path: Path) -> None:
    """Their launcher kills what is left of a node soon after its first exit."""
    script = """
def save(*_):
    time.sleep(3.0 if rank in "02" else 0.0)
    note(f"saved-{rank}")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
note(f"runs-{rank}")
time.sleep(1000)
"""
    with ScriptRun(tmp_path, script, nodes=2, ranks=2) as run:
        run.wait_for(*(f"runs-{rank}" for rank in range(4)))
        run.signal(signal.SIGTERM, 1)
        for node, code in ((0, Exit.GENERATION_OVER), (1, Exit.STOPPED)):
            fast = run.workers[node, 1]
            run.wait("an exit", lambda fast=fast: fast.code is not None)
            assert (run.output / f"saved-{2 * node}").exists()
            assert fast.code == code
        assert run.codes() == [Exit.GENERATION_OVER] * 2 + [Exit.STOPPED] * 2


def test_a_killed_worker_leaves_no_process_of_its_script(tmp_path: Path) -> None:
    script = """
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("child", str(os.getpid()))
else:
    note("parent", str(os.getpid()))
time.sleep(1000)
"""
    with ScriptRun(tmp_path, script) as run:
        run.wait_for("child", "parent")
        run.signal(signal.SIGKILL, 0)
        for name in ("child", "parent"):
            pid = int(run.read(name))
            run.wait(f"the end of {name}", lambda pid=pid: not _runs(pid))


def test_the_worker_ends_by_the_signal_that_ended_its_script(tmp_path: Path) -> None:
    script = "os.kill(os.getpid(), signal.SIGKILL)\n"
    with ScriptRun(tmp_path, script) as run:
        assert run.codes() == [-signal.SIGKILL]


@LATE
def test_heartbeats_are_steps_of_the_run_through_a_loss(tmp_path: Path) -> None:
    script = """
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(20 * restarts + 10, 1000, 10):
    if rank == "0":
        Path(os.environ["HEADWAY_HEARTBEAT"]).write_text(str(step))
        note("step", str(step))
    if restarts and step > 80:
        break
    time.sleep(0.5)
"""
    with ScriptRun(tmp_path, script, nodes=2) as run:
        run.wait("a step", lambda: len(run.directory.steps()) > 2)
        run.signal(signal.SIGKILL, 1)
        assert run.finish() == [Exit.DONE] * 2
        records = run.directory.metrics.read()[0]
        assert {one["generation"] for one in records if "step" in one} >= {1, 3}
        assert run.directory.steps()[-1]["step"] == int(run.read("step"))
        status = read_status(run.directory, time.time())
        assert (status.state, status.step) == ("finished", int(run.read("step")))
        assert status.goodput is not None
        assert 0 < status.goodput.ratio <= 1
        first, last = map(int, (tmp_path / "steps-0-0-2").read_text().split())
        assert 29 <= first < last == int(run.read("step"))


HANGS = """
def in_the_collective():
    note(f"runs-{rank}")
    until((out / "end").exists)
if len(sys.argv) > 1:
    for step in range(5):
        Path(os.environ["HEADWAY_HEARTBEAT"]).write_text(str(step))
        time.sleep(0.3)
in_the_collective()
"""


@pytest.mark.long("waits for deadlines; the rule has its unit tests")
def test_a_silent_script_that_does_nothing_shows_the_stacks_of_all_ranks(tmp_path: Path) -> None:
    hurry = ("script.stand_still.IDLE_SECONDS=3", "script.stand_still.SAMPLE_SECONDS=1")
    hurry = (*hurry, "script.worker.STUCK_LOOK_SECONDS=1", "script.worker.SAME_STUCK_SECONDS=2")
    hurry = (*hurry, "script.stand_still.IDLE_CORES=0.5")  # it polls, and a machine may be slow
    with ScriptRun(tmp_path, HANGS, nodes=2, hurry=hurry) as run:
        logs = [run.workers[node, 0].log for node in range(2)]
        run.wait("stacks", lambda: all("in in_the_collective" in log.read_text() for log in logs))
        assert run.wait("an event", lambda: run.events("stuck"))[0]["idle"]
        (run.output / "end").touch()
        assert run.codes() == [Exit.DONE] * 2


@pytest.mark.long("waits for deadlines; the rule has its unit tests")
def test_heartbeats_that_end_show_stacks_and_then_end_the_script(tmp_path: Path) -> None:
    hurry = ("train.hang_rule.LEAST_SECONDS=2", "script.stand_still.END_SECONDS=6")
    hurry = (*hurry, "train.hang_rule.FIRST_STEP_SECONDS=2", "script.worker.SAME_STUCK_SECONDS=1")
    hurry = (*hurry, "script.run_record.READ_SECONDS=0.1")
    with ScriptRun(tmp_path, HANGS, "python", "train.py", "beats", hurry=hurry) as run:
        assert run.codes() == [-signal.SIGABRT]
        log = run.workers[0, 0].log.read_text()
        assert "in in_the_collective" in log
        assert run.events("stuck")[0]["step"] == 4
        assert run.workers[0, 0].words.startswith("no heartbeat for ")


@LATE
def test_a_script_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    script = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
note("runs")
time.sleep(1000)
"""
    with ScriptRun(tmp_path, script, hurry=("script.ending.GRACE_SECONDS=1",)) as run:
        run.wait_for("runs")
        run.signal(signal.SIGTERM)
        assert run.codes() == [Exit.STOPPED]


def test_a_shell_script_is_ended_after_what_it_has_started_has_saved(tmp_path: Path) -> None:
    script = """
def save(*_):
    time.sleep(2)
    note("saved")
    sys.exit()
signal.signal(signal.SIGTERM, save)
note("runs")
time.sleep(1000)
"""
    with ScriptRun(tmp_path, script, "sh", "-c", "python train.py; true") as run:
        run.wait_for("runs")
        run.signal(signal.SIGINT)
        assert run.codes() == [Exit.STOPPED]
        run.wait_for("saved", seconds=1)


def test_a_command_that_is_not_there_fails_the_run_by_name(tmp_path: Path) -> None:
    with ScriptRun(tmp_path, "", "no-such-program") as run:
        assert run.codes() == [Exit.BAD_INPUT]
        assert "no-such-program cannot be started: No such file" in run.workers[0, 0].words


def test_a_coordinator_that_is_restarted_disturbs_no_script(tmp_path: Path) -> None:
    script = """
note(f"runs-{rank}-{os.environ['TORCHELASTIC_RESTART_COUNT']}")
if rank == "0":
    until((out / "end").exists)
else:
    note("done")
"""
    with ScriptRun(tmp_path, script, nodes=2) as run:
        run.wait_for("runs-0-0", "done")
        run.coordinator.kill()
        run.coordinator.start()
        (run.output / "end").touch()
        assert run.codes() == [Exit.DONE] * 2


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
