"""What a plan is asked for: a run, and the devices to plan it for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.plan.described_device import device_of, near_shape
from headway.errors import BadInput, NotFound
from headway.plan.fleet import Fleet
from headway.plan.machines import find_machine
from headway.spec.quantities import Accelerators, NodeRange

if TYPE_CHECKING:
    from headway.spec.load import Loaded, LoadedTarget
    from headway.spec.run_file import RunFile
    from headway.state.run_directory import RunDirectory

HERE = "this machine"


@dataclass(frozen=True)
class PlannedPlace:
    """Where a run is planned: a shape such as H100:8, a target, or this machine."""

    words: str
    fleets: tuple[Fleet, ...]
    """Each choice of accelerators at the least and the largest number of nodes; the first is what
    the run gets first."""
    target: LoadedTarget | None = None
    notes: tuple[str, ...] = ()
    """What the user should know before they run it as planned."""


@dataclass(frozen=True)
class Asked:
    loaded: Loaded
    """Its run has the target's defaults."""
    place: PlannedPlace
    directory: RunDirectory | None = None
    """Of a run that exists."""

    @property
    def run(self) -> RunFile:
        return self.loaded.run

    @property
    def title(self) -> str:
        """What is planned, in a word or two."""
        if self.directory is not None:
            return self.directory.name
        if self.loaded.is_preset:
            return self.loaded.file.partition(" ")[0]
        return self.run.name or self.loaded.folder.name


def read_asked(
    reference: str | None,
    overrides: list[str] | None,
    on: str | None,
    nodes: str | None,
    device: str | None,
) -> Asked:
    """`reference`: a run file, a folder with one, a preset, or a run."""
    loaded, directory = _found(reference, overrides)
    wanted = _nodes(nodes)
    if on is not None and ":" in on:
        return Asked(loaded, _place_of_shape(loaded.run, on, wanted, device), directory)
    if on is not None:
        loaded, place = place_of_target(loaded, on, wanted, device)
        return Asked(loaded, place, directory)
    return Asked(loaded, place_of_run(loaded, wanted, device), directory)


def _found(
    reference: str | None, overrides: list[str] | None
) -> tuple[Loaded, RunDirectory | None]:
    from headway.spec.load import Loaded, changed_run, load_run
    from headway.spec.located_yaml import Located

    try:
        return load_run(reference, overrides), None
    except NotFound as error:
        if reference is None or "=" in reference:
            raise
        from headway.state.find_run import find_run  # with libraries of stores, in 0.1 s

        try:
            directory = find_run(reference, Path.cwd())
        except NotFound:
            error.message = f"{reference} is no run file, preset or run"
            error.hint = "presets: headway init --list; runs: headway list"
            raise error from None
    resolved = directory.read_spec()
    run = changed_run(resolved.run, overrides or []) if overrides else resolved.run
    return Loaded(run, Path(resolved.folder), Located({})), directory


def _nodes(text: str | None) -> NodeRange | None:
    if text is None:
        return None
    try:
        return NodeRange.parse(text)
    except ValueError as error:
        raise BadInput(f"--nodes: {error}", "--nodes 8, or a range: --nodes 2..4") from None


def shape_of(text: str) -> Accelerators:
    try:
        return Accelerators.parse(text)
    except ValueError as error:
        raise BadInput(f"--on {text}: {error}", "for example --on H100:8") from None


def _place_of_shape(
    run: RunFile, shape: str, nodes: NodeRange | None, device: str | None
) -> PlannedPlace:
    wanted = shape_of(shape)
    fleets = tuple(fleets_of(run, wanted, nodes or run.resources.nodes, device))
    return PlannedPlace(str(wanted), fleets)


def place_of_target(
    loaded: Loaded, on: str, nodes: NodeRange | None, device: str | None
) -> tuple[Loaded, PlannedPlace]:
    from headway.kube.placement import amount_in_bytes
    from headway.spec.load import load_target
    from headway.spec.target_file import with_defaults

    try:
        found = load_target(on, loaded.folder)
    except NotFound as error:
        if (shape := near_shape(on)) is not None:
            error.hint = f"to plan for devices without a target, give their number: --on {shape}"
        raise
    target = found.target
    run = with_defaults(loaded.run, target)
    wanted, notes = run.resources.accelerators, []
    machine = find_machine(target.machine) if target.machine is not None else None
    if wanted is None and machine is not None:
        wanted = machine.accelerators
        notes.append(
            f"neither the run nor target {on} asks for accelerators; to get those of its machines: "
            f"--set resources.accelerators={wanted}"
        )
    memory = target.pod.resources.get("memory")
    fleets = fleets_of(
        run,
        wanted or Accelerators("cpu", 1),
        nodes or run.resources.nodes,
        device,
        cpu_bytes=amount_in_bytes(memory) if memory is not None else None,
    )
    words = f"target {on}" + (f" ({machine.name})" if machine is not None else "")
    place = PlannedPlace(words, tuple(fleets), found, tuple(notes))
    return replace(loaded, run=run), place


def place_of_run(loaded: Loaded, nodes: NodeRange | None, device: str | None) -> PlannedPlace:
    """The devices that the run file names, else those of this machine."""
    from headway.launch.hardware import this_machine

    run, machine = loaded.run, this_machine()
    wanted = run.resources.accelerators
    if wanted is not None and not wanted.is_cpu:
        fleets = fleets_of(run, wanted, nodes or run.resources.nodes, device)
        return PlannedPlace(f"{wanted}, as the run file asks", tuple(fleets))
    number = nodes or NodeRange(1, 1)
    if wanted is None and machine.cuda_devices:
        name = machine.device_name or "gpu"
        wanted = Accelerators(name, machine.cuda_devices)
        return PlannedPlace(HERE, tuple(fleets_of(run, wanted, number, device)))
    wanted = wanted or Accelerators("cpu", 1)
    # Nodes here are processes of one machine: they share its memory.
    shared = machine.memory_bytes // number.maximum if machine.memory_bytes else None
    return PlannedPlace(HERE, tuple(fleets_of(run, wanted, number, device, cpu_bytes=shared)))


def fleets_of(
    run: RunFile,
    wanted: Accelerators,
    nodes: NodeRange,
    description: str | None,
    cpu_bytes: int | None = None,
) -> Iterator[Fleet]:
    """Each choice of accelerators at the least and the largest number of nodes. `cpu_bytes`: memory
    of a node without accelerators."""
    for one in wanted.choices:
        device = None if one.is_cpu else device_of(one.kind, description)
        for number in sorted({nodes.minimum, nodes.maximum}):
            spot = run.resources.spot
            yield Fleet(
                device=device,
                devices_per_node=one.count,
                nodes=number,
                memory_bytes=cpu_bytes // one.count if one.is_cpu and cpu_bytes else None,
                is_spot=spot == "all" or (spot == "above_min" and number > nodes.minimum),
            )
