"""Commands on a run that is a script: what they say of it, and which do not apply."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import headway as from_python
from headway.cli.code_changes import script_digest, tell_code_change
from headway.cli.restart_check import is_left_to_train, require_same_run
from headway.cli.run_summary import saved_so_far, show_summary
from headway.cli.script_progress import MOST_BYTES, FollowedLog, ScriptProgress
from headway.clock import SystemClock, stamp
from headway.errors import BadInput, RunFailed
from headway.spec.load import load_run
from headway.spec.quantities import NodeRange
from headway.spec.resolve import Hardware, Resolved, resolve
from headway.state.code_folder import code_folder
from headway.state.run_directory import RunDirectory
from support.in_process import Headway

RUN_FILE = """\
version: 1
name: it
command: [python, train.py, --out, $HEADWAY_OUTPUT]
resources: {nodes: 2..4}
"""


@pytest.fixture
def directory(folder: Path) -> RunDirectory:
    """A run that was started once."""
    (folder / "run.yaml").write_text(RUN_FILE)
    (folder / "train.py").write_text("print('hello')\n")
    directory = RunDirectory.create(folder / "runs" / "it", SystemClock())
    one = Hardware(cores=1, cuda_devices=0)
    nothing = {"train_set": "", "validation_sets": {}}
    directory.write_spec(resolve(load_run(), one, nodes=2, parameters=None, **nothing))
    return directory


START = 1.8e9


def ran(directory: RunDirectory, has_heartbeat: bool = True) -> None:
    """Two workers, one lost, started again, finished: what launcher and workers write."""
    directory.launcher.append(
        {"time": stamp(START), "event": "launched", "nodes": 2, "workers": 2, "mode": "script"}
    )
    for generation, second in ((1, 2), (2, 40)):
        started(directory, START + second, generation)
        if has_heartbeat:
            for step in (10, 20):
                directory.metrics.append(
                    {
                        "step": step + 10 * (generation - 1),
                        "generation": generation,
                        "time": stamp(START + second + step),
                        "seconds": 9.0,
                        "data_seconds": 0,
                        "loss": None,
                        "tokens_per_second": None,
                    }
                )
    directory.launcher.append(
        {
            "time": stamp(START + 35),
            "event": "lost",
            "node": 1,
            "local_rank": 0,
            "how": "was killed (SIGKILL)",
        }
    )
    directory.events.append({"time": stamp(START + 70), "event": "finished", "step": 0})


def started(directory: RunDirectory, time: float, generation: int) -> None:
    directory.events.append(
        {
            "time": stamp(time),
            "event": "started",
            "generation": generation,
            "resumed_from": None,
            "step": 0,
            "total_steps": None,
            "workers": 2,
            "device": "cpu",
            "seconds": {"import": 0.0, "build": 0.0, "load": 0.0},
        }
    )


@pytest.mark.parametrize("has_heartbeat", [True, False])
def test_what_is_not_told_is_left_out_everywhere(
    headway: Headway, directory: RunDirectory, has_heartbeat: bool
) -> None:
    ran(directory, has_heartbeat)
    shown = headway("status").out
    assert ("step        30" if has_heartbeat else "step        the script tells none") in shown
    assert f"output      {directory.location}/output" in shown
    assert "finished" in headway("list").out
    assert "how=was killed (SIGKILL)" in headway("events").out
    assert "30" in headway("compare", "it").out or not has_heartbeat
    assert "headway logs -f" in headway("watch").out
    said = headway("report", "--into", "page.html")
    assert (said.exit_code, Path("page.html").is_file()) == (0, True)
    page = Path("page.html").read_text()
    assert "a script reads its own data" in page
    charts = json.loads(page.partition('id="data">')[2].partition("</script>")[0])["charts"]
    assert [chart["id"] for chart in charts] == ["members"]
    for words in (shown, headway("status", "--json").out, headway("compare", "it").out):
        assert "not finite" not in words
        assert "NaN" not in words
    (run,) = from_python.runs()
    assert run.status().step == (30 if has_heartbeat else 0)


def test_what_a_script_came_to(directory: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    ran(directory)
    show_summary(directory, is_script=True)
    step, _, goodput, output = capsys.readouterr().err.splitlines()
    assert step == "step        30"
    assert re.match(r"goodput     \d+\.\d% of 1:10", goodput)
    assert output == f"output      {directory.location}/output"
    assert "starts again with what it has saved" in saved_so_far(directory.read_spec(), directory)


def test_a_script_that_was_killed_while_it_saved_is_not_said_to_have_saved(
    directory: RunDirectory,
) -> None:
    ran(directory)
    ended = "did not end within 110 s after SIGTERM: killed"
    stopped = {"time": stamp(1.9e9), "event": "stopped", "step": 30, "ended": ended}
    directory.events.append(stopped)
    said = saved_so_far(directory.read_spec(), directory)
    assert said == f"the script {ended}; it starts again with what it has saved"
    directory.launcher.append({"time": stamp(1.9e9 + 1), "event": "launched", "workers": 1})
    assert "killed" not in saved_so_far(directory.read_spec(), directory), "of another start"


def test_a_terminal_shows_what_the_script_prints_and_its_steps(
    directory: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    log = directory.log(0, 0)
    log.parent.mkdir(parents=True)
    log.write_text("of an earlier start\n")
    progress = ScriptProgress(directory, SystemClock())
    progress.show()
    with log.open("a") as file:
        file.write("loading\n10%\r50%\r100%\nunfinished")
    ran(directory)
    progress.show()
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "starting the script",
        "loading",
        "100%",
        "started: 2 workers on cpu",
        "node 1 was killed (SIGKILL); restarting it",
        "started again: 2 workers on cpu",
        "unfinished",
    ]


FRAMES = """\
Traceback (most recent call last):
  File "/x/train.py", line 4, in <module>
    import nothing_here
