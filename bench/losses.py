"""`make bench-losses`: each way of losing a worker or the coordinator, REPEATS=20 times, in runs of
four workers.

Measured from the fault to the first step that the others commit without the lost one, by the times
of the run's own records; the time of a step is given beside it. KINDS="kill,stop" chooses some.
Outliers, more than twice the median, are printed with all events around them, and appended to the
file OUT.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.loss_trial import OUTLIER, SETTLE_SECONDS, Figure, LossTrial
from headway.clock import seconds_of
from headway.data.tiny_stories import stories
from headway.state.record_log import FileLog
from support.live import Away, LiveRun, num_sockets, soon
from support.netns import Cut, NetworkedRun, Unreached
from support.waiting import wait_for
from support.workers import resolved_run

REPEATS = int(os.environ.get("REPEATS", "20"))
SEED = int(os.environ.get("SEED", "1"))
OUT = os.environ.get("OUT")
NODES = 4
CUT_NODES = 3
RESTARTING = int(os.environ.get("RESTARTING", "1"))
"""Nodes of the run in which all restart."""
STOP_SECONDS = 20.0
AWAY_SECONDS = 10.0
CALM_STEPS = 3
"""Before each fault, with all workers."""
AIM_SECONDS = {"forming": 0.002, "healing": 0.01}
"""Most groups form, and most states are sent, in a few times this."""
START_SECONDS = 300.0
"""With the cores shared by others, imports alone take a minute and more."""
RUN_FILE = """\
version: 1
name: losses
model: {type: gpt2, config: {n_layer: 2, n_head: 4, n_embd: 128, n_positions: 64}}
data:
  train: {sources: [text.txt], tokenizer: {train: {vocab: 1000}}}
  sequence_length: 64
