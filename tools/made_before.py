"""`make made-before`: records tests/data/made_before.tar.xz anew, with the version that is checked
out: two sets prepared from its data, and two runs of 6 steps on them, one on two nodes, one sharded
over two ranks. `expected` has loss and gradient norm of each step when this version itself extends
them to 12. Once something was released, this is never done again: another file is added."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
ARCHIVE = REPOSITORY / "tests" / "data" / "made_before.tar.xz"
ROOT = "@ROOT@"
RUNS = {"replicated": "2", "sharded": "1"}
"""With their nodes."""
PREPARE = ("data/train.txt", "data/more.jsonl", "--into", "prepared/train")
PREPARE_OPTIONS = ("--train-vocab", "320", "--deduplicate", "--hold-out", "10%")
LEFT_OUT = ("lock", "logs", "tensorboard", "owner.json", "coordinator.log", "cluster.json")


def headway(folder: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "headway.cli.main", *arguments], cwd=folder, check=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "before"
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(folder, filter="data")
        for name in ("prepared", "runs", "expected"):
            shutil.rmtree(folder / name)
        headway(folder, "data", "prepare", *PREPARE, *PREPARE_OPTIONS)
        for name, nodes in RUNS.items():
            headway(folder, "run", f"{name}.yaml", "--nodes", nodes, "--set", "train_for=6 steps")
        later = Path(temporary) / "later"
        shutil.copytree(folder, later)
        for file in (*later.glob("runs/*/spec.json"), *later.glob("prepared/*/recipe.json")):
            file.write_text(file.read_text().replace(str(folder), str(later)))
        (folder / "expected").mkdir()
        for name, nodes in RUNS.items():
            more = ("--extend", "--set", "train_for=12 steps")
            headway(later, "run", f"{name}.yaml", "--nodes", nodes, *more)
            lines = (later / "runs" / name / "metrics.jsonl").read_text().splitlines()
            steps = [line for line in map(json.loads, lines) if "loss" in line]
            numbers = [[step["loss"], step["grad_norm"]] for step in steps]
            (folder / "expected" / f"{name}.json").write_text(json.dumps(numbers) + "\n")
        for file in (*folder.glob("runs/*/spec.json"), *folder.glob("prepared/*/recipe.json")):
            file.write_text(file.read_text().replace(str(folder), ROOT))
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and not set(LEFT_OUT) & set(path.relative_to(folder).parts):
                    archive.add(path, str(path.relative_to(folder)))
    print(f"wrote {ARCHIVE.relative_to(REPOSITORY)}: {ARCHIVE.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
