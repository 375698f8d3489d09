"""The tiers of tests: what each runs, what it needs, and how long it may take.

    .ci/run                  the gate: its tiers, cheapest first, until one fails
    .ci/run TIER ...         these tiers
    .ci/run nightly          the tiers of the night that have not passed on this commit yet
    .ci/run --list [nightly] a line for each tier of the gate, or of the night; --json for programs

This is the only list of tiers: `make gate`, `make nightly` and the workflow read it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
RESULTS = REPOSITORY / ".nightly"
"""Results of the nights, a file for each commit. Not in git."""
MAX_MINUTES = 150
"""Longest budget of a tier, so that a session of three hours can finish the one it is in."""


@dataclass(frozen=True)
class Tier:
    name: str
    minutes: int
    """Budget. A tier that takes longer prints a warning; twice as long fails."""
    command: str
    has_tests: bool = True
    needs_root: bool = False
    """Because it makes a Kubernetes cluster on this machine."""
    needs: str = ""
    """What else has to be there."""
    packages: str = ""
    """Packages of Debian that it needs."""


INSTALL = Tier("install", 5, "make install", has_tests=False, needs="a download of 3 GB")
GATE = (
    INSTALL,
    Tier("check", 2, "make check", has_tests=False),
    Tier("unit", 6, "make test-unit"),
    Tier("simulations", 1, "make test-simulations"),
    Tier("local", 15, "make test-local", needs="Go, to build an S3 server once"),
    Tier("cluster", 11, "make test-cluster", needs_root=True),
)
NIGHT = (
    Tier("unit-long", 10, "make test-unit-long"),
    Tier("simulations-long", 30, "make test-simulations-long"),
    Tier("local-long", 90, "make test-local-long"),
    Tier("oldest", 15, "make test-oldest", needs="a download of 3 GB once"),
    Tier("cluster-long", 120, "make test-cluster-long", needs_root=True),
    Tier("target-faults", 30, "make test-target-faults", needs_root=True),
    Tier("images", 40, "make images", needs_root=True, packages="buildah debootstrap"),
    Tier(
        "prometheus", 20, "make test-prometheus", needs_root=True, needs="Go", packages="prometheus"
    ),
    Tier("kueue", 40, "make test-kueue", needs_root=True, needs="Go, to build Kueue once"),
    Tier(
        "karpenter", 40, "make test-karpenter", needs_root=True, needs="Go, to build Karpenter once"
    ),
    Tier("workflows", 5, "make check-workflows", has_tests=False, needs="Go, to build actionlint"),
)


@dataclass(frozen=True)
class Outcome:
    """How a run of one tier ended."""

    tier: str
    seconds: int
    stolen_seconds: int
    """Time that the host of this virtual machine gave to others, averaged over its processors."""
    passed: int
    failed: int
    skipped: int
    problem: str
    """Why the tier failed; empty if it passed."""
    failures: tuple[str, ...] = ()
    """The failed tests, as pytest names them."""
    ended: str = ""


def run_tier(tier: Tier) -> Outcome:
    print(f"=== {tier.name} (budget {tier.minutes} min)", flush=True)
    began, stolen = time.monotonic(), stolen_seconds()
    process = subprocess.Popen(
        tier.command.split(),
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        if line.startswith(("=", "FAILED ", "ERROR ")):
            lines.append(line.rstrip())
    exit_code = process.wait()
    seconds = round(time.monotonic() - began)
    outcome = outcome_of(tier, exit_code, lines, seconds, round(stolen_seconds() - stolen))
    lost = f", {outcome.stolen_seconds} s of it lost to the host" if outcome.stolen_seconds else ""
    print(f"=== {tier.name} took {seconds} s{lost}")
    over = seconds_over_budget(tier, outcome)
    if outcome.problem:
        print(f"=== {tier.name} failed: {outcome.problem}")
    elif over > 0:
        print(f"=== warning: {tier.name} is {over} s over its budget of {tier.minutes} min")
    sys.stdout.flush()
    return outcome


def outcome_of(
    tier: Tier, exit_code: int, lines: Iterable[str], seconds: int, stolen_seconds: int
) -> Outcome:
    """Return the outcome of a tier from its exit code and what pytest printed last."""
    lines = list(lines)
    summaries = [line for line in lines if re.match(r"=+ .* in [0-9.]+s ", line)]
    counts = dict.fromkeys(("passed", "failed", "skipped", "error"), 0)
    for count, kind in re.findall(r"(\d+) ([a-z]+)", summaries[-1] if summaries else ""):
        counts[kind.removesuffix("s")] = int(count)
    outcome = Outcome(
        tier=tier.name,
        seconds=seconds,
        stolen_seconds=stolen_seconds,
        passed=counts["passed"],
        failed=counts["failed"] + counts["error"],
        skipped=counts["skipped"],
        problem="",
        failures=tuple(
            line.split(" - ")[0].split(" ", 1)[1]
            for line in lines
            if line.startswith(("FAILED ", "ERROR "))
        ),
        ended=time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    )
    return dataclasses.replace(outcome, problem=_problem(tier, exit_code, outcome))


def _problem(tier: Tier, exit_code: int, outcome: Outcome) -> str:
    if exit_code != 0:
        return f"`{tier.command}` ended with exit code {exit_code}"
    if tier.has_tests and outcome.passed == 0:
        return "no test passed"
    if outcome.skipped > outcome.passed:
        return f"{outcome.skipped} tests were skipped and {outcome.passed} passed"
    if seconds_over_budget(tier, outcome) > tier.minutes * 60:
        return f"it took more than twice its budget of {tier.minutes} min"
    return ""


def seconds_over_budget(tier: Tier, outcome: Outcome) -> int:
    return outcome.seconds - outcome.stolen_seconds - tier.minutes * 60


def stolen_seconds(stat: Path = Path("/proc/stat")) -> float:
    """Return the time that the host took since the machine started, averaged over processors."""
    rows = [line.split() for line in stat.read_text().splitlines()]
    num_processors = sum(bool(re.match(r"cpu\d", row[0])) for row in rows)
    steal = next(int(row[8]) for row in rows if row[0] == "cpu")
    return steal / os.sysconf("SC_CLK_TCK") / num_processors


def run_gate(tiers: Sequence[Tier]) -> int:
    return 0 if all(not run_tier(tier).problem for tier in tiers) else 1


def run_night(tiers: Sequence[Tier] = NIGHT) -> int:
    """Run the tiers that have not passed on this commit, and keep one page of results."""
    if _git("status", "--porcelain"):
        print("error: there are changes that are not committed, so no page can say what was tested")
        print("hint: commit them, or run one tier: .ci/run TIER")
        return 2
    commit = _git("rev-parse", "--short=12", "HEAD")
    RESULTS.mkdir(exist_ok=True)
    record = RESULTS / f"{commit}.json"
    outcomes = {}
    if record.exists():
        outcomes = {one["tier"]: Outcome(**one) for one in json.loads(record.read_text())}
    for tier in tiers:
        if tier.name in outcomes and not outcomes[tier.name].problem:
            print(f"=== {tier.name} has passed on {commit}")
            continue
        outcome = run_tier(tier)
        if _git("rev-parse", "--short=12", "HEAD") != commit or _git("status", "--porcelain"):
            print(f"error: the tree is no longer {commit}: this tier's result is not kept")
            return 2
        outcomes[tier.name] = outcome
        rows = [dataclasses.asdict(outcome) for outcome in outcomes.values()]
        record.write_text(json.dumps(rows, indent=1))
        page = record.with_suffix(".md")
        page.write_text(night_page(commit, tiers, outcomes.values()))
        print(f"=== results: {page.relative_to(REPOSITORY)}", flush=True)
    return 0 if all(not outcome.problem for outcome in outcomes.values()) else 1


def night_page(commit: str, tiers: Sequence[Tier], outcomes: Iterable[Outcome]) -> str:
    found = {outcome.tier: outcome for outcome in outcomes}
    lines = [
        f"# Night of {commit}",
        "",
        "| tier | verdict | passed | failed | skipped | minutes | ended (UTC) |",
        "|---|---|---|---|---|---|---|",
    ]
    for tier in tiers:
        outcome = found.get(tier.name)
        if outcome is None:
            lines.append(f"| {tier.name} | not run | | | | | |")
            continue
        counts = f"{outcome.passed} | {outcome.failed} | {outcome.skipped}"
        verdict = outcome.problem or "passed"
        minutes = f"{outcome.seconds / 60:.1f}"
        lines.append(f"| {tier.name} | {verdict} | {counts} | {minutes} | {outcome.ended} |")
    for outcome in found.values():
        lines += ["", f"## Failed in {outcome.tier}", ""] if outcome.failures else []
        lines += [f"- `{name}`" for name in outcome.failures]
    return "\n".join(lines) + "\n"


def format_tiers(tiers: Sequence[Tier], as_json: bool) -> str:
    if as_json:
        rows = [
            {
                "name": tier.name,
                "needs_root": tier.needs_root,
                "packages": tier.packages,
                # A hosted machine is slower, and installs first.
                "timeout_minutes": 2 * tier.minutes + 20,
            }
            for tier in tiers
            if tier.name != "install"
        ]
        return json.dumps(rows)
    rows_of_text = [
        (
            tier.name,
            f"{tier.minutes} min",
            tier.command,
            ", ".join(filter(None, ["root" if tier.needs_root else "", tier.needs, tier.packages])),
        )
        for tier in tiers
    ]
    widths = [max(map(len, column)) for column in zip(*rows_of_text, strict=True)]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows_of_text
    )


def _git(*arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=REPOSITORY, text=True).strip()


def main(arguments: Sequence[str]) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog=".ci/run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the tiers instead")
    parser.add_argument("--json", action="store_true", help="with --list: as JSON")
    parser.add_argument("tiers", nargs="*", metavar="TIER", help="default: the gate")
    options = parser.parse_args(arguments)
    if options.json and not options.list:
        parser.error("--json needs --list")
    is_night = options.tiers == ["nightly"]
    if options.list:
        print(format_tiers(NIGHT if is_night else GATE, options.json))
        return 0
    if is_night:
        return run_gate((INSTALL,)) or run_night()
    known = {tier.name: tier for tier in (*GATE, *NIGHT)}
    unknown = [name for name in options.tiers if name not in known]
    if unknown:
        print(f"error: no tier is called {unknown[0]}; there are {', '.join(known)}, and nightly")
        return 2
    return run_gate([known[name] for name in options.tiers] or GATE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