batch: {global: 16, micro: 2}
train_for: 1000000 steps
precision: fp32
threads: 1
track: []
evaluation: {every: 1000000 steps}
checkpoint: {every: 200 steps}
"""
LARGER = (
    "name=larger",
    'model.config={"n_layer": 8, "n_head": 8, "n_embd": 512, "n_positions": 64}',
    "batch.global=2",
    "threads=2",
    "checkpoint.every=10 steps",
    "elastic=restart",
)
"""25M parameters."""


Fault = Callable[[LossTrial], dict[str, float]]
"""Strikes, and returns figures in seconds by their names."""


def write_run(folder: Path) -> None:
    (folder / "text.txt").write_text("\n\n".join(stories(400_000, seed=1)))
    (folder / "run.yaml").write_text(RUN_FILE)


def main() -> int:
    chosen = [kind for kind in os.environ.get("KINDS", "").split(",") if kind]
    unknown = set(chosen) - {*KINDS, *CUTS, "restart"}
    assert not unknown, f"no such kinds: {unknown}"

    def wanted(faults: dict[str, Fault]) -> dict[str, Fault]:
        return {kind: fault for kind, fault in faults.items() if not chosen or kind in chosen}

    with tempfile.TemporaryDirectory(prefix="headway-losses-") as scratch:
        folder = Path(scratch)
        write_run(folder)
        with LiveRun(folder, "losses", NODES) as run:
            _strike_all(run, NODES, wanted(KINDS))
        if cuts := wanted(CUTS):
            sets = {"train": next((folder / "prepared").glob("train-*"))}
            resolved = resolved_run(folder, sets, nodes=CUT_NODES, overrides=["name=cut"])
            with NetworkedRun(resolved) as networked:
                _strike_all(networked, CUT_NODES, cuts)
        if not chosen or "restart" in chosen:
            with LiveRun(folder, "larger", RESTARTING, *(f"--set={one}" for one in LARGER)) as run:
                _restart(run)
    found = {name: figure.summary() for name, figure in FIGURES.items() if figure.seconds}
    worst = max(found.values(), key=lambda one: one["median"] / one["target_median"])
    line = {
        "name": "bench-losses",
        "figure": worst["median"],
        "target": worst["target_median"],
        "pass": all(one["pass"] for one in found.values()),
        "spread": found,
    }
    print(json.dumps(line))
    return 0


def _strike_all(run: LiveRun, nodes: int, faults: dict[str, Fault]) -> None:
    run.wait_for_step(20, START_SECONDS)
    for kind, fault in faults.items():
        chance = random.Random(f"{SEED}/{kind}")
        trials, repeats = [], max(1, REPEATS // (4 if kind in FEWER else 1))
        for number in range(repeats):
            _settle(run, nodes)
            time.sleep(chance.random() * _step_seconds(run))  # any point of a step
            trial = LossTrial(run, chance)
            trial.figures = fault(trial)
            trial.ended_at = time.time()
            trials.append(trial)
            _say(f"{kind} {number + 1}/{repeats}: {_words(trial)}")
        _settle(run, nodes)
        _note(kind, trials, _step_seconds(run))
    run.stop()
    run.require_exact()
    assert not run.events("diverged"), run.events("diverged")


def _note(kind: str, trials: list[LossTrial], step: float) -> None:
    """Into FIGURES; and tells what took long."""
    for name in sorted({name for trial in trials for name in trial.figures}):
        figure, some = FIGURES[name], [trial for trial in trials if name in trial.figures]
        figure.step = step
        figure.seconds += [trial.figures[name] for trial in some]
        median = statistics.median(figure.seconds)
        for trial in some:
            if trial.figures[name] > OUTLIER * median:
                words = f"{name} took {trial.figures[name]:.2f} s, median {median:.2f}"
                _say(f"{words}\n{trial.told()}", OUT)
    for moment in (trial.moment for trial in trials if trial.moment):
        FIGURES[kind].moments[moment] += 1


def _settle(run: LiveRun, nodes: int) -> None:
    def is_settled() -> bool:
        newest, last = run.generation(), run.directory.metrics.last() or {}
        return len(newest.domains) == nodes and last.get("generation") == newest.number

    wait_for(f"{nodes} members", is_settled, SETTLE_SECONDS)
    run.wait_for_step(run.step + CALM_STEPS)


def _step_seconds(run: LiveRun) -> float:
    log = run.directory.metrics
    assert isinstance(log, FileLog)
    lines, _ = log.read(max(0, log.path.stat().st_size - 2**14))  # half a line is not read
    return statistics.median(line["seconds"] for line in lines if "seconds" in line)


def _words(trial: LossTrial) -> str:
    figures = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in trial.figures.items())
    return f"{figures} {trial.moment}".strip()


def _say(words: str, out: str | None = None) -> None:
    print(words, file=sys.stderr, flush=True)
    if out:
        with open(out, "a") as file:
            file.write(f"{words}\n")


# Faults


def _kill_one(trial: LossTrial) -> dict[str, float]:
    trial.kill(trial.chance.choice(sorted(trial.run.workers())))
    return {"kill": trial.next_step()}


def _kill_leader(trial: LossTrial) -> dict[str, float]:
    """It writes, and is rank 0."""
    trial.kill((trial.run.members()[0], 0))
    return {"kill leader": trial.next_step()}


def _kill_two(trial: LossTrial) -> dict[str, float]:
    trial.kill(*trial.chance.sample(sorted(trial.run.workers()), 2))
    return {"kill two": trial.next_step()}


def _kill_healer(trial: LossTrial) -> dict[str, float]:
    """The leader, while it sends the state to a newcomer."""
    return _kill_at("healing", trial, lambda leader, others: leader, "kill healer")


def _kill_while_healing(trial: LossTrial) -> dict[str, float]:
    """Another: a bystander, or the newcomer itself."""

    def choose(leader: int, others: list[int]) -> int:
        return trial.chance.choice(others)

    return _kill_at("healing", trial, choose, "kill while healing")


def _kill_while_forming(trial: LossTrial) -> dict[str, float]:
    def choose(leader: int, others: list[int]) -> int:
        return trial.chance.choice([leader, *others])

    return _kill_at("forming", trial, choose, "kill while forming")


def _kill_at(
    moment: str, trial: LossTrial, choose: Callable[[int, list[int]], int], name: str
) -> dict[str, float]:
    """One is killed; while its successor and the others form their group, or the successor is
    healed, another is. The successor's sockets tell how far they are."""
    run, chance = trial.run, trial.chance
    first = chance.choice(sorted(run.workers()))
    before = run.workers()[first]
    trial.kill(first)
    soon("its successor", lambda: run.workers().get(first, before) != before, SETTLE_SECONDS)
    newcomer = run.workers()[first]

    def is_admitted() -> bool:
        newest = run.generation()
        return newest.number > trial.generation and len(newest.domains) == NODES

    soon("its admission", is_admitted, SETTLE_SECONDS)
    trial.generation = run.generation().number
    idle, (leader, *others) = num_sockets(newcomer), run.members()
    victim = run.workers()[choose(leader, others), 0]
    # First it listens; then it is connected with all others.
    aimed = idle + (1 if moment == "forming" else NODES)
    deadline = time.monotonic() + SETTLE_SECONDS
    while num_sockets(newcomer) < aimed and time.monotonic() < deadline:
        time.sleep(0.0005)
    time.sleep(chance.random() * AIM_SECONDS[moment])
    found = num_sockets(newcomer) - idle
    trial.struck_at = time.time()
    os.kill(victim, signal.SIGKILL)
    seconds = trial.next_step()
    if any(event["generation"] == trial.generation for event in run.events("changed")):
        trial.moment = "too late"  # all had the state when it struck
        return {}
    trial.moment = "waiting" if found <= 0 else "forming" if found < NODES else "healing"
    return {name: seconds}


