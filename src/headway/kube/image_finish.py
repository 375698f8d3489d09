"""Compiles torch, and fails if the image lacks something. The last step of an image's build runs
this file, in the image."""

import compileall
import importlib.util
import os
import sysconfig

NAMES = ("torch", "transformers", "headway", "asyncio")


def finish() -> None:
    found = {name: importlib.util.find_spec(name) for name in NAMES}
    lacking = [name for name, spec in found.items() if spec is None or spec.origin is None]
    if lacking:
        raise SystemExit(f"error: the base image lacks {', '.join(lacking)}")
    origins = {name: spec.origin for name, spec in found.items() if spec and spec.origin}
    # pip has compiled what it installed.
    for folder in (os.path.dirname(origins["torch"]), sysconfig.get_path("stdlib")):
        compileall.compile_dir(folder, quiet=2, workers=0)
    cached = {name: importlib.util.cache_from_source(path) for name, path in origins.items()}
    without = [name for name, path in cached.items() if not os.path.exists(path)]
    if without:
        raise SystemExit(f"error: no bytecode: {', '.join(without)}")


if __name__ == "__main__":
    finish()
