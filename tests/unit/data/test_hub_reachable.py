"""Names on the hub where there is no network: one attempt to reach it, then what is wrong."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
from pathlib import Path
from types import SimpleNamespace
from headway.data.formats.hub import num_parts
from headway.data.tokenizer import find_tokenizer
from headway.errors import BadInput
from headway.spec.run_file import ModelConfig, ObjectiveConfig
from headway.train.models import _from_weights

here = Path.cwd()
resolved = SimpleNamespace(
    folder=here, run=SimpleNamespace(seed=0), revision_of=lambda model: None
)
model = ModelConfig(**{"from": "gpt2"})
for look in (
    lambda: find_tokenizer("gpt2", here),
    lambda: num_parts("hub:allenai/c4?config=en"),
    lambda: _from_weights(model, ObjectiveConfig(type="causal"), resolved),
):
    try:
        look()
    except BadInput as error:
        print(error.message)
"""


@pytest.mark.long("seven seconds of imports")
@pytest.mark.timeout(200)
def test_the_hub_is_not_retried_for_each_call(tmp_path: Path) -> None:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("HF_")}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={
                **environment,
                "HF_ENDPOINT": f"http://127.0.0.1:{port}",
                "HF_HOME": str(tmp_path),
                "NO_PROXY": "127.0.0.1",
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=500,  # of 20 s on a quiet machine, most of it imports
            check=True,
        )
    assert "Retrying" not in done.stderr
    tokenizer, dataset, model = done.stdout.splitlines()
    assert tokenizer.startswith(
        "no tokenizer `gpt2`: no such folder, and the hub cannot be reached"
    )
    assert dataset.startswith("hub:allenai/c4?config=en cannot be opened: ")
    assert model.startswith("model.from: cannot load 'gpt2': ")
    assert all("; the hub cannot be reached (" in words for words in (dataset, model))
