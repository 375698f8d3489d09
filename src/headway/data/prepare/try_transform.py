"""`headway check --code`: runs the first records of a source through the user's transform."""

from __future__ import annotations

from itertools import islice

from headway.data.formats.chunks import Problem
from headway.data.prepare.extract import Extractor, Omitted
from headway.data.prepare.job import PrepareJob
from headway.data.prepare.recipe import Recipe, source_units
from headway.data.prepare.set_tokenizer import NO_TOKENIZER
from headway.data.prepare.sources import find_sources
from headway.data.prepare.unit_chunks import SourcePosition, unit_chunks
from headway.errors import BadInput

NUM_RECORDS = 16
ANY_VOCABULARY = NO_TOKENIZER.model_copy(update={"vocab_size": 2**31})


def try_transform(job: PrepareJob) -> str:
    """The results in words; raises an error at the first record that fails."""
    found = find_sources(job.sources, job.beside, job.anonymous)
    recipe = Recipe(
        settings=job.settings,
        tokens=NO_TOKENIZER,
        files=tuple(found.files),
        beside=str(job.beside),
        anonymous=job.anonymous,
    )
    tokenizer = job.beside / (job.tokenizer.load or "")
    called = f"tokenizer `{job.tokenizer.load}`"
    extractor = Extractor(job.settings, ANY_VOCABULARY, tokenizer, job.code, called)
    records = (
        (item, chunk.file)
        for unit in source_units(recipe)
        for chunk in unit_chunks(unit, recipe, SourcePosition())
        for item in chunk.records()
        if not isinstance(item, Problem)
    )
    made = [extractor.extract(record, file) for record, file in islice(records, NUM_RECORDS)]
    bad = next((one for one in made if isinstance(one, Problem)), None)
    if bad is not None:
        raise BadInput(f"{bad.where}: {bad.kind}: {bad.message}")
    kept = sum(not isinstance(one, Omitted) for one in made)
    return f"{job.settings.transform} kept {kept} of the first {len(made)} records"