def _stop(trial: LossTrial) -> dict[str, float]:
    workers = trial.run.workers()
    worker = workers[trial.chance.choice(sorted(workers))]
    os.kill(worker, signal.SIGSTOP)
    trial.struck_at = time.time()
    try:
        seconds = trial.next_step()
        time.sleep(max(0.0, STOP_SECONDS - (time.time() - trial.struck_at)))
    finally:
        os.kill(worker, signal.SIGCONT)
    return {"stop": seconds}


def _kill_coordinator_and_worker(trial: LossTrial) -> dict[str, float]:
    coordinator = trial.run.coordinator()
    assert coordinator is not None
    coordinator.kill()
    trial.kill(trial.chance.choice(sorted(trial.run.workers())))
    return {"coordinator and worker": trial.next_step()}


def _coordinator_away(trial: LossTrial) -> dict[str, float]:
    """Killed, and back after a while: training continues until a worker is killed meanwhile. That
    worker is removed when the coordinator is back."""
    began = time.monotonic()
    with Away(trial.run) as away:
        time.sleep(max(0.0, began + trial.chance.uniform(3.0, 9.0) - time.monotonic()))
        longest = trial.longest_step()
        trial.kill(trial.chance.choice(sorted(trial.run.workers())))
        time.sleep(max(0.0, began + AWAY_SECONDS - time.monotonic()))
    seconds = trial.next_step(away.back_at)
    return {"step without coordinator": longest, "worker without coordinator": seconds}


def _coordinator_back(trial: LossTrial) -> dict[str, float]:
    """The same, and nobody else is lost. Compared with as long a time before it."""
    time.sleep(AWAY_SECONDS)
    before, trial.struck_at = trial.longest_step(), time.time()
    with Away(trial.run):
        time.sleep(max(0.0, trial.struck_at + AWAY_SECONDS - time.time()))
    time.sleep(1.0)
    assert not trial.changes(), "nobody had to change anything"
    longest = trial.longest_step(trial.struck_at)
    return {"step with coordinator": before, "step without coordinator": longest}


def _leave(trial: LossTrial) -> dict[str, float]:
    """As asked by who wants the machine back; then another joins in its place."""
    run = trial.run
    workers = run.workers()
    os.kill(workers[trial.chance.choice(sorted(workers))], signal.SIGTERM)
    trial.struck_at = time.time()
    wait_for("leave and join", lambda: trial.steps() and len(trial.changes()) > 1, SETTLE_SECONDS)
    some = [event for event in run.events("changed") if event["generation"] > trial.generation]
    assert not any(event["discarded"] for event in some), some
    left, joined, *_ = trial.changes()
    return {"leave": left, "join": joined}


