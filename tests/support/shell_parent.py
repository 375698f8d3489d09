"""A parent of workers that are lines of shell: `python shell_parent.py SCRIPT RUN_DIRECTORY`. All
but the workers is the real one; what they write to the file $WORDS are their last words."""

from __future__ import annotations

import os
import sys

from headway.train import saying
from headway.train.warm import serve


def run(arguments: list[str]) -> int:
    assert saying.launcher is not None
    os.set_inheritable(saying.launcher, True)
    os.environ["WORDS"] = f"/proc/self/fd/{saying.launcher}"
    os.execv("/bin/sh", ["/bin/sh", "-c", sys.argv[1], *arguments])


if __name__ == "__main__":
    serve(run)
