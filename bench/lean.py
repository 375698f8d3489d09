"""`make bench-lean`: memory of a rank while a sharded model is built, and of an export.

A model of 1.35 billion parameters over 4 ranks, from scratch, from a step of a run, from a folder,
and as the teacher of a distillation. Measured on each rank: VmHWM after building, reset before it,
minus VmRSS before it. It may be the rank's share, the largest block or tensor, and 200 MB.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from bench.trial import prepare_set
from headway.clock import SystemClock
from headway.state.run_directory import RunDirectory
from support.workers import resolved_run

RANKS = 4
ROOM_BYTES = 200 * 10**6
DEADLINE_SECONDS = 900.0
WIDTH, LAYERS, INNER = 2048, int(os.environ.get("LAYERS", "24")), 5504
VOCABULARY = 32768
# 24 blocks of 50.6M, and two matrices of 32768 x 2048: 1.35 billion parameters.
LARGE = (
    f"{{type: llama, config: {{hidden_size: {WIDTH}, num_hidden_layers: {LAYERS}, "
    f"intermediate_size: {INNER}, num_attention_heads: 16, num_key_value_heads: 16, "
    f"vocab_size: {VOCABULARY}, max_position_embeddings: 64}}}}"
)
SMALL = (
    "{type: llama, config: {hidden_size: 32, num_hidden_layers: 1, intermediate_size: 32, "
    f"num_attention_heads: 2, vocab_size: {VOCABULARY}, max_position_embeddings: 64}}}}"
)
RUN_FILE = """\
version: 1
name: {name}
model: {model}
objective: {objective}
data: {{train: set, sequence_length: 32}}
batch: {{global: 4, micro: 1}}
train_for: 1 steps
precision: bf16
shard: node
resources: {{accelerators: "cpu:4"}}
threads: 1
track: []
"""
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["headway.train.build", "transformers.models.llama.modeling_llama", "headway.train.save"]
)


def main() -> int:
    block = 4 * WIDTH**2 + 3 * WIDTH * INNER + 2 * WIDTH
    outside = VOCABULARY * WIDTH
    share = 4 * (LAYERS * block + 2 * outside) / RANKS
    limit = share + 4 * max(block, outside) + ROOM_BYTES
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as scratch:
        folder = Path(scratch)
        prepare_set(folder, 20_000, 4096)
        cases = {
            "scratch": _built(folder, "scratch", LARGE),
            "run": _built(folder, "again", "{from: scratch@1}"),
        }
        export_bytes = _exported(folder)
        cases["folder"] = _built(folder, "folder", "{from: exported}")
        distill = "{type: distill, teacher: {from: exported}}"
        cases["teacher"] = _built(folder, "teacher", SMALL, distill)
    figure = max(max(case["bytes"]) for case in cases.values())
    line = {
        "name": "bench-lean",
        "figure": round(figure / 1e6),
        "target": round(limit / 1e6),
        "pass": figure <= limit and export_bytes <= limit,
        "spread": {
            name: {"MB": [round(b / 1e6) for b in case["bytes"]], "seconds": case["seconds"]}
            for name, case in cases.items()
        },
        "share_MB": round(share / 1e6),
        "export_MB": round(export_bytes / 1e6),
    }
    print(json.dumps(line))
    return 0 if line["pass"] else 1


def _built(folder: Path, name: str, model: str, objective: str = "causal") -> dict[str, Any]:
    """Bytes that each rank needed at most while it built, and the seconds of the slowest."""
    content = RUN_FILE.format(name=name, model=model, objective=objective)
    (folder / "run.yaml").write_text(content)
    resolved = resolved_run(folder, {"train": folder / "set"})
    directory = RunDirectory.create(resolved.run_directory, SystemClock())
    directory.write_spec(resolved)
    answers = _in_processes(_build, [(rank, directory.location) for rank in range(RANKS)])
    return {
        "bytes": [grown for grown, _ in answers],
        "seconds": round(max(seconds for _, seconds in answers), 1),
    }


def _in_processes(work: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
    queue = _context.Queue()
    processes = [_context.Process(target=work, args=(queue, *one)) for one in arguments]
    for process in processes:
        process.start()
    try:
        answers = [queue.get(timeout=DEADLINE_SECONDS) for _ in processes]
    finally:
        for process in processes:
            process.join(timeout=30)
            if process.is_alive():
                process.kill()
    failed = [answer for answer in answers if isinstance(answer, str)]
    if failed:
        sys.exit(failed[0])
    return sorted(answers)


def _build(queue: Any, rank: int, location: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        import torch

        from headway.data.reading.token_set import ReadOptions
        from headway.train.build import build, fill_weights
        from headway.train.world import WorldShape, form_world

        directory = RunDirectory.open(location)
        resolved = directory.read_spec()
        torch.set_num_threads(1)
        world = form_world(
            rank=rank,
            shape=WorldShape(1, RANKS, 1),
            device=torch.device("cpu"),
            store=Path(f"{location}/store"),
            generation=1,
        )
        before = _reset_peak()
        began = time.monotonic()
        training, built = build(resolved, world.placement, ReadOptions(rank=rank, trusted=True))
        fill_weights(built, world.placement)
        seconds = time.monotonic() - began
        grown = _memory("VmHWM") - before
        world.barrier()
        if resolved.run.name == "scratch":
            _save(training, directory, world)
        training.feed.close()
        queue.put((grown, seconds))
    except BaseException:  # noqa: BLE001 - whatever it is, the bench must show it
        queue.put(traceback.format_exc())


def _save(training: Any, directory: RunDirectory, world: Any) -> None:
    """A checkpoint of the weights, for the next cases."""
    from headway.clock import stamp
    from headway.state.chain import Chain
    from headway.state.run_directory import Journal
    from headway.train.export import describe_model
    from headway.train.models import BuiltModel
    from headway.train.save import CheckpointSaver

    training.step, training.committed_in = 1, 1
    chain = Chain(directory, "bench")
    if world.is_leader:
        chain.start(stamp(0.0))
        chain.begin(1, 0, RANKS, stamp(0.0))
        built = BuiltModel(training.model, [], None, is_transformers=True)
        describe_model(built, training.feed.set.tokenizer_folder, directory)
    clock = SystemClock()
    saver = CheckpointSaver(directory, chain, Journal(directory.events, clock), clock, "all")
    saver.begin(world)
    saver.finish(training, None)


def _exported(folder: Path) -> int:
    location = str(folder / "runs" / "scratch")
    return int(_in_processes(_export, [(location, str(folder / "exported"))])[0])


def _export(queue: Any, location: str, into: str) -> None:
    try:
        from headway.train.export import export

        before = _reset_peak()
        export(RunDirectory.open(location), None, Path(into))
        queue.put(_memory("VmHWM") - before)
    except BaseException:  # noqa: BLE001 - whatever it is, the bench must show it
        queue.put(traceback.format_exc())


def _reset_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    """Bytes of this process, as the kernel counts them."""
    line = next(li for li in Path("/proc/self/status").read_text().splitlines() if name in li)
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    sys.exit(main())