KINDS: dict[str, Fault] = {
    "kill": _kill_one,
    "kill leader": _kill_leader,
    "kill two": _kill_two,
    "kill healer": _kill_healer,
    "kill while forming": _kill_while_forming,
    "kill while healing": _kill_while_healing,
    "stop": _stop,
    "coordinator and worker": _kill_coordinator_and_worker,
    "coordinator away": _coordinator_away,
    "coordinator back": _coordinator_back,
    "leave": _leave,
}
FEWER = ("coordinator back",)
"""A fourth of the repeats: much of it is measured by another kind, too."""


def _cut(trial: LossTrial) -> dict[str, float]:
    """All connections of a worker, without a word; mended later."""
    with Cut(trial.chance.randrange(CUT_NODES)):
        trial.struck_at = time.time()
        seconds = trial.next_step()
        time.sleep(trial.chance.random() * 3)
    return {"cut": seconds}


def _cut_from_coordinator(trial: LossTrial) -> dict[str, float]:
    """Only those between a worker and the coordinator. The worker trains with the others until it
    is removed: what it costs them is the change."""
    with Unreached(trial.chance.randrange(CUT_NODES)):
        trial.struck_at = time.time()
        seconds = trial.next_step()
        pause = max(trial.changes())
        time.sleep(trial.chance.random() * 3)
    return {"left without coordinator": seconds, "cut from coordinator": pause}


CUTS: dict[str, Fault] = {"cut": _cut, "cut from coordinator": _cut_from_coordinator}


def _restart(run: LiveRun) -> None:
    """Where all restart: a worker is killed, and all start again from the newest checkpoint."""
    reached, trials, parts = 12, [], dict[str, list[float]]()
    for number in range(REPEATS):
        run.wait_for_step(reached + 2, START_SECONDS)  # further than before: else it is given up
        reached = run.step
        trial = LossTrial(run, random.Random())
        trial.kill((0, 0))
        at = wait_for("a step", partial(_first_after, trial), SETTLE_SECONDS)
        trial.figures, trial.ended_at = {"restart": at - trial.struck_at}, time.time()
        trials.append(trial)
        for part, seconds in trial.restart_parts().items():
            parts.setdefault(part, []).append(seconds)
        _say(f"restart {number + 1}/{REPEATS}: {_words(trial)}")
    step = _step_seconds(run)
    FIGURES["restart"].median -= step  # its target is without one
    _note("restart", trials, step)
    for part, found in parts.items():
        _say(
            f"restart, {part}: median {statistics.median(found):.3f} s, longest {max(found):.3f} s"
        )
    run.stop()
    run.require_exact()


def _first_after(trial: LossTrial) -> float | None:
    times = (seconds_of(line["time"]) for line in trial.steps())
    return next((at for at in times if at > trial.struck_at), None)


FIGURES = {
    "kill": Figure(1.0, 3.0),
    "kill leader": Figure(1.0, 3.0),
    "kill two": Figure(1.0, 3.0),
    "kill healer": Figure(1.0, 3.0),
    "kill while forming": Figure(4.0, 4.0),
    "kill while healing": Figure(4.0, 4.0),
    "stop": Figure(2.0, None),
    "coordinator and worker": Figure(4.0, None),
    "step with coordinator": Figure(0.25, 0.5),
    "step without coordinator": Figure(0.25, 0.5),
    "worker without coordinator": Figure(3.0, 3.0),
    "leave": Figure(0.5, None),
    "join": Figure(0.5, None),
    "cut": Figure(2.5, None),
    "left without coordinator": Figure(8.0, None),
    "cut from coordinator": Figure(2.5, None),
    "restart": Figure(6.0, None),
}
"""Targets by the name of the figure."""


if __name__ == "__main__":
    sys.exit(main())
