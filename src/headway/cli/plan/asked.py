"""What a plan is asked for: a run, and the devices to plan it for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.epoch_samples import samples_of_run
from headway.cli.plan.described_device import device_of, near_shape
from headway.errors import BadInput, NotFound
from headway.plan.accelerators import find_device
from headway.plan.fleet import Fleet
from headway.plan.machines import find_machine
from headway.spec.quantities import Accelerators, NodeRange

if TYPE_CHECKING:
    from headway.cli.plan.recorded_steps import RecordedSteps
    from headway.spec.load import Loaded, LoadedTarget
    from headway.spec.run_file import RunFile
    from headway.state.run_directory import RunDirectory

HERE = "this machine"
GBIT = 1e9 / 8


@dataclass(frozen=True)
class PlannedPlace:
    """Where a run is planned: a shape such as H100:8, a target, or this machine."""

    words: str
    fleets: tuple[Fleet, ...]
    """Each choice of accelerators at the least and the largest number of nodes; the first is what
    the run gets first."""
    target: LoadedTarget | None = None
    is_shape: bool = False
    """Given by `--on H100:8`, which counts more than the run file's accelerators."""
    is_here: bool = False
    """Nodes are processes of this machine."""
    is_substituted: bool = False
    """The run asks for no accelerators, and would not get those that are planned."""
    notes: tuple[str, ...] = ()
    """What the user should know before they run it as planned."""


@dataclass(frozen=True)
class Asked:
    loaded: Loaded
    """Its run has the target's defaults."""
    place: PlannedPlace
    directory: RunDirectory | None = None
    """Of a run that exists."""
    epoch_samples: int | None = None
    """Of its training set, if they were counted."""

    def with_run(self, run: RunFile) -> Asked:
        return replace(self, loaded=replace(self.loaded, run=run))

    @cached_property
    def recorded(self) -> RecordedSteps | None:
        """Steps of the run that exists, read from its logs."""
        from headway.cli.plan.recorded_steps import recorded_steps

        return None if self.directory is None else recorded_steps(self.directory)

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
    loaded, directory = _found(reference, overrides, on)
    if directory is not None and on is None and nodes is None:
        nodes = str(directory.read_spec().nodes)
    loaded, place = place_for(loaded, on, nodes, device)
    set_data = any(one.startswith("data") for one in overrides or ())
    samples = samples_of_run(directory) if directory is not None and not set_data else None
    return Asked(loaded, place, directory, samples)


def place_for(
    loaded: Loaded, on: str | None, nodes: str | None, device: str | None
) -> tuple[Loaded, PlannedPlace]:
    """With the run as it is there."""
    loaded = _with_range(loaded, nodes)
    if on is not None and ":" in on:
        return loaded, _place_of_shape(loaded.run, on, nodes, device)
    if on is not None:
        return _place_of_target(loaded, on, nodes, device)
    return loaded, _place_of_run(loaded, nodes, device)


def _found(
    reference: str | None, overrides: list[str] | None, on: str | None
) -> tuple[Loaded, RunDirectory | None]:
    from headway.spec.load import Loaded, changed_run, load_run, near_preset
    from headway.spec.located_yaml import Located
    from headway.spec.resolve import begun_of

    try:
        return load_run(reference, overrides), None
    except NotFound as error:
        if reference is None or "=" in reference:
            raise
        from headway.cli.target_run import directory_of  # with libraries of stores, in 0.1 s

        target = on if on is not None and ":" not in on else None
        try:
            directory = directory_of(reference, target, Path.cwd())
        except NotFound:
            near = near_preset(reference)
            error.message = f"no run file, preset or run is called {reference}"
            error.hint = (
                f"did you mean the preset {near}?"
                if near
                else "presets: headway init --list; runs: headway list"
            )
            raise error from None
    resolved = directory.read_spec()
    run = changed_run(resolved.run, overrides or []) if overrides else resolved.run
    loaded = Loaded(run, Path(resolved.folder), Located({}), begun=begun_of(resolved))
    return loaded, directory


def numbers_of_nodes(text: str | None, otherwise: NodeRange) -> tuple[int, ...]:
    """`8`; `2..4`: the least and the most; `2,4,8`."""
    try:
        ranges = [NodeRange.parse(part) for part in text.split(",")] if text else [otherwise]
    except ValueError as error:
        hint = "--nodes 8, a range: --nodes 2..4, or several: --nodes 2,4,8"
        raise BadInput(f"--nodes: {error}", hint) from None
    return tuple(sorted({end for one in ranges for end in (one.minimum, one.maximum)}))


