"""`headway check --code`: one tiny batch through the user's own functions, on the CPU."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

from headway.errors import BadInput, CheckFailed, HeadwayError
from headway.spec.run_file import RunFile
from headway.state.user_code import make_importable
from headway.train.batches import Batch
from headway.train.loss_rules import StillBuffers, require_rules
from headway.train.models import own_model
from headway.train.objectives import logits_of, make_objective, require_logits
from headway.train.own_code_error import id_hint
from headway.train.own_results import own_metrics
from headway.train.user_frames import UserCode, user_code

ROWS, LENGTH, VOCABULARY = 2, 8, 64
MOST_FLOPS = 2e11
"""Of one forward and backward pass: a few seconds on a laptop."""


def check_code(
    run: RunFile, folder: Path, packages: Path | None = None, vocabulary: int | None = None
) -> str:
    """A summary of what was run. Raises CheckFailed with the frames of the user's code if it
    fails. `packages`: those of `code.requirements`. `vocabulary`: number of tokens, where it is
    known."""
    make_importable(packages)
    make_importable(folder / run.code.path if run.code else None)
    try:
        return _checked(run, vocabulary or VOCABULARY)
    except HeadwayError:
        raise
    except (Exception, SystemExit) as error:
        text = _user_traceback(error, user_code(run, folder, packages))
        if text is None:
            raise  # an error of ours, with its traceback
        raise CheckFailed(f"your code failed:\n{text}", id_hint(error, run, vocabulary)) from None


def _user_traceback(error: BaseException, code: UserCode) -> str | None:
    """The traceback's frames in the user's code, and the error; None without such frames."""
    frames = code.frames(error)
    if not frames:
        return None
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    return "".join(lines).rstrip()


def _checked(run: RunFile, vocabulary: int) -> str:
    module = _module(run, vocabulary)
    parameters = sum(p.numel() for p in module.parameters())
    batch = _batch(run, parameters, vocabulary)
    results = []
    if run.model is not None and run.model.call is not None:
        results.append(f"{run.model.call} built a model of {parameters} parameters")
    if run.objective.call is not None or run.objective.type == "causal":
        results += _check_objective(run, module, batch)
    if run.evaluation.metrics is not None:
        call = run.evaluation.metrics.call
        with torch.no_grad():
            results.append(f"{call} measured {', '.join(own_metrics(call)(module.eval(), batch))}")
    return "; ".join(results)


def _batch(run: RunFile, parameters: int, vocabulary: int) -> Batch:
    """Of the run's sequence length and largest token id, which an embedding may be too small for;
    shorter where that would take long."""
    length = run.data.sequence_length
    if 6 * parameters * ROWS * length > MOST_FLOPS:
        length = LENGTH
    tokens = torch.arange(vocabulary - 1, vocabulary - 1 - ROWS * length, -1) % vocabulary
    tokens = tokens.view(ROWS, length)
    return Batch(tokens, tokens.roll(-1, 1), torch.ones(ROWS, dtype=torch.bool), seed=0)


def _module(run: RunFile, vocabulary: int) -> torch.nn.Module:
    torch.manual_seed(run.seed)
    if run.model is not None and run.model.call is not None:
        return own_model(run.model).module
    # For the user's loss alone: a small model with the interface of transformers.
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=1,
        n_head=2,
        n_embd=16,
        vocab_size=vocabulary,
        n_positions=run.data.sequence_length,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def _check_objective(run: RunFile, module: torch.nn.Module, batch: Batch) -> Iterator[str]:
    objective = make_objective(run.objective, None)
    if run.model is not None and run.model.call is not None:
        objective = StillBuffers(objective, run.model.call)
    loss = objective(module, batch)
    if loss.sum.requires_grad:
        loss.sum.backward()
    without = [name for name, p in module.named_parameters() if p.requires_grad and p.grad is None]
    if len(without) == sum(1 for _ in module.parameters()):
        raise BadInput("the loss does not depend on the model: no parameter got a gradient")
    if run.objective.call is None or run.evaluation.prompts:
        require_logits(logits_of(module, batch.inputs), batch.inputs)
    mean = float(loss.sum.detach()) / max(1, int(loss.count))
    call = run.objective.call
    yield f"{call or 'causal loss'} returned {mean:.3f} over {int(loss.count)} targets"
    if call is not None:
        remark = require_rules(objective, module, batch, call)
        if remark is not None:
            yield remark
