"""Whether the model can continue `evaluation.prompts`."""

from __future__ import annotations

from collections.abc import Iterator

from headway.errors import SpecError
from headway.plan.model_fields import model_types
from headway.preflight.unchecked import Unchecked
from headway.spec.load import Loaded

KEY = "evaluation.prompts"


def prompt_problems(loaded: Loaded, unchecked: Unchecked) -> Iterator[SpecError]:
    run = loaded.run
    if not run.evaluation.prompts or run.model is None:
        return
    where = str(loaded.located.mark(("evaluation", "prompts")))
    if run.objective.type == "masked":
        yield SpecError(
            f"{KEY}: a masked model fills gaps and does not continue text",
            where,
            "remove evaluation.prompts",
        )
    elif run.model.type is not None and _is_encoder(run.model.type, run.model.config):
        yield SpecError(
            f"{KEY}: {run.model.type} reads text in both directions and does not continue it",
            where,
            "set model.config.is_decoder: true, or remove evaluation.prompts",
        )
    elif run.model.call is not None and run.objective.call is not None:
        unchecked.add(
            f"{KEY}: whether {run.model.call} returns logits is checked by headway check --code, "
            "and when the run starts"
        )


def _is_encoder(name: str, config: dict[str, object]) -> bool:
    """Whether the type is one of BERT's family, and not made a decoder."""
    type_ = model_types().get(name)
    return (
        type_ is not None
        and type_.masked
        and type_.causal
        and "is_decoder" in type_.fields
        and "decoder_layers" not in type_.fields  # BART's, whose causal model is a decoder
        and config.get("is_decoder") is not True
    )
