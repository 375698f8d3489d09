"""Command of a tier in tests of the gate: prints its words and ends with its first argument."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    print(*sys.argv[2:])
    sys.exit(int(sys.argv[1]))
