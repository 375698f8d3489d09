"""transformers' search for packed sequences is switched off, or its absence is refused."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, masking_utils

from headway.errors import BadInput
from headway.train.objectives import logits_of
from headway.train.packed_sequences import SEARCH, not_packed, require_search


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Position ids that transformers has searched."""
    found: list[torch.Tensor] = []
    search = getattr(masking_utils, SEARCH)
    monkeypatch.setattr(masking_utils, SEARCH, lambda ids: (found.append(ids), search(ids))[1])
    return found


def test_the_forward_pass_searches_by_the_name_that_is_replaced(
    searches: list[torch.Tensor],
) -> None:
    """Else replacing it would change nothing."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "vocab_size": 16}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, use_cache=False, **sizes))
    tokens = torch.arange(4).reshape(1, 4)
    expected = model(tokens).logits
    assert len(searches) == 1
    assert torch.equal(logits_of(model, tokens), expected)
    assert len(searches) == 1
    require_search()
    with not_packed():
        require_search()


def test_a_transformers_without_that_search_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(masking_utils, SEARCH)
    with pytest.raises(
        BadInput, match=r"has no transformers\.masking_utils\.find_packed"
    ) as caught:
        require_search()
    assert "uv pip install 'transformers>=" in str(caught.value)
