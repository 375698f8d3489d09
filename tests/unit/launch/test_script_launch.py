"""A script's workers, as both launchers start and end them: lines of shell stand for them."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli.event_words import event_text
from headway.clock import Clock, SystemClock
from headway.errors import Exit, RunFailed
from headway.launch.fork_server import COMMAND, SCRIPT_COMMAND, fork_server_command
from headway.launch.local_run import LocalRun
from headway.launch.node_run import NodeRun, NodeSettings
from headway.launch.supervise import ScriptPlace
from headway.launch.work_folder import make_work_folder
from headway.spec.resolve import Resolved
from headway.state.code_folder import resolved_code
from headway.state.run_directory import RunDirectory
from support import shell_fork_server
from support.chains import LAUNCH
from support.scripts import resolved_script

SHELL = (sys.executable, str(Path(shell_fork_server.__file__)))


@pytest.fixture
def script(tmp_path: Path) -> Resolved:
    return resolved_script(tmp_path, 2)


def local(script: Resolved, line: str, clock: Clock | None = None) -> LocalRun:
    clock = clock or SystemClock()
    directory = RunDirectory.create(script.run_directory, clock)
    return LocalRun(script, directory, clock, fork_server=(*SHELL, line))


class Pod:
    """And what it prints."""

    def __init__(self, script: Resolved, folder: Path, line: str, clock: Clock) -> None:
        self.lines: list[str] = []
        self.act: Callable[[str], None] = lambda line: None
        place = ScriptPlace(folder / "node" / "work", folder / "node" / "scratch")
        settings = NodeSettings("it-1-x7k2p", 1, LAUNCH, "headway-it:7460", Path("/key"), place)
        directory = RunDirectory.create(script.run_directory, clock)
        self.run = NodeRun(
            script, directory, settings, clock, self._hear, fork_server=(*SHELL, line)
        )

    def _hear(self, line: str) -> None:
        self.lines.append(line)
        self.act(line)


class Brisk(SystemClock):
    """Says that it was twenty times longer: a machine that stalls for seconds makes no minutes."""

    def monotonic(self) -> float:
        return super().monotonic() * 20


def look() -> None:
    pass


def test_a_script_has_a_fork_server_of_its_own(script: Resolved) -> None:
    run = script.run.model_copy(update={"command": None})
    assert fork_server_command(script) == SCRIPT_COMMAND
    assert fork_server_command(script.model_copy(update={"run": run})) == COMMAND


def test_its_packages_are_for_its_command_and_not_for_the_fork_server(
    script: Resolved, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (tmp_path / "packages").mkdir()
    # A version of ours that the script brings along would end our process at its first import.
    (tmp_path / "packages" / "msgspec.py").write_text("raise ImportError('another version')\n")
    packed = script.model_copy(update={"packages": str(tmp_path / "packages")})
    run = local(packed, 'echo "has $PYTHONPATH"; exit 0')
    assert run.run(look) == Exit.DONE
    assert f"has {tmp_path}/packages" in run.directory.log(0, 0).read_text()


def test_modules_beside_the_run_file_are_the_scripts_and_not_ours(
    script: Resolved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headway is started in that folder, and Python looks there first."""
    folder = Path(script.folder)
    for name in ("queue", "statistics", "signal"):
        (folder / f"{name}.py").write_text("raise ImportError('the script has its own')\n")
    monkeypatch.chdir(folder)
    clock = SystemClock()
    run = LocalRun(script, RunDirectory.create(script.run_directory, clock), clock)
    assert run.run(look) == Exit.DONE
    assert "trains" in run.directory.log(0, 0).read_text()


