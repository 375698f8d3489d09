"""headway prove: does this machine do what Headway promises?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway import __version__
from headway.cli.output import say
from headway.cli.output_path import writes_folder
from headway.clock import stamp

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.prove.devices import Devices
    from headway.prove.report import ProofReport
    from headway.spec.resolve import Hardware

LIMIT_SECONDS = 900.0
REPORT = "prove.json"


def prove(
    into: Annotated[
        Path,
        typer.Option("--into", metavar="FOLDER", help="A new folder for the results and the runs."),
    ] = Path("prove"),
    devices: Annotated[
        int | None,
        typer.Option(help="Number of GPUs to use. Default: all; without a GPU, 4 workers.", min=1),
    ] = None,
) -> None:
    """Check on this machine that Headway trains, resumes and exports as promised.

    Takes at most 15 minutes, on all of this machine's GPUs; without a GPU it is a rehearsal on the
    CPU. Trains a tiny model on 1, 2 and 4 workers, replicated and sharded, and compares the losses;
    kills a worker; restores on another number of workers; exports; measures tokens/s of three
    presets beside a bare loop, DDP and FSDP2, and speed and memory of a run beside its plan. Prints
    a row for each, and writes all of them into prove.json.

    On a cluster: headway target check."""
    from headway.cli.preflight import require_train_extra
    from headway.clock import SystemClock
    from headway.errors import BadInput
    from headway.launch.hardware import this_machine
    from headway.prove.devices import devices_for

    require_train_extra("headway prove")
    if into.is_dir() and any(into.iterdir()):
        raise BadInput(f"{into} already exists and is not empty", "headway prove --into NEW")
    with writes_folder(into, "--into"):
        hardware = this_machine()
        report = _proof(into, hardware, devices_for(hardware, devices), SystemClock())
        conclude(report, into)


def _proof(into: Path, hardware: Hardware, devices: Devices, clock: Clock) -> ProofReport:
    from headway.prove.checks import Checks
    from headway.prove.machine import device_name, machine_facts
    from headway.prove.program import Program
    from headway.prove.report import ProofReport

    if devices.is_cpu:
        say("this machine has no GPU: a rehearsal on the CPU")
    into.mkdir(parents=True, exist_ok=True)
    started, began = stamp(clock.now()), clock.monotonic()
    program = Program(into.resolve(), clock, LIMIT_SECONDS)
    machine = machine_facts(hardware, devices, program)
    for name, value in machine.items():
        say(f"{name}: {value}")
    checks, results = Checks(program, devices, hardware), []
    for result in checks.results():
        results.append(result)
        print(result.row, flush=True)
    return ProofReport(
        headway=__version__,
        started=started,
        seconds=round(clock.monotonic() - began, 1),
        device=device_name(hardware, devices),
        num_devices=devices.num_devices,
        is_rehearsal=devices.is_cpu,
        tolerance=devices.tolerance,
        machine=machine,
        checks=results,
    )


def conclude(report: ProofReport, folder: Path) -> None:
    """Write the report, and raise if a check failed."""
    from headway.errors import CheckFailed

    (folder / REPORT).write_text(report.model_dump_json(indent=2) + "\n", "utf-8")
    say(f"{report.verdict}; all of it: {folder / REPORT}")
    if not report.passed:
        raise CheckFailed("not all checks passed", f"what the commands printed: {folder / 'logs'}")
