"""The chain of a run, as its launcher and its leaders extend it."""

from __future__ import annotations

from headway.spec.run_file import KeepConfig
from headway.state.chain import Chain, KeptCheckpoint
from headway.state.checkpoints import CheckpointManifest, clean_up, folder_of, retained
from headway.state.checkpoints import write_manifest as write
from headway.state.run_directory import RunDirectory

LAUNCH = "a-launch"
TIME = "2027-01-15T08:00:00Z"


def launched(directory: RunDirectory, launch: str = LAUNCH) -> int:
    """Number of the first generation of a launch."""
    return Chain(directory, launch).start(TIME).begun + 1


def begun(directory: RunDirectory, generation: int, first_step: int, launch: str = LAUNCH) -> Chain:
    """The chain of a generation that has begun."""
    chain = Chain(directory, launch)
    chain.start(TIME)
    chain.begin(generation, first_step, 1, TIME)
    return chain


def recorded(chain: Chain, kept: KeptCheckpoint, keep: KeepConfig | None = None) -> None:
    """A checkpoint that is complete, with retention. None: all stay."""

    def chosen(keeps: tuple[KeptCheckpoint, ...]) -> tuple[KeptCheckpoint, ...]:
        both = (*(one for one in keeps if one.name != kept.name), kept)
        return both if keep is None else retained(both, keep)

    link = chain.save(kept.generation, TIME, chosen)
    if keep is not None:
        clean_up(chain.directory, link, kept.generation)


def save_manifest(
    directory: RunDirectory, manifest: CheckpointManifest, keep: KeepConfig | None = None
) -> KeptCheckpoint:
    """What a save writes after its tensors, by the leader of the newest launch."""
    kept = write(directory.store, folder_of(manifest.step, manifest.generation), manifest)
    last = Chain(directory).last()
    launch = last.launch if last is not None else LAUNCH
    chain = Chain(directory, launch)
    if last is None or last.begun < manifest.generation:
        chain.start(TIME)
        step = max((one.step for one in last.keeps), default=0) if last is not None else 0
        chain.begin(manifest.generation, step, 1, TIME)
    recorded(chain, kept, keep)
    return kept


def saved_at(directory: RunDirectory, *steps: int, generation: int = 1) -> None:
    """Checkpoints as the chain has them, without their files."""
    chain = begun(directory, generation, 0)
    for step in steps:
        recorded(chain, KeptCheckpoint(step=step, generation=generation, digest="d"))
