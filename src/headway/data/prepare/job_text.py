"""A preparation as text, for the pods that do it; and the digits by which it is known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from headway.data.prepare.job import PrepareJob
from headway.data.prepare.recipe import RecipeSettings
from headway.data.prepare.sources import SourceFile
from headway.data.tokenizer import TokenizerSource


def text_of_job(job: PrepareJob) -> str:
    assert job.code is None, "pods have no code folder"
    facts = {
        "sources": list(job.sources),
        "tokenizer": {
            name: value for name, value in asdict(job.tokenizer).items() if value is not None
        },
        "into": job.into,
        "beside": str(job.beside),
        "settings": job.settings.model_dump(mode="json", exclude_defaults=True),
        "anonymous": job.anonymous,
        "strict": job.strict,
        "allow_unreadable": job.allow_unreadable,
    }
    return json.dumps(facts, sort_keys=True)


def job_of_text(text: str, processes: int | None) -> PrepareJob:
    facts = json.loads(text)
    return PrepareJob(
        sources=facts["sources"],
        tokenizer=TokenizerSource(**facts["tokenizer"]),
        into=facts["into"],
        beside=Path(facts["beside"]),
        settings=RecipeSettings(**facts["settings"]),
        anonymous=facts["anonymous"],
        strict=facts["strict"],
        allow_unreadable=facts["allow_unreadable"],
        processes=processes,
    )


def preparation_key(
    job: PrepareJob, tokenizer_digest: str | None, files: Sequence[SourceFile] | None
) -> str:
    """32 hexadecimal digits that identify what is prepared. `tokenizer_digest`: of one that is
    given as files; `files`: what the sources name, None if that cannot be listed here."""
    text = text_of_job(replace(job, strict=False, allow_unreadable=False))
    listed = None if files is None else [file.model_dump(mode="json") for file in files]
    state = json.dumps([text, tokenizer_digest, listed], sort_keys=True)
    return hashlib.sha256(state.encode()).hexdigest()[:32]
