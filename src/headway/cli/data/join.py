"""headway data join: joins parts that were prepared separately."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import AllowUnreadableOption
from headway.cli.output import say, short_count
from headway.cli.output_path import writes_folder

if TYPE_CHECKING:
    from headway.state.store import Store


def join(
    parts: Annotated[
        list[str],
        typer.Argument(
            metavar="PART", help="Every part that headway data prepare --part I/N has written."
        ),
    ],
    into: Annotated[
        str | None,
        typer.Option(
            "--into",
            help="Where to write the set. Default: PART, if all parts were prepared into it.",
        ),
    ] = None,
    allow_unreadable: AllowUnreadableOption = False,
) -> None:
    """Join parts that were prepared separately, on one machine or several, into one set.

    Nothing is copied: parts in folders of their own must be on the disk of --into.
    """
    from headway.errors import BadInput, needs_train
    from headway.state.store import Store

    try:
        from headway.cli.set_preparation import report_left_out
        from headway.data.prepare.join import join_parts
    except ImportError as error:
        raise needs_train("headway data join", error) from None
    if into is None:
        if len(parts) > 1:
            raise BadInput(
                f"--into is missing: where should the set of {len(parts)} parts go?",
                "add --into DIR; or, if all parts are in one folder, name only that one",
            )
        into = parts[0]
    with writes_folder(into, "--into"):
        store, stores = Store(into), [Store(part) for part in parts]
        _refuse_another(stores[0], store)
        made = join_parts(stores, store, allow_unreadable=allow_unreadable)
    say(
        f"joined {into}: {short_count(made.num_documents)} documents, "
        f"{short_count(made.num_tokens)} tokens, {len(made.shards)} shards"
    )
    report_left_out(made, store)
    say(f"next: data: {{train: {into}}} in the run file")


def _refuse_another(part: Store, into: Store) -> None:
    """Shards of another preparation would be mixed with those of the parts."""
    from headway.data.prepare.recipe import read_recipe
    from headway.errors import BadInput

    wanted, there = read_recipe(part), read_recipe(into)
    if wanted is not None and there is not None and there.digest != wanted.digest:
        raise BadInput(
            f"{into.root} holds a different preparation",
            "delete that folder, or choose another --into",
        )