"""
RAISED = "ModuleNotFoundError: No module named 'nothing_here'"


def test_a_traceback_that_is_on_the_screen_is_not_shown_again(
    directory: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    log = directory.log(0, 0)
    log.parent.mkdir(parents=True)
    progress = ScriptProgress(directory, SystemClock())
    log.write_text(f"loading\n{FRAMES}{RAISED}\n")
    error = RunFailed(f"{FRAMES}{RAISED}\nworker 0 ended with exit code 1")
    progress.once(error)
    assert capsys.readouterr().err.count("Traceback") == 1
    assert error.message == f"{RAISED}\nworker 0 ended with exit code 1"


def test_that_of_a_worker_whose_log_is_not_shown_is(directory: RunDirectory) -> None:
    progress = ScriptProgress(directory, SystemClock())
    error = RunFailed(f"{FRAMES}{RAISED}\nworker 3 ended with exit code 1")
    progress.once(error)
    assert error.message.startswith(FRAMES)


def test_a_flood_of_output_does_not_hold_up_the_launcher(tmp_path: Path) -> None:
    log = FollowedLog(tmp_path / "log")
    assert log.new_lines() == []
    (tmp_path / "log").write_text("x\n" + "y\n" * (MOST_BYTES // 2))
    first, *others = log.new_lines()
    assert "bytes are not shown: headway logs has them" in first
    assert others == ["y"] * (MOST_BYTES // 2 - 1)
    assert log.new_lines() == []
    (tmp_path / "log").write_text("anew\n")
    assert log.new_lines() == ["anew"]


@pytest.mark.usefixtures("directory")
def test_check_says_in_two_lines_what_holds_and_what_does_not(headway: Headway) -> None:
    said = headway("check")
    assert said.exit_code == 0
    lines = dict(line.split("  ", 1) for line in said.out.splitlines())
    assert lines["command"].strip() == "python train.py --out '$HEADWAY_OUTPUT'"
    assert "torchrun's variables" in lines["holds"]
    assert "ledger" in lines["does not hold"]
    known = json.loads(headway("check", "--json").out)
    assert known["command"][:2] == ["python", "train.py"]


def again(directory: RunDirectory, *settings: str, file: str | None = None) -> bool:
    """Whether `headway run` would start it."""
    loaded = load_run(file, list(settings))

    def digest() -> str | None:
        return script_digest(loaded, code_folder(loaded.run, loaded.folder))

    return is_left_to_train(directory.location, loaded.run, extend=False, digest=digest)


def note_start(directory: RunDirectory, file: str | None = None) -> None:
    """What a start records of its code."""
    loaded = load_run(file)
    code = code_folder(loaded.run, loaded.folder)
    assert code is not None
    digests = {"code_digest": code.listing.digest, "script_digest": script_digest(loaded, code)}
    directory.write_spec(directory.read_spec().model_copy(update=digests))


def test_finished_and_unchanged_is_said_and_finished_and_changed_starts_again(
    folder: Path, directory: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    note_start(directory)
    assert again(directory), "it has not finished"
    ran(directory)
    assert not again(directory)
    assert "run it has already finished" in capsys.readouterr().err
    (folder / "run.yaml").write_text(RUN_FILE + "budget: {hours: 3}\n")
    (folder / "runs" / "it.on").write_text("target\n")
    (folder / "report.html").write_text("")
    assert not again(directory), "that changes nothing that the script does"
    capsys.readouterr()
    assert again(directory, "command=[python, train.py, --lr, 2]")
    said = capsys.readouterr().err
    assert "train.py --out '$HEADWAY_OUTPUT' -> python train.py --lr 2" in said
    assert "had finished, and starts again" in said
    (folder / "train.py").write_text("print('edited')\n")
    assert again(directory)
    assert "had finished, and starts again" in capsys.readouterr().err
    tell_code_change(directory.location, code_folder(load_run().run, folder))
    assert "code changed since the last start: 2-" in capsys.readouterr().err


def test_an_edit_of_the_run_file_is_none_of_the_code_whatever_it_is_called(
    folder: Path, directory: RunDirectory
) -> None:
    (folder / "long.yaml").write_text(RUN_FILE)
    note_start(directory, "long.yaml")
    ran(directory)
    (folder / "long.yaml").write_text(RUN_FILE + "budget: {hours: 3}\n")
    assert not again(directory, file="long.yaml")
    assert again(directory), "of another run file it may be the configuration"


def test_a_script_and_a_model_are_two_runs(headway: Headway, directory: RunDirectory) -> None:
    Path("run.yaml").write_text("version: 1\nname: it\nmodel: {type: gpt2}\n")
    with pytest.raises(BadInput, match="started with a script, and the run file now has a model"):
        require_same_run(directory, load_run().run, extend=False)


def test_a_script_is_not_extended(directory: RunDirectory) -> None:
    with pytest.raises(BadInput, match="decides itself when it is done"):
        is_left_to_train(directory.location, load_run().run, extend=True)


@pytest.mark.usefixtures("directory")
def test_check_has_no_functions_to_try(headway: Headway) -> None:
    said = headway("check", "--code")
    assert said.exit_code == 2
    assert "--code runs functions of your own" in said.err


@pytest.mark.usefixtures("directory")
def test_the_same_from_python(headway: Headway) -> None:
    assert "does not hold" in repr(from_python.load().check())
    with pytest.raises(BadInput, match="generate does not apply to it"):
        from_python.open("it").generate("Once")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["ledger", "verify"], "a script reads its own"),
        (["export"], "runs/it/output"),
        (["generate", "--prompt", "Once"], "does not know its model"),
        (["fork", "it", "other"], "headway run --set name=other"),
        (["tensorboard"], "tensorboard --logdir "),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
@pytest.mark.usefixtures("directory")
def test_commands_that_need_a_model_say_why_they_do_not_apply(
    headway: Headway, arguments: list[str], why: str
) -> None:
    said = headway(*arguments)
    assert said.exit_code == 2
    assert "does not apply to it, which runs a script" in said.err
    assert why in said.err


TARGET = f"""\
lab:
  kube: {{context: lab, namespace: ml}}
  image: registry.example/headway@sha256:{"0" * 64}
  storage: {{claim: shared-fs}}
  pod: {{resources: {{cpu: 4, memory: 8Gi}}}}