def test_what_its_workers_are_given_here(script: Resolved, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    line = (
        'cd "$HEADWAY_WORKDIR" && cat train.py && echo "$HEADWAY_ADDRESS" && '
        'test -d "$HEADWAY_OUTPUT" && test -d "$HEADWAY_SCRATCH" && '
        'echo "$HEADWAY_WORKDIR $HEADWAY_OUTPUT $HEADWAY_SCRATCH" && env | grep TORCH_; exit 0'
    )
    run = local(script, line)
    assert run.run(look) == Exit.DONE
    at = script.run_directory
    for node in (0, 1):
        assert run.directory.log(node, 0).read_text().splitlines() == [
            "print('trains')",
            "127.0.0.1",
            f"{at}/work/node-{node} {at}/output {at}/scratch/node-{node}",
        ]
    assert run.directory.history()[0]["mode"] == "script"


def test_a_shell_finds_the_python_of_the_worker(
    script: Resolved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    run = local(script, 'echo "$PATH"')
    assert run.run(look) == Exit.DONE
    beside = Path(sys.executable).parent
    assert run.directory.log(0, 0).read_text() == f"{beside}:/usr/bin:/bin\n"


def test_what_they_are_given_in_a_pod(
    script: Resolved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_ADDRESS", "10.0.0.7")  # from the pod's own status
    line = 'cat "$HEADWAY_WORKDIR/train.py"; echo "$HEADWAY_ADDRESS $HEADWAY_OUTPUT"'
    pod = Pod(script, tmp_path, line, SystemClock())
    assert pod.run.run() == Exit.DONE
    assert pod.lines == ["print('trains')", f"10.0.0.7 {script.run_directory}/output"]


def test_the_working_folder_is_kept_when_processes_start_again(
    script: Resolved, tmp_path: Path
) -> None:
    """What a rank has downloaded there, it finds again."""
    line = (
        'cd "$HEADWAY_WORKDIR"; test -e there && { cat there; exit 0; }; '
        "echo downloaded > there; kill -KILL $$"
    )
    pod = Pod(script, tmp_path, line, SystemClock())
    assert pod.run.run() == Exit.DONE
    assert pod.lines[-1] == "downloaded"


def test_the_next_start_has_the_code_of_now_and_keeps_what_was_written(tmp_path: Path) -> None:
    code, work = tmp_path / "code", tmp_path / "work" / "node-0"
    for name in ("train.py", "conf/a.yaml", "run.sh"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text("before")
    (code / "run.sh").chmod(0o555)
    files = {name: code / name for name in ("train.py", "conf/a.yaml", "run.sh")}
    make_work_folder(work, files)
    assert (work / "run.sh").stat().st_mode & 0o300 == 0o300, "it can be run, and changed"
    (work / "out").mkdir()
    (work / "out" / "checkpoint.pt").write_text("mine")
    (code / "train.py").write_text("now")
    del files["conf/a.yaml"]
    make_work_folder(work, files)
    assert (work / "train.py").read_text() == "now"
    assert not (work / "conf" / "a.yaml").exists(), "it was removed from the code"
    assert (work / "out" / "checkpoint.pt").read_text() == "mine"


def test_code_that_is_edited_while_the_run_starts_is_not_taken_for_what_was_recorded(
    script: Resolved,
) -> None:
    code = resolved_code(script)
    assert code is not None
    recorded = script.model_copy(update={"code_digest": code.listing.digest})
    assert local(recorded, "exit 0").run(look) == Exit.DONE
    (code.path / "train.py").write_text("print('trains otherwise')\n")
    with pytest.raises(RunFailed) as caught:
        local(recorded, "exit 0").run(look)
    assert str(caught.value) == (
        f"code.path: {code.path} changed while the run was starting\n"
        "hint: run the same command again"
    )


def test_what_the_script_wrote_over_files_of_the_code_stays(tmp_path: Path) -> None:
    """Checkpoints of a run by hand travel with the code, under the names of those to come."""
    code, work = tmp_path / "code", tmp_path / "work" / "node-0"
    names = ("train.py", "out/ckpt.pt", "out/best.pt", "conf.yaml")
    for name in names:
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text("by hand")
    files = {name: code / name for name in names}
    assert make_work_folder(work, files).left == []
    for name in ("out/ckpt.pt", "out/best.pt", "conf.yaml"):
        (work / name).write_text("by_hand" if name == "conf.yaml" else "step 900")
    (code / "conf.yaml").write_text("edited")
    (code / "train.py").write_text("edited")
    del files["out/best.pt"]
    for _ in range(2):
        found = make_work_folder(work, files)
        assert (work / "out" / "ckpt.pt").read_text() == "step 900"
        assert (work / "out" / "best.pt").read_text() == "step 900"
        assert (work / "conf.yaml").read_text() == "by_hand"
        assert (work / "train.py").read_text() == "edited"
        assert found.left == ["conf.yaml (the code has another one now)", "out/ckpt.pt"]
    (work / "conf.yaml").unlink()
    make_work_folder(work, files)
    assert (work / "conf.yaml").read_text() == "edited", "deleted, it comes from the code again"


def test_a_copy_that_was_interrupted_is_not_taken_for_what_the_script_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, work = tmp_path / "code", tmp_path / "work" / "node-0"
    code.mkdir()
    files = {name: code / name for name in ("a.py", "b.py")}
    for path in files.values():
        path.write_text("first")
    real, full = shutil.copy, OSError(errno.ENOSPC, "No space left on device", str(work / "b.py"))

    def copy(source: Path, target: Path) -> object:
        if source.name == "b.py":
            raise full
        return real(source, target)

    monkeypatch.setattr(shutil, "copy", copy)
    with pytest.raises(OSError, match="No space left"):
        make_work_folder(work, files)
    monkeypatch.undo()
    (code / "a.py").write_text("second")
    assert make_work_folder(work, files).left == []
    assert (work / "a.py").read_text() == "second"


@pytest.mark.parametrize("content", ["", "[", "{}", '["train.py"]', "3"])
def test_without_a_readable_list_nothing_in_the_working_folder_is_overwritten(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "train.py").write_text("now")
    work = tmp_path / "work" / "node-0"
    work.mkdir(parents=True)
    (work / "train.py").write_text("whose?")
    work.with_name("node-0.json").write_text(content)
    found = make_work_folder(work, {"train.py": tmp_path / "train.py"})
    assert found.left == ["train.py (the code has another one now)"]
    assert (work / "train.py").read_text() == "whose?"


@pytest.mark.parametrize("is_here", [True, False])
def test_files_that_are_left_are_named(script: Resolved, tmp_path: Path, is_here: bool) -> None:
    directory = Path(script.run_directory)
    work = directory / "work" / "node-0" if is_here else tmp_path / "node" / "work"
    (Path(script.folder) / "train.py").write_text("print()")
    work.mkdir(parents=True)
    (work / "train.py").write_text("mine")
    if is_here:
        run = local(script, "exit 0")
        assert run.run(lambda: None) == Exit.DONE
        (event,) = [one for one in run.directory.launcher.read()[0] if one["event"] == "left_files"]
        words = event_text(event, None, 1)
    else:
        pod = Pod(script, tmp_path, "exit 0", SystemClock())
        assert pod.run.run() == Exit.DONE
        (words,) = pod.lines
    assert "train.py (the code has another one now)" in words


def test_no_room_for_the_working_folder_of_a_pod_is_not_the_fault_of_the_run(
    script: Resolved, tmp_path: Path
) -> None:
    """Another pod may have room: see `headway node`."""
    (tmp_path / "node").write_text("in the way")
    pod = Pod(script, tmp_path, "exit 0", SystemClock())
    with pytest.raises(OSError, match="node"):
        pod.run.run()


def test_a_working_folder_here_that_cannot_be_made_says_where_and_why(script: Resolved) -> None:
    run = local(script, "exit 0")
    in_the_way = run.directory.local / "work"
    in_the_way.write_text("in the way")
    with pytest.raises(RunFailed, match="could not be copied into the working folder") as failed:
        run.run(lambda: None)
    hint = str(failed.value.hint)
    assert "make room" in hint
    assert str(in_the_way) in hint
    assert "delete" not in hint, "what the script has saved may be in it"


def test_large_files_over_files_of_the_code_are_named(tmp_path: Path) -> None:
    code, work = tmp_path / "code", tmp_path / "work" / "node-0"
    (code / "out").mkdir(parents=True)
    names = ("out/ckpt.pt", "out/data.bin")
    for name in names:
        (code / name).write_bytes(bytes(3_000_000))
    folder = make_work_folder(work, {name: code / name for name in names})
    assert folder.new_large_files() == []
    (work / "out" / "ckpt.pt").write_bytes(b"1" * 3_000_000)
    os.utime(work / "out" / "ckpt.pt", ns=(1, 1))
    assert folder.new_large_files() == ["out/ckpt.pt (3 MB)"]
    assert folder.new_large_files() == []


def test_large_files_in_the_working_folder_are_named_once(script: Resolved, tmp_path: Path) -> None:
    line = (
        'cd "$HEADWAY_WORKDIR"; mkdir -p out; head -c 3000000 /dev/zero > out/ckpt.pt; '
        'echo small > small; case "$HEADWAY_POD" in *.1/0) exit 8;; esac; exit 0'
    )
    pod = Pod(script, tmp_path, line, SystemClock())
    assert pod.run.run() == Exit.DONE
    (warning,) = pod.lines
    assert "wrote out/ckpt.pt (3 MB) to its working folder" in warning
    assert "$HEADWAY_OUTPUT" in warning


def test_a_rank_that_saves_after_the_others_have_stopped_is_not_killed(script: Resolved) -> None:
    """Asked to stop, it takes a quarter of a minute, by the launcher's clock."""
    line = (
        'trap "test $HEADWAY_RANK = 0 && sleep 0.8 && echo saved; exit 6" INT; '
        "echo ready; while :; do sleep 0.02; done"
    )
    run = local(script, line, Brisk())
    logs = [run.directory.log(node, 0) for node in (0, 1)]

    def stop_once_ready() -> None:
        is_ready = all(log.exists() and "ready" in log.read_text() for log in logs)
        if is_ready and run.stop_asked_at is None:
            run.ask_to_stop()

    assert run.run(stop_once_ready) == Exit.STOPPED
    assert logs[0].read_text().splitlines() == ["ready", "saved"]


def test_a_rank_that_saves_before_a_change_is_not_killed(script: Resolved, tmp_path: Path) -> None:
    """Of two on one node: the other one has ended, and its generation with it."""
    two = script.model_copy(update={"ranks_per_node": 2})
    line = (
        'case "$HEADWAY_POD" in *.2/*) exit 0;; esac; '
        'test "$HEADWAY_RANK" = 2 && { sleep 0.8; echo saved; }; exit 8'
    )
    pod = Pod(two, tmp_path, line, Brisk())
    assert pod.run.run() == Exit.DONE
    assert pod.lines == ["node-1.rank-0: saved"]
