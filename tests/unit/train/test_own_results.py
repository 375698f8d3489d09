"""What a loss and metrics of the user's own return is checked at every call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from headway.errors import BadInput
from headway.train.batches import Batch, Loss
from headway.train.own_results import own_loss, own_metrics

TOKENS = torch.zeros(2, 3, dtype=torch.int64)
BATCH = Batch(TOKENS, TOKENS, torch.ones(2, dtype=torch.bool), seed=1)
ONE, THREE = torch.tensor(1.0), torch.tensor(3)
Set = Callable[..., None]


@pytest.fixture
def returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Set:
    """Sets what the function `mine_returning:it` returns, call by call."""
    code = "values = []\ndef it(model, batch): return values.pop(0)\ndef bad(model): pass\n"
    (tmp_path / "mine_returning.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    import mine_returning  # type: ignore[import-not-found]

    def be(*values: object) -> None:
        mine_returning.values[:] = values

    return be


def said(function: Callable[..., object]) -> str:
    with pytest.raises(BadInput) as caught:
        function(nn.Identity(), BATCH)
    return str(caught.value)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (torch.tensor(1.0), "mine_returning:it returned Tensor"),
        ((ONE, THREE), "mine_returning:it returned tuple"),
        (None, "mine_returning:it returned NoneType"),
        (Loss(torch.ones(2), THREE), "scalar"),
        (Loss(ONE, torch.tensor(3.0)), "integer"),
        (Loss(1.0, THREE), "sum is float, which has no gradient"),  # type: ignore[arg-type]
        (Loss(ONE, THREE, {"z": torch.ones(2)}), "extra 'z' has the shape (2,)"),
        (Loss(ONE, THREE, {"z": "high"}), "extra 'z' is str"),  # type: ignore[dict-item]
        (Loss(ONE, THREE, {"loss": ONE}), "extras cannot have the name 'loss'"),
        (Loss(ONE, THREE, {"step": ONE}), "extras cannot have the name 'step'"),
    ],
)
def test_a_loss_is_held_to_the_contract(returns: Set, returned: object, says: str) -> None:
    returns(returned)
    assert says in said(own_loss("mine_returning:it"))


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (None, "mine_returning:it returned NoneType"),
        ({"accuracy": ONE}, "metric 'accuracy' is Tensor"),
        ({"accuracy": (torch.ones(2), torch.ones(2))}, "metric 'accuracy' has the shape (2,)"),
        ({"accuracy": (None, 1)}, "metric 'accuracy' is NoneType, not a number"),
        ({"loss": (ONE, THREE)}, "metrics cannot have the name 'loss'"),
        ({1: (ONE, THREE)}, "metrics cannot have the name 1"),
    ],
)
def test_metrics_are_held_to_the_contract(returns: Set, returned: object, says: str) -> None:
    returns(returned)
    assert says in said(own_metrics("mine_returning:it"))


def test_names_are_the_same_in_every_micro_batch(returns: Set) -> None:
    """They are summed by position, over micro-batches and workers."""
    returns(Loss(ONE, THREE, {"a": ONE}), Loss(ONE, THREE, {"b": ONE, "c": ONE}))
    loss = own_loss("mine_returning:it")
    loss(nn.Identity(), BATCH)
    assert "extras are b, c in one micro-batch and a in another" in said(loss)
    returns({"a": (ONE, THREE)}, {})
    metrics = own_metrics("mine_returning:it")
    metrics(nn.Identity(), BATCH)
    assert "metrics are none in one micro-batch and a in another" in said(metrics)


def test_numbers_of_any_kind_will_do(returns: Set) -> None:
    returns(Loss(ONE, 3, {"z": 2.5, "n": THREE}))  # type: ignore[arg-type, dict-item]
    found = own_loss("mine_returning:it")(nn.Identity(), BATCH)
    assert (int(found.count), float(found.extras["z"]), float(found.extras["n"])) == (3, 2.5, 3.0)
    returns({"accuracy": [True, 4]})
    total, count = own_metrics("mine_returning:it")(nn.Identity(), BATCH)["accuracy"]
    assert (float(total), float(count)) == (1.0, 4.0)


def test_a_function_that_cannot_be_called_is_named_before_the_first_step(returns: Set) -> None:
    with pytest.raises(BadInput, match=r"is bad\(model\), and is called as bad\(model, batch\)"):
        own_loss("mine_returning:bad")


def test_a_script_that_exits_when_it_is_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_exiting.py").write_text("import sys\nsys.exit('usage: train.py')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadInput, match="mine_exiting exits while it is imported, with 'usage"):
        own_loss("mine_exiting:loss")