def _with_range(loaded: Loaded, text: str | None) -> Loaded:
    """A range is the run's own: its minimum is kept off spot machines."""
    if text is None or ".." not in text or "," in text:
        return loaded
    resources = loaded.run.resources
    numbers = numbers_of_nodes(text, resources.nodes)
    resources = resources.model_copy(update={"nodes": NodeRange(numbers[0], numbers[-1])})
    return replace(loaded, run=loaded.run.model_copy(update={"resources": resources}))


def shape_of(text: str, option: str = "--on") -> Accelerators:
    try:
        return Accelerators.parse(text)
    except ValueError as error:
        raise BadInput(f"{option} {text}: {error}", f"for example {option} H100:8") from None


def _place_of_shape(
    run: RunFile, shape: str, nodes: str | None, device: str | None
) -> PlannedPlace:
    wanted = shape_of(shape)
    numbers = numbers_of_nodes(nodes, run.resources.nodes)
    fleets = tuple(fleets_of(run, wanted, numbers, device))
    return PlannedPlace(str(wanted), fleets, is_shape=True)


def _place_of_target(
    loaded: Loaded, on: str, nodes: str | None, device: str | None
) -> tuple[Loaded, PlannedPlace]:
    from headway.cli.new_target import named_target
    from headway.kube.placement import amount_in_bytes
    from headway.spec.target_file import with_defaults

    try:
        found = named_target(on, loaded.folder)
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
    if memory is None and machine is not None:
        memory = machine.pod_amounts().get("memory")
    fleets = fleets_of(
        run,
        wanted or Accelerators("cpu", 1),
        numbers_of_nodes(nodes, run.resources.nodes),
        device,
        host_bytes=amount_in_bytes(memory) if memory is not None else None,
        network=machine.network_gbit * GBIT if machine and machine.network_gbit else None,
    )
    words = f"target {on}" + (f" ({machine.name})" if machine is not None else "")
    place = PlannedPlace(
        words, tuple(fleets), found, is_substituted=bool(notes), notes=tuple(notes)
    )
    return replace(loaded, run=run), place


def _place_of_run(loaded: Loaded, nodes: str | None, device: str | None) -> PlannedPlace:
    """The devices that the run file names, else those of this machine."""
    from headway.launch.hardware import this_machine

    run, machine = loaded.run, this_machine()
    wanted = run.resources.accelerators
    if wanted is not None and not wanted.is_cpu:
        numbers = numbers_of_nodes(nodes, run.resources.nodes)
        is_enough = numbers[-1] * wanted.count <= machine.cuda_devices
        kind = find_device(machine.device_name or "")
        has_them = is_enough and kind in [find_device(one.kind) for one in wanted.choices]
        memory = machine.memory_bytes if has_them else None
        fleets = fleets_of(run, wanted, numbers, device, memory, is_one_host=has_them)
        return PlannedPlace(f"{wanted}, as the run file asks", tuple(fleets))
    numbers = numbers_of_nodes(nodes, NodeRange(1, 1))
    if wanted is None and machine.cuda_devices:
        wanted = Accelerators(machine.device_name or "gpu", machine.cuda_devices)
    wanted = wanted or Accelerators("cpu", 1)
    fleets = fleets_of(run, wanted, numbers, device, machine.memory_bytes, is_one_host=True)
    return PlannedPlace(HERE, tuple(fleets), is_here=True)


def fleets_of(
    run: RunFile,
    wanted: Accelerators,
    numbers: Sequence[int],
    description: str | None,
    host_bytes: int | None = None,
    network: float | None = None,
    *,
    is_one_host: bool = False,
) -> Iterator[Fleet]:
    """Each choice of accelerators at each number of nodes. `host_bytes`: memory of a node's machine
    or pod, or of the one machine that has all nodes. `network`: bytes a second between nodes."""
    for one in wanted.choices:
        device = None if one.is_cpu else device_of(one.kind, description)
        for number in numbers:
            yield Fleet(
                device=device,
                devices_per_node=one.count,
                nodes=number,
                host_bytes=host_bytes,
                is_one_host=is_one_host,
                network_bytes_per_second=network,
                on_demand_nodes=run.resources.on_demand_nodes,
            )
