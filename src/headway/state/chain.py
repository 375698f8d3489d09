"""The chain: who trains a run, and which of its checkpoints count.

    chain/0000/000012.json    one link: a start, the beginning of a generation, or a save

Each link is created only if nobody else has created one with its number, and is never changed or
removed. So whoever adds a link has read all before it, and of two writers one notices: the next
number is taken. Only the checkpoints that the last link keeps count. What a writer does after it
was replaced is in no link, and so takes nothing away from its successor.

No decision here depends on a time: times are for people.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator
from typing import Literal
from uuid import uuid4

import xxhash
from pydantic import ValidationError

from headway.errors import BadInput, PeerLost, RunFailed, StillRunning
from headway.spec.section import Section
from headway.state.numbered_files import NumberedFiles
from headway.state.run_directory import RunDirectory

FOLDER = "chain"


class TakenOver(RunFailed):
    """Somebody else has started the run since."""


class Disappeared(RunFailed):
    """The chain, or a link of it, is not there any more: deleted meanwhile, or not mounted."""

    def __init__(self, directory: RunDirectory) -> None:
        super().__init__(
            f"run {directory.name}: {directory.store.location(FOLDER)} has disappeared",
            "mount it again, then run the same command to resume",
        )


class Replaced(PeerLost):
    """A newer generation of the same launch has begun: this leader writes nothing any more."""


class KeptCheckpoint(Section):
    """A checkpoint that counts."""

    step: int
    """Steps committed so far."""
    generation: int
    """Generation that committed the last of them."""
    digest: str
    """Digest that is in its manifest."""
    validation_loss: float | None = None
    """Mean loss over the validation sets, if they were evaluated at this step."""
    sample: str | None = None
    """Part of the validation sets that was evaluated."""
    by: str = ""
    """Machine that wrote it."""

    @property
    def name(self) -> tuple[int, int]:
        return self.step, self.generation


class Link(Section):
    version: Literal[1] = 1
    """Version of this record."""
    number: int
    """Position in the chain, from 1."""
    kind: Literal["start", "generation", "save", "delete"]
    """Reason for the link: somebody started the run, a generation began, checkpoints changed, or
    somebody deletes the run."""
    launch: str
    """Token of the start that it belongs to: random, or the id of the Job."""
    by: str
    """Machine and process that wrote it."""
    time: str
    """When it was written."""
    generation: int
    """The newest generation. A start reserves a number for its first one."""
    num_begun: int = 0
    """Generations that have begun so far: numbers may be left out."""
    workers: int
    """Number of workers in it."""
    keeps: tuple[KeptCheckpoint, ...]
    """Checkpoints that count, oldest first."""
    writer: str
    """Random name of the writer: tells this link from one that another wrote at that moment."""

    @property
    def begun(self) -> int:
        """The newest generation that has begun; 0: none."""
        return self.generation - (self.kind in ("start", "delete"))


def machine() -> str:
    return platform.node()


def this_process() -> str:
    return f"{machine()} (process {os.getpid()})"


class Chain:
    """The chain of one run, as one process reads and extends it."""

    def __init__(self, directory: RunDirectory, launch: str = "") -> None:
        """`launch`: token of the start that this process belongs to, if it writes."""
        self.directory = directory
        self.launch = launch
        self._files = NumberedFiles(directory.store, FOLDER, 6, ".json")
        self._known: Link | None = None
        """The last link that was read or written here."""
        self._writer = uuid4().hex

    def last(self) -> Link | None:
        """Return the last link, looked up anew; None: nobody has ever started the run."""
        number = self._files.newest()
        if number and (self._known is None or self._known.number < number):
            self._known = self._read(number)
        return self._known

    def start(self, time: str, kind: Literal["start", "delete"] = "start") -> Link:
        """Take the run over from whoever has it. Reserves the number of the first generation."""

        def link(last: Link | None) -> Link:
            if last is not None and last.kind == "delete" and kind != "delete":
                raise StillRunning(
                    f"run {self.directory.name} is being deleted by {last.by}, since {last.time}",
                    "to finish that: headway delete " + self.directory.as_typed,
                )
            if last is not None and last.launch == self.launch:
                return last  # a Job that is resumed, or the answer to an earlier attempt was lost
            number = 1 if last is None else last.generation + 1
            return self._after(last, kind=kind, time=time, generation=number, workers=0)

        return self._add(link)

    def begin(self, generation: int, first_step: int, workers: int, time: str) -> Link:
        """Record that a generation begins, before its first step. Checkpoints beyond the step do
        not count any more: it has been resumed without them."""

        def link(last: Link | None) -> Link:
            last = self._own(last, generation)
            if last.begun == generation:
                if last.writer == self._writer:
                    return last  # by an earlier attempt, whose answer was lost
                raise Replaced(f"generation {generation} was begun by another worker")
            return self._after(
                last,
                kind="generation",
                time=time,
                generation=generation,
                num_begun=last.num_begun + 1,
                workers=workers,
                keeps=tuple(kept for kept in last.keeps if kept.step <= first_step),
            )

        return self._add(link)

    def save(
        self,
        generation: int,
        time: str,
        chosen: Callable[[tuple[KeptCheckpoint, ...]], Iterable[KeptCheckpoint]],
    ) -> Link:
        """Record which checkpoints count from now on. `chosen` gets those that did."""

        def link(last: Link | None) -> Link:
            last = self._own(last, generation)
            keeps = tuple(sorted(chosen(last.keeps), key=lambda kept: kept.name))
            if keeps == last.keeps:
                return last
            return self._after(last, kind="save", time=time, keeps=keeps)

        return self._add(link)

    def adopt(self, kept: KeptCheckpoint, time: str) -> None:
        """Record the first checkpoint of a run that was made from another one."""
        self._add(
            lambda last: self._after(
                last, kind="save", time=time, generation=0, workers=0, keeps=(kept,)
            )
        )

    def beginnings_since(self, generation: int) -> Iterator[int]:
        """Yield the generations that have begun, newest first, down to this one."""
        last = self.last()
        for number in range(last.number if last is not None else 0, 0, -1):
            link = self._read(number)
            if link.begun < generation:
                return
            if link.kind == "generation":
                yield link.generation

    def _add(self, link: Callable[[Link | None], Link]) -> Link:
        """Create the next link. Looking is creating: what is known here, or a listing, may be older
        than what there is, and then the number is taken."""
        last = self._known or self.last()
        while True:
            new = link(last)
            if new is last:
                return new
            content = encoded(new)
            name = self._files.name(new.number)
            # A hard link may report that the name is taken after it has made it.
            if self.directory.store.create(name, content) or self._content(name) == content:
                self._known = new
                return new
            last = self.last()
            if last is None or last.number < new.number:
                last = self._known = self._read(new.number)

    def own(self, generation: int) -> Link:
        """Return the last link, if the run is still trained by this generation of this launch;
        raise TakenOver or Replaced."""
        return self._own(self.last(), generation)

    def _own(self, last: Link | None, generation: int) -> Link:
        name = self.directory.name
        if last is None:
            raise Disappeared(self.directory)
        if last.launch != self.launch:
            verb = "deleted" if last.kind == "delete" else "taken over"
            raise TakenOver(
                f"run {name} was {verb} by {last.by} at {last.time}: nothing is saved here any "
                "more",
                f"to follow it: headway status {self.directory.as_typed}",
            )
        if last.generation > generation:
            raise Replaced(f"generation {last.generation} has taken the place of {generation}")
        return last

    def _after(self, last: Link | None, **facts: object) -> Link:
        """Return the link that follows; what `facts` do not say stays as it was."""
        before: dict[str, object] = {"number": 1, "keeps": ()}
        if last is not None:
            before = dict(last) | {"number": last.number + 1}
        mine = {"launch": self.launch, "by": this_process(), "writer": self._writer}
        return Link.model_validate(before | mine | facts)

    def _content(self, name: str) -> bytes | None:
        try:
            return self.directory.store.read(name)
        except FileNotFoundError:
            return None

    def _read(self, number: int) -> Link:
        name = self._files.name(number)
        content = self._content(name)
        if content is None:
            raise Disappeared(self.directory)
        link = decoded(content)
        if link is None or link.number != number:
            raise BadInput(
                f"{self.directory.store.location(name)} is damaged: it says who trains the run "
                "and which checkpoints count",
                "restore that file from a backup; or move it away: then the one before it counts",
            )
        return link


def encoded(link: Link) -> bytes:
    """Return the same line twice, with a checksum: one replaces the other if that is damaged."""
    text = link.model_dump_json()
    return (f"{_checksum(text)} {text}\n" * 2).encode()


def decoded(content: bytes) -> Link | None:
    """Return the link of a file; None: both lines are damaged."""
    middle = len(content) // 2  # whatever the newline there has become
    for line in (content[:middle], content[middle:]):
        checksum, _, text = line[:-1].decode(errors="replace").partition(" ")
        if checksum == _checksum(text):
            try:
                return Link.model_validate_json(text, extra="ignore")
            except ValidationError:
                return None
    return None


def _checksum(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())
