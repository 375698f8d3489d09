"""`headway check --code`: one tiny batch through the user's own functions, on the CPU."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

import headway
from headway.errors import BadInput, CheckFailed, HeadwayError
from headway.spec.run_file import RunFile
from headway.state.user_code import find_function, make_importable
from headway.train.batches import Batch
from headway.train.evaluate import checked_pair
from headway.train.models import own_model
from headway.train.objectives import logits_of, make_objective, require_logits

ROWS, LENGTH, VOCABULARY = 2, 8, 64
OWN = Path(headway.__file__).parent


def check_code(run: RunFile, folder: Path) -> str:
    """A summary of what was run. Raises CheckFailed with the frames of the user's code if it
    fails."""
    code = folder / run.code.path if run.code else folder
    make_importable(code if run.code else None)
    try:
        return _checked(run)
    except HeadwayError:
        raise
    except Exception as error:
        text = _user_traceback(error, code.resolve())
        if text is None:
            raise  # an error of ours, with its traceback
        raise CheckFailed(f"your code failed:\n{text}") from None


def _user_traceback(error: Exception, code: Path) -> str | None:
    """The traceback's frames in the folder `code`, and the error; None without such frames."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if _is_theirs(Path(frame.filename).resolve(), code)
    ]
    if not frames and not isinstance(error, SyntaxError):
        return None
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    return "".join(lines).rstrip()


def _is_theirs(file: Path, code: Path) -> bool:
    """Not files of libraries or of Headway itself, which may be installed in that folder."""
    if not file.is_relative_to(code) or file.is_relative_to(OWN):
        return False
    return "site-packages" not in file.relative_to(code).parts


def _checked(run: RunFile) -> str:
    module = _module(run)
    tokens = torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) % VOCABULARY
    batch = Batch(tokens, tokens.roll(-1, 1), torch.ones(ROWS, dtype=torch.bool), seed=0)
    results = []
    if run.model is not None and run.model.call is not None:
        count = sum(p.numel() for p in module.parameters())
        results.append(f"{run.model.call} built a model of {count} parameters")
    if run.objective.call is not None or run.objective.type == "causal":
        results.append(_check_objective(run, module, batch))
    if run.evaluation.metrics is not None:
        measured = find_function(run.evaluation.metrics.call)(module, batch)
        names = [name for name, value in measured.items() if checked_pair(name, value)]
        results.append(f"{run.evaluation.metrics.call} measured {', '.join(names)}")
    return "; ".join(results)


def _module(run: RunFile) -> torch.nn.Module:
    torch.manual_seed(run.seed)
    if run.model is not None and run.model.call is not None:
        return own_model(run.model).module
    # For the user's loss alone: a small model with the interface of transformers.
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=1,
        n_head=2,
        n_embd=16,
        vocab_size=VOCABULARY,
        n_positions=32,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def _check_objective(run: RunFile, module: torch.nn.Module, batch: Batch) -> str:
    loss = make_objective(run.objective, None)(module, batch)
    if loss.sum.requires_grad:
        loss.sum.backward()
    without = [name for name, p in module.named_parameters() if p.requires_grad and p.grad is None]
    if len(without) == sum(1 for _ in module.parameters()):
        raise BadInput("the loss does not depend on the model: no parameter got a gradient")
    if run.objective.call is None or run.evaluation.prompts:
        require_logits(logits_of(module, batch.inputs), batch.inputs)
    mean = float(loss.sum.detach()) / max(1, int(loss.count))
    return (
        f"{run.objective.call or 'causal loss'} returned {mean:.3f} over {int(loss.count)} targets"
    )
