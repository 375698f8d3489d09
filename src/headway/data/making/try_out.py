"""`headway check --code`: the first records of a source through the user's transform."""

from __future__ import annotations

from itertools import islice

from headway.data.formats.chunks import Problem
from headway.data.making.extract import Extractor, Nothing
from headway.data.making.pieces import Position, unit_chunks
from headway.data.making.prepare import Job
from headway.data.making.recipe import Recipe, units_of
from headway.data.making.sources import find_sources
from headway.data.making.train_tokenizer_on import NO_TOKENS
from headway.errors import BadInput

NUM_RECORDS = 16
ANY_VOCABULARY = 2**31


def try_transform(job: Job) -> str:
    """What it made of them; the first one that it failed on is an error."""
    found = find_sources(job.sources, job.beside, job.anonymous)
    recipe = Recipe(
        settings=job.settings,
        tokens=NO_TOKENS,
        files=tuple(found.files),
        beside=str(job.beside),
        anonymous=job.anonymous,
    )
    tokenizer = job.beside / (job.tokenizer.load or "")
    called = f"tokenizer `{job.tokenizer.load}`"
    extractor = Extractor(job.settings, ANY_VOCABULARY, tokenizer, job.code, called)
    records = (
        (item, chunk.file)
        for unit in units_of(recipe)
        for chunk in unit_chunks(unit, recipe, Position())
        for item in chunk.records()
        if not isinstance(item, Problem)
    )
    made = [extractor.extract(record, file) for record, file in islice(records, NUM_RECORDS)]
    bad = next((one for one in made if isinstance(one, Problem)), None)
    if bad is not None:
        raise BadInput(f"{bad.where}: {bad.kind}: {bad.message}")
    kept = sum(not isinstance(one, Nothing) for one in made)
    return f"{job.settings.transform} kept {kept} of the first {len(made)} records"
