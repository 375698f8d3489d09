"""headway data mix: several prepared sets as one, by shares."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.output import print_table, say, short_count, warn
from headway.cli.output_path import writes_folder
from headway.errors import BadInput, needs_train
from headway.state.store import Store

if TYPE_CHECKING:
    from headway.data.reading.mixture import MemberShare, MemberSpec

NAME = r"[\w.-]+"
TABLE = ("MEMBER", "WANTED", "SHARE", "SAMPLES", "IN AN EPOCH", "EPOCHS", "SET")


def mix(
    members: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]DIR",
            help="Prepared sets: folders, s3:// or gs://. Default of NAME: the folder's name.",
        ),
    ],
    into: Annotated[
        str, typer.Option("--into", help="Where to write the mixture: a folder or s3://.")
    ],
    weights: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Shares of the samples, one per set: 0.7,0.3 or 7,3."),
    ] = None,
    epochs: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...", help="How often each set is read per epoch of the mixture: 1,2."
        ),
    ] = None,
    sequence_length: Annotated[
        int | None,
        typer.Option(help="For the table: tokens per sample. Default: 1024.", min=1),
    ] = None,
) -> None:
    """Mix prepared sets by weights or epochs, and show the share of each.

    Only a description is written: the sets are not copied and must stay where they are.
    """
    try:
        from headway.data.reading.inspect import default_length
        from headway.data.reading.mixture import MixtureSet, member_shares, write_mixture
    except ImportError as error:
        raise needs_train("headway data mix", error) from None
    if (weights is None) == (epochs is None):
        raise BadInput(
            "give exactly one of --weights and --epochs",
            f"--epochs {','.join('1' * len(members))} reads every set once",
        )
    wanted = _wanted(members, into, weights, epochs)
    store = Store(into)
    with writes_folder(into, "--into"):
        write_mixture(store, wanted)
    mixture = MixtureSet.open(store)
    try:
        length = sequence_length or default_length(mixture.window_tokens)
        print_shares(member_shares(mixture, length), [one.location for one in mixture.sets])
    finally:
        mixture.close()
    say(f"next: data: {{train: {into}}} in the run file")


def print_shares(found: Sequence[MemberShare], locations: Sequence[str]) -> None:
    """`EPOCHS`: how often the member is read in one epoch of the mixture."""
    rows = [
        (
            member.name,
            f"{member.wanted:.2%}",
            f"{member.share:.2%}",
            short_count(member.num_samples),
            short_count(member.num_positions),
            "-" if member.num_epochs is None else f"{member.num_epochs:.3g}",
            _near(location),
        )
        for member, location in zip(found, locations, strict=True)
    ]
    print_table(TABLE, rows)
    for member in found:
        if member.num_epochs is None:
            warn(f"{member.name} has too few tokens for one sample")


def _near(location: str) -> str:
    """The location as a user would type it here."""
    here = os.getcwd() + os.sep
    return location.removeprefix(here) if "://" not in location else location


def _wanted(
    members: Sequence[str], into: str, weights: str | None, epochs: str | None
) -> list[MemberSpec]:
    from headway.data.reading.mixture import MemberSpec

    option, text = ("--weights", weights) if weights is not None else ("--epochs", epochs)
    assert text is not None
    amounts = _amounts(option, text, members)
    named = [_named(member) for member in members]
    _refuse_same_names(named)
    return [
        MemberSpec(
            name=name,
            location=_seen_from(into, name, location),
            weight=amount if weights is not None else None,
            epochs=amount if epochs is not None else None,
        )
        for (name, location), amount in zip(named, amounts, strict=True)
    ]


def _amounts(option: str, text: str, members: Sequence[str]) -> list[float]:
    parts = text.split(",")
    if len(parts) != len(members):
        raise BadInput(
            f"{option} {text}: {len(parts)} numbers for {len(members)} sets",
            f"give one per set, in the same order, such as {','.join('1' * len(members))}",
        )
    amounts = []
    for part in parts:
        try:
            amount = float(part)
        except ValueError:
            amount = math.nan
        if not 0 < amount < math.inf:
            raise BadInput(
                f"{option} {text}: {part.strip() or 'nothing'} is not a number above 0",
                "numbers separated by commas, such as 0.7,0.3; leave out a set without weight",
            )
        amounts.append(amount)
    return amounts


def _named(member: str) -> tuple[str, str]:
    """(name, location). `s3://bucket/lang=en` and `./lang=en` have no name: it has no slash."""
    match = re.fullmatch(rf"({NAME})=(.+)", member)
    name, location = match.groups() if match is not None else (None, member)
    location = location.rstrip("/") or location
    if name is None:
        name = (location if "://" in location else os.path.abspath(location)).rpartition("/")[2]
        if not re.fullmatch(NAME, name):
            raise BadInput(
                f"{member}: {name!r} is not a valid name of a member",
                f"give it one: my-name={member}",
            )
    return name, location


def _refuse_same_names(named: Sequence[tuple[str, str]]) -> None:
    seen: dict[str, str] = {}
    for name, location in named:
        if name in seen:
            raise BadInput(
                f"{seen[name]} and {location} are both named {name}",
                f"give them names: first={seen[name]} second={location}",
            )
        seen[name] = location


def _seen_from(into: str, name: str, location: str) -> str:
    """A folder is written relative to that of the mixture: both may be moved together."""
    if "://" in location:
        return location
    if "://" in into:
        warn(f"{name} is on this machine: {into} can be read on this machine only")
        return os.path.abspath(location)
    return os.path.relpath(os.path.abspath(location), os.path.realpath(into))
