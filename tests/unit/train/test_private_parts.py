"""What Headway uses of torch and transformers that neither promises, each with what happens when it
is gone. A new use fails here until it has its line: a proof at the start of a world, a public way
instead, or the reason why it is harmless."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import headway

SOURCE = Path(headway.__file__).parent / "train"
"""The only layer with torch; an import contract keeps it so."""
LIBRARY = re.compile(r"(torch|transformers)(\.\w+)*")
AT_IMPORT = "missing: no worker starts, with the name in the error"
AT_BUILD = "missing: the model is not built, with the name in the error"
AT_FIRST_STEP = "missing: the first step fails, with the name in the error"
NO_RECORDER = "missing: a hang is noted without the numbers of its collectives"
PRIVATE = {
    # Proves itself when a worker starts.
    "._register_backend": "train/leaving_groups.py makes such a group and leaves it",
    "._set_default_backend": "the same",
    "transformers.masking_utils": "train/packed_sequences.py refuses models of transformers",
    # Named by the error of whoever misses it, before the first step has ended.
    "torch.distributed.tensor._utils.compute_local_shape_and_global_offset": AT_IMPORT,
    "torch.nn.modules.batchnorm._BatchNorm": AT_IMPORT,
    "torch.utils._python_dispatch.TorchDispatchMode": AT_IMPORT,
    "torch.utils._pytree.tree_leaves": AT_IMPORT,
    "torch.utils._pytree.tree_map": AT_IMPORT,
    "torch._dynamo": AT_IMPORT,
    "._buffers": AT_BUILD,
    "._parameters": AT_BUILD,
    "._cdata": AT_BUILD,
    "._init_weights": AT_BUILD,
    "._model_mapping": AT_BUILD,
    "transformers.utils.hub": AT_BUILD,
    "transformers.conversion_mapping": AT_BUILD,
    "transformers.core_model_loading": AT_BUILD,
    "._foreach_mul_": AT_FIRST_STEP,
    "._set_sequence_nr": AT_FIRST_STEP,
    # Harmless.
    "._C": NO_RECORDER,
    "._distributed_c10d": NO_RECORDER,
    "._device_types": NO_RECORDER,
    "._get_backend": NO_RECORDER,
    "._dump_fr_trace_json": NO_RECORDER,
    "._dump_nccl_trace_json": NO_RECORDER,
    "torch._dynamo.utils.counters": "missing: nobody knows what was compiled, and nothing else",
    "._keys_to_ignore_on_save": "missing: an export may have a tensor more",
    "transformers.modeling_utils": "missing: no attention figures",
    "transformers.models.auto.modeling_auto": "imported early, to save time",
}


def test_every_private_part_has_its_line() -> None:
    found = private_parts()
    unlisted = {part: sorted(files) for part, files in found.items() if part not in PRIVATE}
    assert not unlisted, "each needs a line that says what happens when it is gone"
    assert not PRIVATE.keys() - found.keys(), "no longer used"


def test_a_new_private_part_is_found() -> None:
    new = """
import torch._inductor.config
from torch.distributed import _reconfigure
from transformers.cache_utils import DynamicCache
def run(group, masks):
    self._own, group._ours = 1, 2
    group._shutdown()
    os._exit(0)
    return getattr(masks, "_cache", None), sys.modules["transformers.masking_utils"]
"""
    assert {*parts_of(ast.parse(new))} == {
        "torch._inductor.config",
        "torch.distributed._reconfigure",
        "transformers.cache_utils",
        "._ours",
        "._shutdown",
        "._cache",
        "transformers.masking_utils",
    }


def private_parts() -> dict[str, set[str]]:
    """Files that use each part."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        ours = {f".{name}" for name in _own_names(tree)}
        for part in parts_of(tree):
            if part not in ours:
                found.setdefault(part, set()).add(path.name)
    return found


def parts_of(tree: ast.AST) -> Iterator[str]:
    """Names that neither library promises: below an underscore, or in a module of transformers.
    Attributes begin with a dot: whose they are is not known."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if LIBRARY.fullmatch(module):
                if module.startswith("transformers."):
                    yield module
                else:
                    yield from _private(f"{module}.{name.name}" for name in names)
            case ast.Import(names=names):
                yield from _private(one.name for one in names if LIBRARY.fullmatch(one.name))
            case ast.Attribute(value=ast.Name(id="self" | "cls" | "os")):
                pass
            case ast.Attribute(attr=name):
                yield from _private([f".{name}"])
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]
            ):
                yield from _private([f".{name}"])
            case ast.Constant(value=str(text)) if LIBRARY.fullmatch(text):
                if text.startswith("transformers."):
                    yield text
                else:
                    yield from _private([text])


def _private(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if any(part.startswith("_") and not part.startswith("__") for part in name.split(".")):
            yield name


def _own_names(tree: ast.AST) -> Iterator[str]:
    """Names that this source defines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
