"""A run of a script, for tests of what is around it."""

from __future__ import annotations

from pathlib import Path

from headway.spec.load import load_run
from headway.spec.resolve import Hardware, Resolved, resolve

RUN_FILE = "version: 1\nname: it\ncommand: [python, train.py]\ncode: {path: .}\n"


def resolved_script(folder: Path, nodes: int, *settings: str) -> Resolved:
    """Its code is one file, `train.py`, beside the run file."""
    file = folder / "code" / "run.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(RUN_FILE)
    (file.parent / "train.py").write_text("print('trains')\n")
    return resolve(
        load_run(file, [f"storage={folder}/runs", *settings]),
        Hardware(cores=2, cuda_devices=0),
        nodes=nodes,
        parameters=None,
        train_set="",
        validation_sets={},
    )
