"""headway data join: one set out of parts that were prepared apart."""

from __future__ import annotations

from typing import Annotated

import typer

from headway.cli.output import say, short_count


def join(
    parts: Annotated[
        list[str],
        typer.Argument(
            metavar="PART", help="What headway data prepare --part I/N made, every part of it."
        ),
    ],
    into: Annotated[
        str | None,
        typer.Option(
            "--into",
            help="Where the set goes. Left out: all parts were prepared into the one PART.",
        ),
    ] = None,
) -> None:
    """Join parts that were prepared apart, on one machine or many, into a prepared set.

    Nothing is copied: parts in folders of their own must be on the disk of --into.
    """
    from headway.errors import BadInput, needs_train

    try:
        from headway.cli.preparing import tell_what_is_left_out
        from headway.data.making import join as joining
    except ImportError as error:
        raise needs_train("headway data join", error) from None
    if into is None:
        if len(parts) > 1:
            raise BadInput(
                f"{len(parts)} parts, and nothing says where the set goes",
                "add --into DIR; or, if all parts are in one folder, name that one alone",
            )
        into = parts[0]
    _refuse_another(parts[0], into)
    made = joining.join(parts, into)
    say(
        f"joined {into}: {short_count(made.num_documents)} documents, "
        f"{short_count(made.num_tokens)} tokens, {len(made.shards)} shards"
    )
    tell_what_is_left_out(made, into)
    say(f"next: data: {{train: {into}}} in the run file")


def _refuse_another(part: str, into: str) -> None:
    """Shards of another preparation would stay where the parts' own belong."""
    from headway.data.making.recipe import read_recipe
    from headway.errors import BadInput
    from headway.state.store import Store

    wanted, there = read_recipe(Store(part)), read_recipe(Store(into))
    if wanted is not None and there is not None and there.digest != wanted.digest:
        raise BadInput(
            f"{into} holds a preparation of something else",
            "delete that folder, or join into another",
        )
