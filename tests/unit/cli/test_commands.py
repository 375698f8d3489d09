"""Commands as a user types them, without training: what goes where, and the exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

import headway.spec
from headway.cli.output import short_count, short_time
from headway.clock import SystemClock, stamp
from headway.errors import Exit
from headway.spec.load import preset_names
from headway.state.run_directory import Journal, RunDirectory
from support.fake_s3 import fake_s3
from support.in_process import Headway

SCHEMAS = Path(headway.spec.__file__).parent / "schema"
RUN_FILE = """\
version: 1
name: it
model: {type: gpt2}
data: {train: prepared, sequence_length: 128}
batch: {global: 16, micro: 4}
train_for: 300 steps
"""
LARGEST_TARGET = f"""\
largest:
  image: registry.example/headway@sha256:{"0" * 64}
  storage: {{claim: shared-fs}}
  resources: {{accelerators: B200:8}}
  pod: {{resources: {{cpu: 64, memory: 1Ti}}}}
"""
"""Has room for every preset, unlike this machine."""


@pytest.fixture(autouse=True)
def _prepared_set(folder: Path) -> None:
    """What the run files here name: check and run look for it."""
    (folder / "prepared").mkdir()
    (folder / "prepared" / "manifest.json").write_text("{}")


class Ticking(SystemClock):
    """A second later each time: events have an order."""

    def __init__(self) -> None:
        self.time = 1_700_000_000.0

    def now(self) -> float:
        self.time += 1
        return self.time


@pytest.fixture
def directory(folder: Path) -> RunDirectory:
    """A run of two workers that failed on its second."""
    (folder / "run.yaml").write_text(RUN_FILE)
    directory = RunDirectory.create(folder / "runs" / "it", SystemClock())
    clock = Ticking()
    launcher = Journal(directory.launcher, clock)
    launcher.note("launched", workers=2)
    Journal(directory.events, clock).note(
        "started",
        total_steps=300,
        workers=2,
        generation=1,
        seconds={"import": 0.5, "build": 0.25, "load": 0.0},
    )
    directory.metrics.append(
        {
            "step": 7,
            "time": stamp(clock.now()),
            "loss": 2.5,
            "tokens_per_second": 1234.0,
            "seconds": 1,
            "data_seconds": 0.0,
        }
    )
    directory.evaluations.append({"step": 5, "set": "held-out", "loss": 3.25})
    directory.log(0, 0).parent.mkdir()
    directory.log(0, 0).write_text("hello from 0\n")
    directory.log(0, 1).write_text("hello from 1\nValueError: no")
    launcher.note("failed", node=0, local_rank=1, message="ValueError: no")
    return directory


# --- errors


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["check"], Exit.NOT_FOUND),
        (["run", "nowhere"], Exit.NOT_FOUND),
        (["status", "nothing"], Exit.NOT_FOUND),
        (["logs"], Exit.NOT_FOUND),
        (["init", "gpt5", "x"], Exit.BAD_INPUT),
        (["init", "tiny"], Exit.BAD_INPUT),
        (["init"], Exit.BAD_INPUT),
        (["status", "ftp://bucket/it"], Exit.BAD_INPUT),
    ],
)
def test_errors_go_to_stderr_with_an_exit_code(
    headway: Headway, arguments: list[str], code: Exit
) -> None:
    said = headway(*arguments)
    assert (said.exit_code, said.out) == (code, "")
    assert said.err.startswith("error: ")
    assert "Traceback" not in said.err


def test_an_error_has_its_hint_on_a_line_of_its_own(headway: Headway, folder: Path) -> None:
    (folder / "run.yaml").write_text("version: 1\nlearning_rate: 3\nsead: 3\n")
    said = headway("check")
    assert said.exit_code == 2
    assert said.err.splitlines() == [
        "error: run.yaml:2:1: unknown key 'learning_rate'",
        "hint: write optimizer.lr",
        "run.yaml:3:1: unknown key 'sead'",
        "hint: did you mean seed?",
    ]


def test_a_missing_accelerator_is_refused_before_data_is_prepared(
    headway: Headway, folder: Path
) -> None:
    (folder / "run.yaml").write_text(RUN_FILE)
    said = headway("run", "--set", "resources.accelerators=A100:999")
    assert said.exit_code == Exit.BAD_INPUT
    assert "resources.accelerators: A100:999 requested, but this machine has" in said.err
    assert ": --set resources.accelerators=" in said.err


def test_a_size_in_words_is_refused_without_torch(headway: Headway, folder: Path) -> None:
    (folder / "run.yaml").write_text(RUN_FILE)
    said = headway("check", "--set", "model.config.n_layer=two")
    assert said.exit_code == Exit.BAD_INPUT
    where = "--set model.config.n_layer"
    assert said.err == f"error: {where}: model.config.n_layer: 'two' is not a whole number\n"


def test_an_unknown_option_is_bad_input(headway: Headway) -> None:
    assert headway("check", "--nonsense").exit_code == Exit.BAD_INPUT
    assert headway("nonsense").exit_code == Exit.BAD_INPUT


def test_a_folder_below_a_file_is_refused_in_one_line(headway: Headway, folder: Path) -> None:
    (folder / "file").write_text("not a folder")
    said = headway("init", "tiny", "file/run")
    assert said.exit_code == Exit.BAD_INPUT
    assert said.err.splitlines() == [
        f"error: headway init tiny file/run: {folder / 'file'} is a file, not a folder",
        "hint: name another path",
    ]


def test_a_key_without_its_option_is_recognised(headway: Headway) -> None:
    said = headway("run", "name=other")
    assert said.exit_code == Exit.NOT_FOUND
    assert "to set a key: --set name=other" in said.err


def test_version(headway: Headway) -> None:
    assert headway("--version").out == "0.1.0\n"


# --- init


@pytest.mark.parametrize("preset", preset_names())
def test_what_init_writes_check_accepts(headway: Headway, folder: Path, preset: str) -> None:
    made = headway("init", preset, "My Run")
    assert (made.exit_code, made.out) == (0, "")
    assert "next: " in made.err
    assert (folder / "My Run" / "README.md").read_text().count("\n") == 3
    (folder / "My Run" / "targets.yaml").write_text(LARGEST_TARGET)
    if preset != "tiny":
        said = headway("check", "My Run", "--on", "largest")
        assert "no file matches" in said.err, "until the data is there"
        (folder / "My Run" / "data").mkdir()
        (folder / "My Run" / "data" / "a.jsonl").write_text('{"text": "Once."}\n')
    # Eight devices have no work in tiny's micro-batches, and that is refused.
    given = ["--set", "batch.micro=1"] if preset == "tiny" else []
    said = headway("check", "My Run", "--json", "--on", "largest", *given)
    assert (said.exit_code, said.err) == (0, "")
    assert set(json.loads(said.out)) >= {"model", "batch", "train_for"}
    text = (folder / "My Run" / "run.yaml").read_text()
    assert "name: my-run\n" in text


@pytest.mark.parametrize("preset", preset_names())
def test_editors_find_the_schema_of_what_init_writes(
    headway: Headway, folder: Path, preset: str
) -> None:
    """The YAML language server takes a relative path from the folder of the file."""
    headway("init", preset, "made")
    run_file = folder / "made" / "run.yaml"
    line, _, text = run_file.read_text().partition("\n")
    named = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", line)
    assert named is not None
    schema = json.loads((run_file.parent / named[1]).read_text())
    assert schema == json.loads((SCHEMAS / "run.schema.json").read_text())
    run = yaml.safe_load(text)
    assert schema["required"] == ["version"]
    assert schema["additionalProperties"] is False
    assert run.keys() <= schema["properties"].keys()
    assert run.get("data", {}).keys() <= schema["$defs"]["DataConfig"]["properties"].keys()


def test_init_lists_presets_with_their_sizes_and_what_holds_them(headway: Headway) -> None:
    header, *rows = headway("init", "--list").out.splitlines()
    assert header.split() == ["PRESET", "PARAMETERS", "STATE", "HELD", "BY"]
    assert rows.pop() == "script       -           -        a training script of your own"
    assert sorted(row.split()[0] for row in rows) == preset_names()
    assert rows[0] == "tiny         561k        8.97 MB  a CPU"
    assert "gpt2-small   124M        2.24 GB  1 GPU of 24 GB" in rows
    assert "llama2-7b    6.74B       121 GB   8 GPUs of 24 GB or 2 GPUs of 80 GB" in rows


def test_a_script_is_ready_to_run_and_needs_no_preset(headway: Headway, folder: Path) -> None:
    made = headway("init", "script", "mine")
    assert (made.exit_code, made.out) == (0, "")
    assert "next: cd mine && headway run" in made.err
    said = headway("check", "mine")
    assert (said.exit_code, said.err) == (0, "")
    assert "python train.py" in said.out
    assert "$HEADWAY_OUTPUT" in said.out


def test_init_leaves_what_is_there_alone(headway: Headway, folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("precious")
    said = headway("init", "tiny", "mine")
    assert (said.exit_code, said.err.splitlines()[0]) == (
        2,
        "error: mine already exists and is not empty",
    )
    assert [item.name for item in (folder / "mine").iterdir()] == ["notes.txt"]
    assert headway("init", "tiny", "mine/notes.txt").exit_code == 2


def test_init_into_an_empty_folder_or_here(headway: Headway, folder: Path) -> None:
    (folder / "empty").mkdir()
    assert headway("init", "tiny", "empty").exit_code == 0
    assert (folder / "empty" / "data" / "train.txt").stat().st_size > 10**6


def test_commands_in_the_readme_exist(headway: Headway, folder: Path) -> None:
    headway("init", "tiny", "x")
    text = (folder / "x" / "README.md").read_text()
    assert "headway export --into OUT" in text, "a bare word after export names a run"


# --- check


def test_check_shows_what_a_run_file_amounts_to(headway: Headway, folder: Path) -> None:
    (folder / "run.yaml").write_text(RUN_FILE)
    said = headway("check", "--set", "batch.global=6", "--set", "train_for=1M tokens")
    assert said.err == ""
    assert "6 sequences of 128 tokens = 768 tokens a step, in 2 micro-batches of 4" in said.out
    assert "1M tokens = 1303 steps" in said.out
    assert "in 1 micro-batch of 2" in headway("check", "--set", "batch.global=2").out
    written = {folder / "run.yaml", folder / "prepared"}
    assert set(folder.iterdir()) == written, "it writes nothing"


def test_check_counts_the_checkpoints_that_stay_and_their_bytes(headway: Headway) -> None:
    every = "[10 steps until 100, 50 steps until 2k, 100 steps until 20k, 1k steps]"
    dense = ("--set", f"checkpoint.keep.every={every}", "--set", "train_for=392k steps")
    said = headway("check", "gpt2-small", *dense)
    assert said.exit_code == 0
    (line,) = [line for line in said.out.splitlines() if line.startswith("checkpoints")]
    assert "at most 603 are kept, 600 of them for good (every 10 steps until 100, " in line
    assert line.endswith("; 1.4 GiB each, 838.6 GiB in all")
    facts = json.loads(headway("check", "gpt2-small", "--json", *dense).out)["checkpoints"]
    assert (facts["milestones"], facts["kept"]) == (600, 603)
    assert facts["bytes"] == 603 * facts["bytes_of_each"]
    said = headway("check", "gpt2-small", "--set", "checkpoint.keep.every=100 steps until 500")
    assert (said.exit_code, said.out) == (Exit.BAD_INPUT, "")


def test_check_shows_the_checkpoint_interval_that_auto_stands_for(
    headway: Headway, folder: Path
) -> None:
    (folder / "run.yaml").write_text(RUN_FILE)
    auto = ("--set", "checkpoint.every=auto", "--set", "model.config.vocab_size=1000")
    said = headway("check", *auto)
    assert said.exit_code == 0
    assert "every 47min (auto); " in said.out
    assert "save interval     a save holds training for " in said.out
    facts = json.loads(headway("check", "--json", *auto).out)["checkpoints"]
    assert (facts["every"], facts["auto"]) == ("auto", "47min")
    assert "Daly 2006" in facts["auto_because"]
    assert "checkpoints       auto; " in headway("check", "gpt2-small", *auto).out


def test_check_as_data(headway: Headway, folder: Path) -> None:
    (folder / "run.yaml").write_text(RUN_FILE)
    facts = json.loads(headway("check", "--json").out)
    assert facts["train_for"] == {"amount": 300, "unit": "steps", "steps": 300}
    assert facts["model"]["origin"] == "gpt2"
    assert facts["batch"]["sequence_length"] == 128
    assert (facts["problems"], facts["unchecked"]) == ([], [])


def test_problems_as_data(headway: Headway, folder: Path) -> None:
    (folder / "run.yaml").write_text(RUN_FILE.replace("prepared", "elsewhere"))
    said = headway("check", "--json")
    assert said.exit_code == Exit.BAD_INPUT
    (problem,) = json.loads(said.out)["problems"]
    assert (problem["file"], problem["line"]) == ("run.yaml", 4)
    assert problem["problem"].startswith("data.train: no prepared set ")
    assert problem["hint"].startswith("name your text instead: {sources: [FILE], ")


def test_check_of_a_preset_by_its_name(headway: Headway) -> None:
    said = headway("check", "gpt2-small")
    assert (said.exit_code, said.err) == (0, "")
    assert "gpt2, 124M parameters" in said.out


def test_check_refuses_what_run_would_refuse(headway: Headway, folder: Path) -> None:
    (folder / "run.yaml").write_text("version: 1\nextends: gpt2-small\n")
    said = headway("check")
    assert (said.exit_code, said.out) == (2, "")
    assert "the run file has no data.train" in said.err


def test_check_reads_the_targets_too(headway: Headway, folder: Path) -> None:
    (folder / "run.yaml").write_text(RUN_FILE)
    (folder / "targets.yaml").write_text("lab: {kub: {}}\n")
    assert "targets.yaml:1:7: unknown key 'kub'" in headway("check").err


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        (["train_for=500 steps"], 500),
        (["train_for=715 steps"], 715),
        (["train_for=100M tokens"], 191),
        (["train_for=716 steps"], None),
        (["train_for=500 steps", "schedule.warmup=5%"], None),
        (["train_for=1 epochs"], None),  # as long as the data: not known here
        ([], None),
    ],
)
def test_a_warmup_longer_than_the_run_is_reported(
    headway: Headway, folder: Path, overrides: list[str], steps: int | None
) -> None:
    """Allowed, for a short trial of a preset; but it is seldom meant."""
    (folder / "run.yaml").write_text("version: 1\nextends: gpt2-small\ndata: {train: prepared}\n")
    said = headway("check", *(part for text in overrides for part in ("--set", text)))
    assert said.exit_code == 0
    if steps is None:
        assert said.err == ""
    else:
        assert "warning: gpt2-small (preset):" in said.err
        assert f"schedule.warmup is 715 steps and the whole run has {steps}:" in said.err
        assert "hint: --set schedule.warmup=5%" in said.err


# --- run, before anything starts


def test_a_secret_that_is_not_set(
    headway: Headway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MY_TOKEN", raising=False)
    (folder / "run.yaml").write_text(RUN_FILE + "secrets: [MY_TOKEN]\n")
    said = headway("run")
    assert said.exit_code == 2
    assert "error: run.yaml:7:1: secrets: MY_TOKEN not set in the environment" in said.err
    assert "hint: export MY_TOKEN=..." in said.err


def test_run_refuses_an_incomplete_file(headway: Headway, folder: Path) -> None:
    (folder / "run.yaml").write_text("version: 1\nextends: gpt2-small\n")
    said = headway("run")
    assert said.exit_code == 2
    assert set(folder.iterdir()) == {folder / "run.yaml", folder / "prepared"}
    assert "the run file has no data.train" in said.err


# --- status, list, logs


def test_an_unreachable_store_is_reported(headway: Headway) -> None:
    trouble = type("NoCredentialsError", (Exception,), {"__module__": "botocore.exceptions"})

    def fail(*_: object, **__: object) -> None:
        raise trouble("Unable to locate credentials")

    with fake_s3() as s3:
        s3.cat_file = s3.info = fail  # type: ignore[method-assign, assignment]
        said = headway("status", "s3://bucket/it")
    assert (said.exit_code, said.out) == (Exit.BAD_INPUT, "")
    assert said.err.splitlines() == [
        "error: s3://bucket/it cannot be read: NoCredentialsError: Unable to locate credentials",
        "hint: check its address, your credentials and the endpoint",
    ]


def test_status(headway: Headway, directory: RunDirectory) -> None:
    said = headway("status")
    assert (said.exit_code, said.err) == (0, "")
    rows = dict(line.split(maxsplit=1) for line in said.out.splitlines())
    assert rows["state"] == "failed"
    assert rows["cause"] == "ValueError: no"
    assert rows["step"] == "7 of 300"
    assert rows["held-out"] == "3.2500"
    assert rows["speed"] == "1.23k tokens/s"
    found = json.loads(headway("status", "it", "--json").out)
    assert (found["state"], found["step"], found["checkpoint_step"]) == ("failed", 7, None)


def test_list(headway: Headway, folder: Path, directory: RunDirectory) -> None:
    RunDirectory.create(folder / "runs" / "another-one", SystemClock())
    record = directory.record() | {"created": stamp(SystemClock().now() - 3.5 * 3600)}
    (folder / "runs" / "it" / "run.json").write_text(json.dumps(record))
    assert headway("list").out.splitlines() == [
        "NAME         STATE    STEP   LOSS    HELD-OUT  CHECKPOINT  AGE",
        "another-one  stopped  0/?    -       -         -           0s",
        "it           failed   7/300  2.5000  3.2500    -           3h",
    ]
    assert [run["name"] for run in json.loads(headway("list", "--json").out)] == [
        "another-one",
        "it",
    ]


def test_list_names_the_sets_if_there_are_several(
    headway: Headway, directory: RunDirectory
) -> None:
    directory.evaluations.append({"step": 5, "set": "books", "loss": 4.0})
    assert "  held-out 3.2500, books 4.0000  " in headway("list").out


def test_delete_of_several(headway: Headway, folder: Path) -> None:
    for name in ("one", "two", "three"):
        RunDirectory.create(folder / "runs" / name, SystemClock())
    misspelt = headway("delete", "one", "tow", "--yes")
    assert misspelt.exit_code == Exit.NOT_FOUND
    assert (folder / "runs" / "one").exists(), "one wrong name deletes nothing"
    said = headway("delete", "one", "two", "one", "--yes")
    assert said.exit_code == 0
    assert said.err.count("deleted ") == 2
    assert [run["name"] for run in json.loads(headway("list", "--json").out)] == ["three"]


def test_list_of_nothing(headway: Headway, folder: Path) -> None:
    said = headway("list")
    assert (said.exit_code, said.out) == (0, "")
    assert "no runs in" in said.err
    assert json.loads(headway("list", "--json").out) == []


@pytest.mark.trap(19)
def test_logs_are_those_of_the_worker_that_failed(
    headway: Headway, directory: RunDirectory
) -> None:
    assert headway("logs").out == "hello from 1\nValueError: no\n"
    assert headway("logs", "--rank", "0").out == "hello from 0\n"
    assert "the run has ended" in headway("logs", "--follow").err
    assert headway("logs", "--all").out.splitlines() == [
        "node-0.rank-0: hello from 0",
        "node-0.rank-1: hello from 1",
        "node-0.rank-1: ValueError: no",
    ]
    Journal(directory.launcher, SystemClock()).note("launched")
    assert headway("logs").out == "hello from 0\n", "of this start, not of an earlier one"


def test_missing_logs(headway: Headway, folder: Path, directory: RunDirectory) -> None:
    said = headway("logs", "--node", "3")
    assert said.exit_code == 3
    assert "no log node-3.rank-1.log" in said.err
    assert "hint: it has node-0.rank-0.log, node-0.rank-1.log" in said.err
    RunDirectory.create(folder / "runs" / "new", SystemClock())
    assert headway("logs", "new", "--all").exit_code == 3


def test_events(headway: Headway, directory: RunDirectory) -> None:
    lines = headway("events").out.splitlines()
    assert [line.split()[1] for line in lines] == ["launched", "started", "failed"]
    assert [event["event"] for event in json.loads(headway("events", "--json").out)] == [
        "launched",
        "started",
        "failed",
    ]


def test_numbers_for_people() -> None:
    assert [short_count(n) for n in (7, 1234567, 2e12, 999)] == ["7", "1.23M", "2T", "999"]
    assert [short_time(s) for s in (5, 75, 4000, 200000)] == ["0:05", "1:15", "1:06:40", "2d 7h"]