"""


@pytest.mark.usefixtures("directory")
def test_the_same_run_file_on_a_target(headway: Headway, folder: Path) -> None:
    (folder / "targets.yaml").write_text(TARGET)
    assert headway("check", "--on", "lab").exit_code == 0
    said = headway("run", "--on", "lab", "--dry-run", "-o", "json")
    assert said.exit_code == 0, said.err
    assert "code.path: " in said.err
    assert "is uploaded to " in said.err
    assert "data.train" not in said.err
    (spec,) = (
        Resolved.model_validate_json(one["data"]["spec.json"])
        for one in json.loads(said.out)["items"]
        if "spec.json" in one.get("data", {})
    )
    assert spec.is_script
    assert (spec.nodes, spec.run.resources.nodes.minimum) == (4, 2)
    assert spec.run.code is not None
    assert spec.run.code.path.startswith("/"), "a folder of the pod"


@pytest.mark.usefixtures("directory")
def test_a_script_that_is_not_there_is_refused_for_a_target_too(
    headway: Headway, folder: Path
) -> None:
    (folder / "targets.yaml").write_text(TARGET)
    (folder / "train.py").unlink()
    said = headway("check", "--on", "lab")
    assert said.exit_code == 2
    assert "there is no file train.py" in said.err


def test_a_script_is_not_scaled_below_its_minimum(
    headway: Headway, directory: RunDirectory
) -> None:
    """It would wait for ever, and nobody would know why."""
    resolved = directory.read_spec()
    nodes = NodeRange(2, 4)
    resources = resolved.run.resources.model_copy(update={"nodes": nodes})
    run = resolved.run.model_copy(update={"resources": resources})
    directory.write_spec(resolved.model_copy(update={"run": run}))
    with directory.held():
        said = headway("scale", "it", "--nodes", "1")
        assert said.exit_code == 2
        assert "does not run on fewer than 2 nodes: resources.nodes is 2..4" in said.err
        assert headway("scale", "it", "--nodes", "4").exit_code == 0
    assert directory.wanted_nodes() == 4
